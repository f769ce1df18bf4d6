// One span in full: what failed, the figures that matter, documents, layers, and every attribute.

import { KINDS } from "./data.js";
import { clock, count, duration, el, foreign, percent, shown, significant } from "./text.js";
import { HeatMap, METRICS } from "./heatmap.js";

const MAX_HITS = 100;
const LONG = 400;
// These are shown as documents and layers; in the list of attributes they would only be long.
const SHOWN_ELSEWHERE = new Set([
  "neuronscope.retrieval.ids",
  "neuronscope.retrieval.scores",
  "neuronscope.layers.ids",
  "neuronscope.layers.mean",
  "neuronscope.layers.std",
  "neuronscope.layers.abs_max",
]);

export class Details {
  constructor(recording) {
    this.recording = recording;
    this.metric = "abs_max";
    this.map = null;
    this.element = el("section", { class: "details", "aria-label": "Span", "aria-live": "off" });
  }

  show(span) {
    this.map = null;
    this.element.replaceChildren(
      title(span),
      ...present([errors(span), figures(span), documents(span), this.layers(span), this.loose(span.trace, span)]),
      el("div", { class: "cards" }, ...attributes(span, this.recording.groups), ...present([events(span), identity(span)])));
  }

  // Layers that belong to no span of the page.
  showLoose(trace) {
    this.map = null;
    this.element.replaceChildren(...present([this.loose(trace, trace.root)]));
  }

  layers(span) {
    if (span.grids.length === 0) return aggregates(span);
    return this.card(`Layers of ${span.grids[0].model}`, span.grids, span);
  }

  loose(trace, span) {
    if (trace.loose.length === 0 || span !== trace.root) return null;
    return this.card("Layers that belong to no span here", trace.loose, null);
  }

  card(title, grids, span) {
    const place = el("div");
    const draw = (packed) => {
      const why = reason(span, packed.layers.length * packed.width - packed.records);
      this.map = new HeatMap(packed, why, this.metric, (metric) => { this.metric = metric; });
      place.replaceChildren(health(packed, span, this.map), this.map.element, table(packed, this.map.grid));
      this.map.draw();
    };
    const choice = grids.length > 1
      ? el("select", { "aria-label": "Which layers", onchange: (event) => draw(grids[event.target.value]) },
        grids.map((grid, number) => el("option", { value: String(number) }, `${grid.model}, ${grid.role} ${grid.index}`)))
      : null;
    queueMicrotask(() => draw(grids[0]));
    return el("section", { class: "card wide layers" }, el("h3", {}, foreign(title), choice), place);
  }
}

function present(parts) {
  return parts.filter((part) => part !== null);
}

function title(span) {
  const process = span.service ? [" in ", foreign(span.service, { class: "process" })] : [];
  return el("div", { class: "span-title" },
    el("h2", {}, el("i", { class: `fill dot ${span.kind}`, "aria-hidden": "true" }), foreign(span.name)),
    el("div", { class: "dim" }, KINDS[span.kind], ...process, ` · ${duration(span.duration)}`,
      ` · begins at ${duration(span.start)}`));
}

function errors(span) {
  const failed = (span.extra?.events ?? []).filter(([name]) => name === "exception");
  if (!span.error && failed.length === 0) return null;
  const lines = failed.flatMap(([, , pairs]) => pairs.map(([key, value]) => [key, shown(value)]));
  return el("section", { class: "card wide failure" },
    el("h3", {}, "Failed: ", foreign(String(span.get("error.type") ?? "error"))),
    span.extra?.message ? el("p", {}, foreign(span.extra.message)) : null,
    lines.map(([key, text]) => el("p", {}, el("span", { class: "dim" }, foreign(key), " "), foreign(text, { class: "pre" }))));
}

// --- figures -------------------------------------------------------------------------------------

function figures(span) {
  const tiles = present([...tokens(span), ...stream(span), ...generation(span), ...search(span)]);
  return tiles.length === 0 ? null : el("div", { class: "tiles" }, tiles);
}

function tile(label, value, note = "", tone = "") {
  return el("div", { class: `tile ${tone}` }, el("span", { class: "dim" }, label), el("b", {}, foreign(String(value))),
    note ? el("span", { class: "dim" }, foreign(note)) : null);
}

function tokens(span) {
  const read = span.number("gen_ai.usage.input_tokens");
  const written = span.number("gen_ai.usage.output_tokens");
  if (read === undefined && written === undefined) return [];
  const parts = [
    ["gen_ai.usage.cache_read.input_tokens", "from cache"],
    ["gen_ai.usage.cache_write.input_tokens", "to cache"],
    ["gen_ai.usage.reasoning.output_tokens", "reasoning"],
  ].flatMap(([key, label]) => (span.number(key) === undefined ? [] : `${count(span.number(key))} ${label}`));
  const text = [read, written].map((number) => (number === undefined ? "?" : count(number))).join(" → ");
  return [tile("tokens in → out", text, parts.join(", "))];
}

function stream(span) {
  const first = span.number("gen_ai.response.time_to_first_chunk");
  const chunks = span.number("neuronscope.stream.chunks");
  const end = span.get("neuronscope.stream.end");
  const finish = span.get("gen_ai.response.finish_reasons");
  const tiles = [];
  if (first !== undefined) {
    tiles.push(tile("first chunk after", duration(first * 1e6), `${percent(first * 1e6, span.duration)} of the call`));
  }
  if (chunks !== undefined && first !== undefined && chunks > 1) {
    tiles.push(tile("between chunks", duration((span.duration - first * 1e6) / (chunks - 1)), `${count(chunks)} chunks, on average`));
  }
  if (finish !== undefined) tiles.push(tile("finish", shown(finish), "", finish.includes?.("length") ? "warn" : ""));
  if (end !== undefined && end !== "complete") tiles.push(tile("stream ended", end, "", "warn"));
  return tiles;
}

function generation(span) {
  const prefill = span.number("neuronscope.model.prefill.duration");
  const decode = span.number("neuronscope.model.decode.duration");
  const rate = span.number("neuronscope.model.decode.tokens_per_second");
  const forwards = span.number("neuronscope.model.forwards");
  return [
    forwards === undefined ? null : tile("forward passes", count(forwards)),
    prefill === undefined ? null : tile("prefill", duration(prefill * 1e6)),
    decode === undefined ? null : tile("decoding", duration(decode * 1e6), rate === undefined ? "" : `${significant(rate, 3)} tokens/s`),
  ];
}

function search(span) {
  if (span.get("gen_ai.operation.name") !== "retrieval") return [];
  const [best, worst, margin] = ["top_score", "kth_score", "margin"].map((name) => span.number(`neuronscope.retrieval.${name}`));
  const returned = span.number("neuronscope.retrieval.returned");
  const asked = span.number("gen_ai.retrieval.top_k");
  const empty = span.get("neuronscope.retrieval.empty") === true;
  return [
    returned === undefined ? null
      : tile("documents", `${count(returned)}${asked === undefined ? "" : ` of ${count(asked)}`}`, empty ? "EMPTY" : "", empty ? "bad" : ""),
    best === undefined ? null : tile("best score", significant(best), span.get("neuronscope.retrieval.metric") ?? ""),
    worst === undefined ? null : tile("worst returned", significant(worst)),
    margin === undefined ? null : tile("margin", significant(margin, 3), "best to worst, relative"),
  ];
}

// --- documents -----------------------------------------------------------------------------------

function documents(span) {
  const ids = span.get("neuronscope.retrieval.ids");
  if (!Array.isArray(ids) || ids.length === 0) return null;
  const scores = span.get("neuronscope.retrieval.scores");
  const scored = ids.map((_, place) => (Array.isArray(scores) && typeof scores[place] === "number" ? scores[place] : null));
  const known = scored.filter((score) => score !== null);
  const reach = Math.max(1e-12, ...known.map(Math.abs));
  const rows = ids.slice(0, MAX_HITS).map((id, place) => {
    const score = scored[place];
    const next = place + 1 < scored.length ? scored[place + 1] : null;
    const step = score !== null && next !== null ? significant(score - next, 3) : "";
    const length = score === null ? "0" : `${(100 * Math.abs(score)) / reach}%`;
    return el("tr", {},
      el("td", { class: "num" }, String(place + 1)),
      el("td", { class: "key" }, foreign(String(id), { class: "mono" })),
      el("td", { class: "num" }, score === null ? "no score" : significant(score)),
      el("td", { class: "meter" }, el("i", { class: `fill search ${score < 0 ? "negative" : ""}`, style: { width: length } })),
      el("td", { class: "num dim" }, step));
  });
  const left = ids.length - rows.length;
  return el("section", { class: "card wide" },
    el("h3", {}, "Documents retrieved"),
    el("table", { class: "documents" },
      el("thead", {}, el("tr", {}, ["#", "id", "score", "", "to the next"].map((text, place) =>
        el("th", { scope: "col", class: place === 1 || place === 3 ? "" : "num" }, text)))),
      el("tbody", {}, rows)),
    left > 0 ? el("p", { class: "dim" }, `and ${count(left)} more`) : null);
}

// --- layers --------------------------------------------------------------------------------------

// Why a cell can be empty: the span counts what it left out; what is missing beyond that was lost on the
// way, or is elsewhere.
function reason(span, missing = 0) {
  const skipped = span?.number("neuronscope.layers.skipped") ?? 0;
  if (skipped === 0) return "not in this recording";
  const why = String(span.get("neuronscope.fidelity.reason") ?? "left out");
  return missing > skipped ? `${why}, or not in this recording` : why;
}

function health(packed, span, map) {
  const { grid } = map;
  const parts = [];
  const bad = grid.bad.size;
  if (bad > 0) {
    parts.push(el("button", { type: "button", class: "badge nonfinite", title: "Go to the next one", onclick: () => map.seekBad() },
      `${count(bad, "cell")} with NaN or Inf – show`));
  } else if (grid.known > 0) {
    parts.push(el("span", { class: "good" }, `${count(grid.known, "cell")}, all finite`));
  }
  if (grid.known < grid.cells.length) {
    parts.push(el("b", { class: "absent" }, `${count(grid.cells.length - grid.known, "cell")} without statistics`));
  }
  const skipped = span?.number("neuronscope.layers.skipped") ?? 0;
  if (grid.missing > 0) parts.push(el("b", { class: "absent" }, `${count(grid.missing)} of ${count(grid.records.length)} cells not recorded: ${map.why}`));
  if (skipped > grid.missing) parts.push(el("b", { class: "absent" }, `${count(skipped)} layer runs not recorded in all`));
  const counted = span?.number("neuronscope.layers.records") ?? 0;
  if (span?.grids.length === 1 && counted > packed.records + packed.repeated) {
    parts.push(el("b", { class: "absent" }, `the call counted ${count(counted)} records, ${count(packed.records)} are here`));
  }
  if (packed.left_out) parts.push(el("b", { class: "absent" }, `${count(packed.left_out)} records left out of this page: too many cells`));
  if (packed.repeated) parts.push(el("span", { class: "dim" }, `${count(packed.repeated)} records repeat a cell; the last is shown`));
  const never = span?.get("neuronscope.layers.not_visited");
  if (Array.isArray(never) && never.length > 0) {
    parts.push(el("span", { class: "absent" }, `${count(never.length, "layer")} not visited: `, foreign(never.slice(0, 12).join(", "))));
  }
  if (span?.number("neuronscope.model.prefill.duration") !== undefined) parts.push(el("span", { class: "dim" }, "step 0 is the prefill"));
  return el("p", { class: "health" }, parts);
}

// The same by layer, for those who read rather than look.
function table(packed, grid) {
  const draw = (details) => {
    if (!details.open || details.children.length > 1) return;
    const lines = packed.layers.map(() => ({ records: 0, mean: 0, std: 0, max: 0, bad: 0 }));
    for (const [record, cell] of grid.cells.entries()) {
      const line = lines[Math.floor(cell / grid.width)];
      line.records++;
      if (grid.bad.has(record)) line.bad++;
      if (Number.isNaN(grid.planes.mean[record])) continue;
      line.mean += grid.planes.mean[record];
      line.std += grid.planes.std[record];
      line.max = Math.max(line.max, grid.planes.abs_max[record]);
    }
    const heads = ["layer", "steps recorded", "mean", "std", "abs-max", "with NaN or Inf"];
    const rows = lines.slice(0, 1000).map((line, row) => el("tr", {},
      el("td", {}, foreign(packed.layers[row], { class: "mono" })),
      el("td", { class: "num" }, `${count(line.records)} of ${count(grid.width)}`),
      [line.mean / line.records, line.std / line.records, line.max].map((value) => el("td", { class: "num" }, significant(value))),
      el("td", { class: line.bad ? "num bad" : "num" }, count(line.bad))));
    details.append(el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place ? "num" : "" }, head)))),
      el("tbody", {}, rows))));
  };
  return el("details", { ontoggle: (event) => draw(event.target) }, el("summary", {}, "As a table, averaged over the steps"));
}

// Without layer records in the page: what the span itself tells of its layers.
function aggregates(span) {
  const ids = span.get("neuronscope.layers.ids");
  const skipped = span.number("neuronscope.layers.skipped") ?? 0;
  if (!Array.isArray(ids) && skipped === 0) return null;
  const records = span.number("neuronscope.layers.records") ?? 0;
  const list = (name) => span.get(`neuronscope.layers.${name}`) ?? [];
  const value = (name, place, digits) => (typeof list(name)[place] === "number" ? significant(list(name)[place], digits) : "unknown");
  const estimate = (name, place) => (list(`${name}.error`).length === 0 ? value(name, place) : `${value(name, place)} ± ${value(`${name}.error`, place, 2)}`);
  const columns = [...METRICS.slice(0, 3).map(([name, label]) => [label, (place) => estimate(name, place)]),
    ...(list("decode.mean").length === 0 ? [] : [
      ["mean, prefill", (place) => value("prefill.mean", place)],
      ["mean, decoding", (place) => estimate("decode.mean", place)]])];
  return el("section", { class: "card wide" }, el("h3", {}, "Layers, averaged over the call"),
    records > 0 ? el("p", { class: "absent" }, `The call counted ${count(records)} layer records; they are not in this page.`) : null,
    skipped > 0 ? el("p", { class: "absent" }, el("b", {}, `${count(skipped)} layer runs not recorded: ${reason(span)}`)) : null,
    Array.isArray(ids) ? el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["layer", ...columns.map(([label]) => label)].map((head, place) =>
        el("th", { scope: "col", class: place ? "num" : "" }, head)))),
      el("tbody", {}, ids.map((id, place) => el("tr", {}, el("td", {}, foreign(String(id), { class: "mono" })),
        columns.map(([, shows]) => el("td", { class: "num" }, shows(place)))))))) : null);
}

// --- attributes ----------------------------------------------------------------------------------

function attributes(span, groups) {
  const byGroup = new Map(groups.map((group) => [group, []]));
  for (const [about, value] of span.attributes) {
    if (!SHOWN_ELSEWHERE.has(about[0])) byGroup.get(about[1])?.push([about, value]);
  }
  return [...byGroup].filter(([, found]) => found.length > 0).map(([group, found]) =>
    el("section", { class: "card" }, el("h3", {}, group), el("dl", {}, found.map(([about, value]) => pair(about, value)))));
}

function pair([key, , name, meaning], value) {
  const text = shown(value);
  const term = el("dt", { title: meaning ? `${key}: ${meaning}` : key }, foreign(name));
  if (text.length <= LONG) return [term, el("dd", {}, foreign(text))];
  return [term, el("dd", {}, el("details", {}, el("summary", {}, foreign(`${text.slice(0, 120)}…`)), foreign(text, { class: "pre" })))];
}

function events(span) {
  const { events: found = [], links = [], dropped = 0 } = span.extra ?? {};
  if (found.length + links.length + dropped === 0) return null;
  return el("section", { class: "card" }, el("h3", {}, "Events and links"),
    found.map(([name, at, pairs]) => event(name, at, pairs)),
    links.map(([trace, id]) => el("p", {}, "linked to ", el("code", {}, `${trace} ${id}`))),
    dropped ? el("p", { class: "absent" }, `${count(dropped)} attributes, events or links were dropped`) : null);
}

// Short ones on a line; those with content as a list that opens.
function event(name, at, pairs) {
  const head = [el("b", {}, foreign(name)), el("span", { class: "dim" }, ` at ${duration(at)} `)];
  const line = pairs.map(([key, value]) => `${key}=${shown(value)}`).join(" ");
  if (line.length <= LONG) return el("p", {}, head, foreign(line));
  return [el("p", {}, head), el("dl", {}, pairs.map(([key, value]) => pair([key, "", key, ""], value)))];
}

function identity(span) {
  const pairs = [
    ["span", span.id],
    ["trace", span.trace.id],
    ["began", clock(span.trace.start + span.start)],
    ["recorded by", span.library],
  ];
  return el("section", { class: "card" }, el("h3", {}, "Span"),
    el("dl", {}, pairs.map(([name, text]) => [el("dt", {}, name), el("dd", {}, foreign(text, { class: "mono" }))])));
}
