// A trace as a waterfall: its spans as a tree, each with its time on a common axis, across processes.

import { KINDS, selfTimes } from "./data.js";
import { clock, count, duration, el, foreign, percent } from "./text.js";
import { Rows } from "./scrolling.js";
import { badges } from "./traces.js";

const ROW = 44;
const MAX_INDENT = 14;

export class Waterfall {
  // choose(span, entered): called when a span is chosen.
  constructor(trace, choose, matches) {
    Object.assign(this, { trace, choose, matches, chosen: null, closed: new Set() });
    this.box = el("div", { class: "rows waterfall", role: "tree", tabindex: "0", "aria-label": "Spans" });
    this.parents = new Set(trace.spans.map((span) => span.parent));
    this.rows = new Rows(this.box, ROW, (index) => this.row(this.open[index]));
    this.element = el("section", { class: "spans" }, axis(trace.duration), this.box);
    this.arrange();
  }

  // Spans below a closed one are not listed; they follow it, deeper, in depth-first order.
  arrange() {
    this.open = [];
    let hiddenBelow = Infinity;
    for (const span of this.trace.spans) {
      if (span.depth > hiddenBelow) continue;
      hiddenBelow = this.closed.has(span) ? span.depth : Infinity;
      this.open.push(span);
    }
    this.rows.show(this.open.length);
  }

  toggle(span) {
    if (!span || !this.parents.has(span.index)) return;
    if (!this.closed.delete(span)) this.closed.add(span);
    this.arrange();
  }

  move(by) {
    const at = this.open.indexOf(this.chosen);
    const next = Math.min(this.open.length - 1, Math.max(0, at + by));
    if (this.open[next]) this.choose(this.open[next], false);
  }

  mark(span) {
    if (!this.open.includes(span)) {
      this.closed.clear();
      this.arrange();
    }
    this.chosen = span;
    this.box.setAttribute("aria-activedescendant", `span-${span.index}`);
    this.rows.reveal(this.open.indexOf(span));
  }

  row(span) {
    const above = this.trace.spans[span.parent - this.trace.first];
    const inner = this.parents.has(span.index);
    const caret = el("span", {
      class: inner ? "caret" : "caret none",
      "aria-hidden": "true",
      onclick: (event) => {
        event.stopPropagation();
        this.toggle(span);
      },
    }, inner ? (this.closed.has(span) ? "▸" : "▾") : "");
    const name = el("div", { class: "line" }, caret,
      el("b", { class: "cut" }, foreign(span.name)),
      span.service && span.service !== above?.service ? foreign(span.service, { class: "process" }) : null,
      span.error ? el("span", { class: "badge error" }, foreign(String(span.get("error.type") ?? "error"))) : null,
      badges(span, "error"));
    const facts = el("div", { class: "dim facts cut" }, foreign(span.facts.join(" · ")));
    return el("div", {
      class: `row ${span.error ? "failed" : ""} ${this.matches(span) ? "match" : ""}`,
      id: `span-${span.index}`,
      role: "treeitem",
      "aria-level": span.depth + 1,
      "aria-selected": String(span === this.chosen),
      "aria-expanded": inner ? String(!this.closed.has(span)) : undefined,
      onclick: () => this.choose(span, true),
    },
      el("div", { class: "label", style: { paddingLeft: `${Math.min(span.depth, MAX_INDENT) * 14}px` } }, name, facts),
      el("div", { class: "lane", "aria-hidden": "true" }, bar(span, this.trace.duration)),
      el("div", { class: "num" }, duration(span.duration)));
  }
}

// The bar of a span; of a stream or a generation, the time to its first chunk or token is set off.
function bar(span, total) {
  const share = (time) => `${Math.min(100, Math.max(0, (100 * time) / Math.max(total, 1e-3)))}%`;
  const first = span.number("gen_ai.response.time_to_first_chunk") ?? span.number("neuronscope.model.prefill.duration");
  const wait = first !== undefined && span.duration > 0 ? (1e6 * first) / span.duration : 0;
  const marks = (span.extra?.events ?? []).slice(0, 20).map(([, at]) =>
    el("u", { style: { left: share(at) } }));
  const style = { left: share(span.start), width: share(span.duration) };
  return [el("i", { class: `fill ${span.kind} ${span.error ? "bad" : ""}`, style },
    wait > 0 && wait < 1 ? el("s", { style: { width: `${100 * wait}%` } }) : null), ...marks];
}

function axis(total) {
  const rough = total / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let at = 0; at <= total && ticks.length < 8; at += step) {
    ticks.push(el("span", { style: { left: `${(100 * at) / Math.max(total, 1e-3)}%` } }, at === 0 ? "0" : duration(at)));
  }
  return el("div", { class: "axis", "aria-hidden": "true" }, el("div"), el("div", { class: "lane" }, ticks), el("div"));
}

// What is above the waterfall: the trace's name, when it was, and where its time went.
export function heading(trace) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";
  trace.stages ??= selfTimes(trace);
  const all = trace.stages.reduce((sum, [, time]) => sum + time, 0);
  return el("div", { class: "heading" },
    el("div", { class: "line" },
      el("h2", { class: "cut" }, foreign(trace.root.name)),
      el("span", { class: "big" }, duration(trace.duration))),
    el("div", { class: "dim" },
      `${clock(trace.start)} (${zone}) · ${count(trace.length, "span")} · `,
      foreign(trace.services.join(" → ") || "unknown service"), " · trace ",
      el("code", { class: "id" }, trace.id)),
    el("div", { class: "stages", "aria-hidden": "true" },
      trace.stages.map(([kind, time]) => el("i", { class: `fill ${kind}`, style: { flexGrow: String(time) } }))),
    el("ul", { class: "legend", "aria-label": "Where the time went" },
      trace.stages.map(([kind, time]) =>
        el("li", {}, el("i", { class: `fill ${kind}`, "aria-hidden": "true" }), `${KINDS[kind]} `,
          el("span", { class: "dim" }, `${duration(time)}, ${percent(time, all)}`)))));
}
