// The list of traces: search, filters, and a row for each trace, newest first.

import { FLAGS, selfTimes } from "./data.js";
import { clock, count, duration, el, foreign } from "./text.js";
import { found } from "./search.js";
import { Rows } from "./scrolling.js";

const ROW = 62;

export class TraceList {
  // choose(trace, entered): called when a trace is chosen; entered is true for a click or Enter.
  constructor(recording, choose) {
    this.newest = [...recording.traces].sort((a, b) => b.start - a.start);
    this.choose = choose;
    this.flag = "";
    this.chosen = null;
    this.box = document.getElementById("traces");
    this.input = document.getElementById("search");
    this.rows = new Rows(this.box, ROW, (index) => this.row(index));
    this.input.addEventListener("input", () => this.search());
    this.filters();
    this.search();
  }

  get query() {
    return this.input.value;
  }

  filters() {
    const all = [["", "All", "every trace"], ...FLAGS];
    const chips = all.map(([flag, label, meaning]) => {
      const number = flag ? this.newest.filter((trace) => trace.flags.has(flag)).length : this.newest.length;
      const press = () => this.filter(this.flag === flag ? "" : flag);
      const options = { type: "button", class: `chip ${flag}`, title: meaning, "data-flag": flag, onclick: press };
      return el("button", { ...options, disabled: flag !== "" && number === 0 }, `${label} ${count(number)}`);
    });
    document.getElementById("filters").replaceChildren(...chips);
  }

  filter(flag) {
    this.flag = flag;
    this.search();
  }

  search() {
    this.shown = found(this.newest, this.query, this.flag);
    for (const chip of document.querySelectorAll("#filters .chip")) {
      chip.setAttribute("aria-pressed", String(chip.dataset.flag === this.flag));
    }
    const all = this.newest.length;
    const some = this.query || this.flag ? `${count(this.shown.length)} of ${count(all, "trace")}` : "";
    document.getElementById("found").textContent = all === 0 ? "This recording holds no trace." : some;
    this.rows.show(this.shown.length);
    this.onsearch?.();
  }

  // Choose the trace `by` places further down.
  move(by) {
    if (this.shown.length === 0) return;
    const at = this.shown.indexOf(this.chosen);
    const next = at < 0 ? 0 : Math.min(this.shown.length - 1, Math.max(0, at + by));
    this.choose(this.shown[next], false);
  }

  mark(trace) {
    this.chosen = trace;
    this.box.setAttribute("aria-activedescendant", trace ? `trace-${trace.index}` : "");
    const at = this.shown.indexOf(trace);
    if (at >= 0) this.rows.reveal(at);
    else this.rows.refresh();
  }

  row(index) {
    const trace = this.shown[index];
    const options = {
      class: "row",
      id: `trace-${trace.index}`,
      role: "option",
      "aria-selected": String(trace === this.chosen),
      "aria-setsize": this.shown.length,
      "aria-posinset": index + 1,
      onclick: () => this.choose(trace, true),
    };
    if (trace.length === 0) {
      const layers = count(trace.loose.length, "group");
      return el("div", options, el("div", { class: "line" }, el("b", {}, "Layers without a trace")),
        el("div", { class: "line dim" }, layers), badges(trace));
    }
    const more = trace.spans.filter((span) => span.parent < 0).length - 1;
    return el("div", options,
      el("div", { class: "line" },
        el("b", { class: "cut" }, foreign(trace.root.name), more > 0 ? ` and ${more} more` : ""),
        el("span", { class: "num" }, duration(trace.duration))),
      el("div", { class: "line dim" },
        el("span", { class: "cut" }, clock(trace.start).slice(5, -4), " · ", count(trace.length, "span"), " · ",
          foreign(trace.services.join(", ") || "unknown service")),
        badges(trace)),
      stages(trace));
  }
}

// What is wrong with a trace or a span, in as many words.
export function badges(marked, without = "") {
  const wrong = FLAGS.filter(([flag]) => marked.flags.has(flag) && flag !== without);
  return el("span", { class: "badges" }, wrong.map(([flag, , , mark]) => el("span", { class: `badge ${flag}` }, mark)));
}

// A thin bar: the stages of the trace by their share of its time.
function stages(trace) {
  trace.stages ??= selfTimes(trace);
  return el("div", { class: "stages thin", "aria-hidden": "true" },
    trace.stages.map(([kind, time]) => el("i", { class: `fill ${kind}`, style: { flexGrow: String(time) } })));
}
