// The recording, as the page works with it.  The layout of the data is told in viewer/page_data.py.

export const KINDS = {
  http: "HTTP",
  embed: "Embedding",
  search: "Retrieval",
  llm: "Model API",
  model: "In-process model",
  store: "Store",
  other: "Other",
};

// What traces can be filtered by, and spans are marked with: [flag, filter, meaning, mark].
export const FLAGS = [
  ["error", "Errors", "a span failed", "error"],
  ["nonfinite", "Non-finite", "NaN or Inf in a layer", "NaN/Inf"],
  ["empty", "Empty retrieval", "a search found nothing", "empty"],
  ["skipped", "Not recorded", "layer runs that the budget left out", "not recorded"],
];

const FLAG_KEYS = {
  nonfinite: ["neuronscope.layers.non_finite", (value) => value > 0],
  empty: ["neuronscope.retrieval.empty", (value) => value === true],
  skipped: ["neuronscope.layers.skipped", (value) => value > 0],
};

class Span {
  constructor(row, index, trace, recording) {
    [this.parent, this.depth, this.name, this.kind, this.error, this.service, this.library] = row;
    [this.start, this.duration, this.id, this.facts, this.shape, this.values, this.extra] = row.slice(7);
    this.index = index;
    this.trace = trace;
    this.name = recording.names[this.name];
    this.library = recording.names[this.library];
    this.service = recording.services[this.service];
    this.error = this.error === 1;
    this.grids = [];
    this.flags = new Set(this.error ? ["error"] : []);
    this.keys = recording.shapes[this.shape];
    this.about = recording.keys;
  }

  get end() {
    return this.start + this.duration;
  }

  // [key, value] pairs, each key with what page_data.py says about it.
  get attributes() {
    return this.keys.map((key, place) => [this.about[key], this.values[place]]);
  }

  get(name) {
    const place = this.keys.findIndex((key) => this.about[key][0] === name);
    return place < 0 ? undefined : this.values[place];
  }

  number(name) {
    const value = this.get(name);
    return typeof value === "number" ? value : undefined;
  }
}

class Trace {
  constructor([id, first, length, start], index) {
    Object.assign(this, { id, index, start, flags: new Set(), loose: [] });
    this.first = first;
    this.length = length;
    this.spans = [];
    this.services = [];
    this.duration = 0;
  }

  get root() {
    return this.spans[0];
  }
}

export function read(document) {
  const recording = { ...document, traces: [], spans: new Array(document.spans.length) };
  for (const [index, row] of document.traces.entries()) {
    const trace = new Trace(row, index);
    recording.traces.push(trace);
    for (let number = trace.first; number < trace.first + trace.length; number++) {
      const span = new Span(document.spans[number], number, trace, recording);
      recording.spans[number] = span;
      trace.spans.push(span);
      trace.duration = Math.max(trace.duration, span.end);
      if (span.service && !trace.services.includes(span.service)) trace.services.push(span.service);
      if (span.error) trace.flags.add("error");
    }
  }
  placeGrids(recording);
  setFlags(recording);
  return recording;
}

// Grids go to their span; else to their trace; else to a trace of their own, so that none is hidden.
function placeGrids(recording) {
  const byId = new Map(recording.traces.map((trace) => [trace.id, trace]));
  const lost = [];
  for (const grid of recording.grids) {
    const span = recording.spans[grid.span];
    const trace = span ? span.trace : byId.get(grid.trace);
    if (span) {
      span.grids.push(grid);
      if (grid.non_finite.length > 0) span.flags.add("nonfinite");
    } else {
      (trace?.loose ?? lost).push(grid);
    }
    if (trace && grid.non_finite.length > 0) trace.flags.add("nonfinite");
  }
  if (lost.length === 0) return;
  const trace = new Trace(["", 0, 0, 0], recording.traces.length);
  trace.loose = lost;
  if (lost.some((grid) => grid.non_finite.length > 0)) trace.flags.add("nonfinite");
  recording.traces.push(trace);
}

function setFlags(recording) {
  for (const [flag, [name, test]] of Object.entries(FLAG_KEYS)) {
    const key = recording.keys.findIndex((about) => about[0] === name);
    const places = recording.shapes.map((shape) => shape.indexOf(key));
    for (const span of recording.spans) {
      const place = places[span.shape];
      if (place < 0 || !test(span.values[place])) continue;
      span.flags.add(flag);
      span.trace.flags.add(flag);
    }
  }
}

// Time of a span that none of its children accounts for, in µs, by kind: where the time of a trace went.
export function selfTimes(trace) {
  const covered = new Map();
  const children = new Map();
  for (const span of trace.spans) {
    if (span.parent < 0) continue;
    if (!children.has(span.parent)) children.set(span.parent, []);
    children.get(span.parent).push(span);
  }
  for (const span of trace.spans) {
    let own = Math.max(0, span.duration);
    let reached = span.start;
    const inside = (children.get(span.index) ?? []).sort((a, b) => a.start - b.start);
    for (const child of inside) {
      const from = Math.max(reached, child.start);
      const to = Math.min(span.end, child.end);
      if (to > from) own -= to - from;
      reached = Math.max(reached, to);
    }
    covered.set(span.kind, (covered.get(span.kind) ?? 0) + Math.max(0, own));
  }
  return [...covered].filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1]);
}
