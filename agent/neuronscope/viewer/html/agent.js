// What the recording says about itself: the agent's cost and fidelity, what was lost, who recorded.

import { clock, count, duration, el, foreign, percent, shown, significant } from "./text.js";

// The state of the recording in two words, for the button that opens the rest.
export function state(recording) {
  if (recording.agent.damage.length > 0) return ["damaged", "bad"];
  if (lost(recording).length > 0) return ["losses", "bad"];
  if (recording.notes.length > 0) return ["in part", "warn"];
  if (fidelity(recording).skipped > 0) return ["budget reached", "warn"];
  return ["complete", "good"];
}

export function report(recording) {
  const { agent } = recording;
  return [
    list("Damage", agent.damage, "Everything that was written could be read."),
    list("Lost by the agent", lost(recording), "The recording tells of no loss."),
    recording.notes.length > 0 ? list("Not in this page", recording.notes) : null,
    fidelityOf(recording),
    cost(recording),
    processes(agent),
    log(agent),
  ];
}

function list(heading, lines, otherwise) {
  return el("section", {}, el("h3", {}, heading),
    lines.length === 0 ? el("p", { class: "dim" }, otherwise)
      : el("ul", {}, lines.map((line) => el("li", { class: "absent" }, foreign(line)))));
}

function lost(recording) {
  const sums = new Map();
  for (const [name, , pairs] of recording.agent.events) {
    if (name !== "nsz.lost") continue;
    const { item, reason, count: number } = Object.fromEntries(pairs);
    const key = `${item}: ${reason}`;
    sums.set(key, (sums.get(key) ?? 0) + (typeof number === "number" ? number : 0));
  }
  return [...sums].map(([key, number]) => `${count(number)} × ${key}`);
}

function fidelity(recording) {
  const found = { calls: new Map(), records: 0, skipped: 0, reasons: new Set(), bad: 0 };
  for (const span of recording.spans) {
    const level = span.get("neuronscope.fidelity");
    if (level === undefined) continue;
    found.calls.set(level, (found.calls.get(level) ?? 0) + 1);
    found.records += span.number("neuronscope.layers.records") ?? 0;
    found.bad += span.number("neuronscope.layers.non_finite") ?? 0;
    const skipped = span.number("neuronscope.layers.skipped") ?? 0;
    found.skipped += skipped;
    if (skipped > 0) found.reasons.add(String(span.get("neuronscope.fidelity.reason") ?? "unknown why"));
  }
  return found;
}

function fidelityOf(recording) {
  const { calls, records, skipped, reasons, bad } = fidelity(recording);
  const here = recording.grids.reduce((sum, grid) => sum + grid.records, 0);
  const lines = [...calls].map(([level, number]) => [`calls at fidelity ${level}`, count(number)]);
  lines.push(["layer runs recorded", `${count(records)} counted by the spans, ${count(here)} in this page`]);
  const why = [...reasons].join(", ");
  lines.push(["layer runs not recorded", skipped ? `${count(skipped)}, ${percent(skipped, records + skipped)}: ${why}` : "none"]);
  lines.push(["NaN and Inf in layers", count(bad)]);
  return el("section", {}, el("h3", {}, "Fidelity"), definitions(lines));
}

// The agent's cost, wherever the recording tells it: attributes of spans and of the agent's own events.
function cost(recording) {
  const figures = new Map();
  const take = (key, value) => {
    if (!key.startsWith("neuronscope.overhead.")) return;
    if (!figures.has(key)) figures.set(key, []);
    figures.get(key).push(value);
  };
  for (const span of recording.spans) span.attributes.forEach(([about, value]) => take(about[0], value));
  for (const [, , pairs] of recording.agent.events) pairs.forEach(([key, value]) => take(key, value));
  const lines = [...figures].map(([key, values]) => {
    const numbers = values.filter((value) => typeof value === "number");
    const last = values[values.length - 1];
    const most = numbers.length > 1 ? `, at most ${significant(numbers.reduce((a, b) => Math.max(a, b)))}` : "";
    return [key.slice("neuronscope.overhead.".length).replaceAll("_", " "), `${shown(last)}${most}`];
  });
  return el("section", {}, el("h3", {}, "Cost of observing"),
    lines.length > 0 ? definitions(lines)
      : el("p", { class: "dim" }, "This recording holds no figure of it. The process's /metrics page does: neuronscope_overhead_accounted_ratio."));
}

function processes(agent) {
  return el("section", {}, el("h3", {}, "Recorded by"),
    agent.resources.map((pairs) => {
      const name = pairs.find(([key]) => key === "service.name")?.[1] ?? "unknown service";
      return el("details", {}, el("summary", {}, foreign(shown(name), { class: "process" })), definitions(pairs));
    }));
}

function log(agent) {
  if (agent.events.length === 0) return null;
  return el("section", {}, el("h3", {}, "The agent's log"),
    agent.events_left_out ? el("p", { class: "absent" }, `${count(agent.events_left_out)} older entries are not in this page`) : null,
    el("ul", {}, agent.events.map(([name, at, pairs]) => el("li", {}, el("span", { class: "dim" }, `${clock(at)} `),
      foreign(`${name} ${pairs.map(([key, value]) => `${key}=${shown(value)}`).join(" ")}`)))));
}

function definitions(pairs) {
  return el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, foreign(name)), el("dd", {}, foreign(shown(value)))]));
}

const KEYS = [
  ["j k", "next and previous, in the list or in the trace"],
  ["Enter", "into the trace; on a span: open or close what is below it"],
  ["Esc", "back: close, clear the search, out of the trace"],
  ["/", "search"],
  ["J K", "next and previous trace, from anywhere"],
  ["e", "next failed span"],
  ["m", "next metric of the heat map"],
  ["n", "next NaN or Inf in the heat map"],
  ["t", "light, dark, or as the system"],
  ["?", "this help"],
];
const SEARCHES = [
  ["qdrant timeout", "both words, in names, ids, attributes or messages"],
  ["model=smol", "an attribute whose key contains “model” and whose value contains “smol”"],
  ["margin<0.05", "a number in an attribute whose key contains “margin”"],
  ["ms>500", "a span that took longer than 500 ms"],
  ["is:error", "also is:nonfinite, is:empty, is:skipped"],
];

export function help(opened) {
  const rows = (pairs) => el("dl", { class: "keys" }, pairs.map(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)]));
  return [
    el("section", {}, el("h3", {}, "Keys"), rows(KEYS)),
    el("section", {}, el("h3", {}, "Search"), rows(SEARCHES)),
    el("p", { class: "dim" }, `This page is one file, loads nothing, and was ready ${duration(opened * 1000)} after it was opened.`),
  ];
}
