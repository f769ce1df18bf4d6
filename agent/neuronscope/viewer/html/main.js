// Puts the page together: state, keys, theme, and the address of what is shown.

import { read } from "./data.js";
import { count, el, foreign } from "./text.js";
import { matcher } from "./search.js";
import { TraceList } from "./traces.js";
import { heading, Waterfall } from "./waterfall.js";
import { Details } from "./details.js";
import { help, report, state } from "./agent.js";

const THEMES = [["", "◐ auto"], ["light", "☀ light"], ["dark", "☾ dark"]];
const at = (id) => document.getElementById(id);

const recording = read(JSON.parse(at("data").textContent));
const details = new Details(recording);
let waterfall = null;
let shownTrace = null;
let opened = 0;

const list = new TraceList(recording, (trace, entered) => {
  showTrace(trace);
  if (entered) enter("trace");
});
list.onsearch = () => {
  if (!waterfall) return;
  waterfall.matches = matcher(list.query);
  waterfall.rows.refresh();
};

function showTrace(trace, span) {
  shownTrace = trace;
  list.mark(trace);
  const back = el("button", { type: "button", class: "back", onclick: () => enter("list") }, "‹ all traces");
  if (trace.length === 0) {
    waterfall = null;
    details.showLoose(trace);
    at("trace").replaceChildren(back, el("h2", {}, "Layers without a trace"), details.element);
    return;
  }
  waterfall = new Waterfall(trace, showSpan, matcher(list.query));
  at("trace").replaceChildren(back, heading(trace), waterfall.element, details.element);
  at("trace").scrollTop = 0;
  showSpan(span ?? telling(trace));
}

// The span to begin with: what failed, what is not finite, else the model's own call, else the root.
function telling(trace) {
  const spans = trace.spans;
  return spans.findLast((span) => span.error)
    ?? spans.find((span) => span.grids.some((grid) => grid.non_finite.length > 0))
    ?? spans.find((span) => span.get("neuronscope.retrieval.empty") === true)
    ?? spans.findLast((span) => span.grids.length > 0)
    ?? trace.root;
}

function showSpan(span, entered = false) {
  waterfall.mark(span);
  details.show(span);
  if (entered) waterfall.box.focus({ preventScroll: true });
  history.replaceState(null, "", `#${span.trace.id}-${span.id}`);
}

// On a narrow screen only one of the two panes is shown.
function enter(pane) {
  document.body.dataset.pane = pane;
  if (pane === "list") list.box.focus({ preventScroll: true });
  else waterfall?.box.focus({ preventScroll: true });
}

function inTrace() {
  return at("trace").contains(document.activeElement);
}

// --- dialogs ---------------------------------------------------------------------------------------

function open(title, parts) {
  const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => at("dialog").close() }, "×");
  at("dialog").replaceChildren(el("div", { class: "line" }, el("h2", { id: "dialog-title" }, title), close),
    ...parts.filter((part) => part !== null));
  at("dialog").showModal();
}

const showAgent = () => open("This recording", report(recording));
const showHelp = () => open("Keys and search", help(opened));

// --- theme -----------------------------------------------------------------------------------------

// Storage can be forbidden to a page that was opened from a file.
function remembered(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name) ?? "";
    localStorage.setItem(name, value);
  } catch {
    return "";
  }
  return value;
}

function setTheme(theme) {
  const [name, label] = THEMES.find(([known]) => known === theme) ?? THEMES[0];
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  at("theme").textContent = label;
  details.map?.draw();
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "";
  const [next] = THEMES[(THEMES.findIndex(([name]) => name === now) + 1) % THEMES.length];
  remembered("neuronscope.theme", next);
  setTheme(next);
}

// --- keys ------------------------------------------------------------------------------------------

const KEYS = {
  j: () => (inTrace() && waterfall ? waterfall.move(1) : list.move(1)),
  k: () => (inTrace() && waterfall ? waterfall.move(-1) : list.move(-1)),
  J: () => list.move(1),
  K: () => list.move(-1),
  "/": () => {
    document.body.dataset.pane = "list";
    list.input.focus();
    list.input.select();
  },
  "?": showHelp,
  e: () => nextFailed(),
  m: () => details.map?.next(),
  n: () => details.map?.seekBad(),
  t: nextTheme,
  Escape: back,
};
const ARROWS = { ArrowDown: "j", ArrowUp: "k" };

function nextFailed() {
  const failed = shownTrace?.spans.filter((span) => span.error) ?? [];
  const now = waterfall?.chosen?.index ?? -1;
  const next = failed.find((span) => span.index > now) ?? failed[0];
  if (next) showSpan(next);
}

function back() {
  if (document.activeElement === list.input) {
    list.input.value = "";
    list.search();
    list.box.focus();
  } else {
    enter("list");
  }
}

function enterKey() {
  if (document.activeElement === waterfall?.box) waterfall.toggle(waterfall.chosen);
  else if (document.activeElement === list.box || document.activeElement === list.input) {
    if (!list.shown.includes(shownTrace)) list.move(0);
    enter("trace");
  } else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || at("dialog").open) return;
  const typing = event.target === list.input;
  if (event.key === "Enter") {
    if (enterKey()) event.preventDefault();
    return;
  }
  if (typing && event.key !== "Escape" && !(event.key in ARROWS)) return;
  if (event.target instanceof HTMLSelectElement) return;
  const key = KEYS[event.key] ?? (isRows(event.target) || typing ? KEYS[ARROWS[event.key]] : undefined);
  if (!key) return;
  event.preventDefault();
  key();
});

function isRows(element) {
  return element === list.box || element === waterfall?.box || element === document.body;
}

// --- begin -----------------------------------------------------------------------------------------

function begin() {
  setTheme(remembered("neuronscope.theme"));
  const layers = recording.grids.reduce((sum, grid) => sum + grid.records, 0);
  at("title").replaceChildren(foreign(recording.title));
  at("totals").textContent = [
    count(recording.traces.filter((trace) => trace.length > 0).length, "trace"),
    count(recording.spans.length, "span"),
    count(layers, "layer record"),
  ].join(" · ");
  const [words, tone] = state(recording);
  at("agent").className = tone;
  at("agent").replaceChildren(el("span", { class: "wide-only" }, "recording: "), words);
  at("agent").title = "What the recording says about itself: losses, fidelity, cost";
  at("agent").addEventListener("click", showAgent);
  at("help").addEventListener("click", showHelp);
  at("theme").addEventListener("click", nextTheme);
  const [, id, spanId] = /^#([0-9a-f]{32})(?:-([0-9a-f]{16}))?$/.exec(location.hash) ?? [];
  const asked = recording.traces.find((trace) => trace.id === id);
  const first = asked ?? list.newest[0];
  if (first) showTrace(first, first.spans.find((span) => span.id === spanId));
  if (asked) document.body.dataset.pane = "trace";
  list.box.focus({ preventScroll: true });
  opened = performance.now();
  document.documentElement.dataset.opened = opened.toFixed(1);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => details.map?.draw());
begin();
