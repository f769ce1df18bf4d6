// Layers × steps of one model call.  Three things can never look alike: a value, a value that is not
// finite, and no record at all.

import { count, el, foreign, percent, significant } from "./text.js";

export const METRICS = [
  ["mean", "mean"],
  ["std", "std"],
  ["abs_max", "abs-max"],
  ["non_finite", "non-finite"],
];
const SEQUENTIAL = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const DIVERGING = ["#0b5cad", "#5b9bd5", "#c6dbef", "#f4f4f2", "#fdd0a2", "#f08a3c", "#b34700"];
const GLARING = "#ff0033";
const FINITE = "#5f9e8f";
const LARGEST = 3.4028e38;
const AXIS = 22;

// A grid's numbers, unpacked when it is first looked at.
export class Grid {
  constructor(packed) {
    this.about = packed;
    this.width = packed.width;
    this.height = packed.layers.length;
    this.state = new Uint8Array(bytes(packed.state));
    this.kind = new Uint16Array(bytes(packed.kind));
    this.cells = new Uint32Array(bytes(packed.cells));
    this.planes = {};
    for (const name of ["mean", "std", "abs_max", "min", "max", "zeros"]) {
      this.planes[name] = new Float32Array(bytes(packed[name]));
    }
    this.records = new Int32Array(this.width * this.height).fill(-1);
    for (const [record, cell] of this.cells.entries()) this.records[cell] = record;
    this.bad = new Map(packed.non_finite.map(([record, ...counts]) => [record, counts]));
  }

  // Records that have statistics; of the others only that there is a tensor is known.
  get known() {
    return this.state.reduce((sum, state) => sum + (state & 1), 0);
  }

  get missing() {
    return this.records.length - this.cells.length;
  }

  // Number of the record of a cell, or -1: nothing was recorded there.
  at(row, column) {
    return this.records[row * this.width + column];
  }

  step(column) {
    return this.about.steps ? this.about.steps[column] : column;
  }

  // Smallest and largest value of a metric, of one row or of all; where all elements are finite.
  range(metric, row) {
    let [low, high] = [Infinity, -Infinity];
    const plane = this.planes[metric];
    for (const [record, cell] of this.cells.entries()) {
      if (this.bad.has(record) || (row !== undefined && Math.floor(cell / this.width) !== row)) continue;
      const value = plane[record];
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return low <= high ? [low, high] : [0, 0];
  }
}

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

// From a value to a colour, and back to the ends of the scale for the legend.
class Scale {
  constructor(metric, [low, high]) {
    this.colors = metric === "mean" ? DIVERGING : SEQUENTIAL;
    if (metric === "mean") {
      high = Math.max(Math.abs(low), Math.abs(high));
      low = -high;
    }
    this.log = metric !== "mean" && low > 0 && high / low > 50;
    Object.assign(this, { low, high });
    this.shades = Array.from({ length: 256 }, (_, shade) => blend(this.colors, shade / 255));
  }

  color(value) {
    const [from, to, at] = this.log ? [this.low, this.high, value].map(Math.log) : [this.low, this.high, value];
    const share = to > from ? (at - from) / (to - from) : this.colors === DIVERGING ? 0.5 : 0;
    return this.shades[Math.round(255 * Math.min(1, Math.max(0, share)))];
  }
}

function blend(colors, share) {
  const place = share * (colors.length - 1);
  const left = Math.min(colors.length - 2, Math.floor(place));
  const part = place - left;
  const channel = (color, number) => Number.parseInt(color.slice(1 + 2 * number, 3 + 2 * number), 16);
  const mixed = [0, 1, 2].map((number) =>
    Math.round(channel(colors[left], number) * (1 - part) + channel(colors[left + 1], number) * part));
  return `rgb(${mixed.join(" ")})`;
}

export class HeatMap {
  // why: in words, why cells can be without a record.
  constructor(packed, why, metric, onmetric) {
    this.grid = new Grid(packed);
    Object.assign(this, { why, onmetric, byLayer: false, cursor: null });
    this.metric = metric ?? "abs_max";
    this.prefix = commonPrefix(packed.layers);
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.space = el("div", { class: "heat-space" }, this.canvas);
    this.box = el("div", {
      class: "heat",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${this.grid.height} layers by ${this.grid.width} steps. Arrow keys move from cell to cell.`,
    }, this.space);
    this.readout = el("div", { class: "readout", role: "status" });
    this.legend = el("div", { class: "heat-legend" });
    this.element = el("div", { class: "heatmap" }, this.controls(), this.box, this.readout, this.legend);
    this.listen();
    this.use(this.metric);
  }

  controls() {
    const buttons = METRICS.map(([metric, label]) =>
      el("button", { type: "button", "data-metric": metric, onclick: () => this.use(metric) }, label));
    this.buttons = el("div", { class: "switch", role: "group", "aria-label": "Metric (m)" }, buttons);
    const toggle = el("input", { type: "checkbox", onchange: () => this.scaleByLayer(toggle.checked) });
    this.toggle = el("label", { class: "toggle" }, toggle, "scale each layer by itself");
    return el("div", { class: "line controls" }, this.buttons, this.toggle);
  }

  use(metric) {
    this.metric = metric;
    for (const button of this.buttons.children) {
      button.setAttribute("aria-pressed", String(button.dataset.metric === metric));
    }
    this.toggle.hidden = metric === "non_finite";
    this.onmetric?.(metric);
    this.rescale();
  }

  next() {
    const at = METRICS.findIndex(([metric]) => metric === this.metric);
    this.use(METRICS[(at + 1) % METRICS.length][0]);
  }

  scaleByLayer(byLayer) {
    this.byLayer = byLayer;
    this.rescale();
  }

  rescale() {
    const { grid, metric } = this;
    this.scale = metric === "non_finite" ? null : new Scale(metric, grid.range(metric));
    this.rowScales = null;
    if (this.byLayer && this.scale) {
      this.rowScales = grid.about.layers.map((_, row) => new Scale(metric, grid.range(metric, row)));
    }
    this.explain();
    this.read();
    this.draw();
  }

  // --- drawing ------------------------------------------------------------------------------------

  measure() {
    const { grid } = this;
    const wide = this.box.clientWidth || 600;
    const longest = Math.max(1, ...grid.about.layers.slice(0, 500).map((layer) => layer.length - this.prefix.length));
    this.gutter = Math.min(wide * 0.4, Math.max(38, 16 + longest * 6.7));
    this.cellWidth = Math.min(64, Math.max(5, Math.floor((wide - this.gutter - 2) / grid.width)));
    this.cellHeight = grid.height > 48 ? 11 : grid.height > 20 ? 14 : 18;
    this.space.style.width = `${this.gutter + grid.width * this.cellWidth}px`;
    this.space.style.height = `${AXIS + grid.height * this.cellHeight}px`;
  }

  draw() {
    this.measure();
    const { canvas, box, grid } = this;
    const [wide, high] = [box.clientWidth, Math.min(box.clientHeight, AXIS + grid.height * this.cellHeight)];
    if (!wide || !high) return;
    const ratio = Math.min(3, devicePixelRatio || 1);
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(box);
    this.ink = style.color;
    this.hatch = hatch(pen, style.getPropertyValue("--hatch"), style.getPropertyValue("--hatch-line"));
    const firstColumn = Math.max(0, Math.floor(box.scrollLeft / this.cellWidth));
    const firstRow = Math.max(0, Math.floor(box.scrollTop / this.cellHeight));
    const lastColumn = Math.min(grid.width, firstColumn + Math.ceil(wide / this.cellWidth) + 1);
    const lastRow = Math.min(grid.height, firstRow + Math.ceil(high / this.cellHeight) + 1);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, AXIS, wide - this.gutter, high - AXIS);
    pen.clip();
    for (let row = firstRow; row < lastRow; row++) {
      for (let column = firstColumn; column < lastColumn; column++) this.cell(pen, row, column);
    }
    pen.restore();
    this.names(pen, firstRow, lastRow, high);
    this.steps(pen, firstColumn, lastColumn, wide);
  }

  place(row, column) {
    return [this.gutter + column * this.cellWidth - this.box.scrollLeft, AXIS + row * this.cellHeight - this.box.scrollTop];
  }

  cell(pen, row, column) {
    const [x, y] = this.place(row, column);
    const gap = this.cellWidth > 7 ? 1 : 0.5;
    const [w, h] = [this.cellWidth - gap, this.cellHeight - 1];
    const record = this.grid.at(row, column);
    if (record < 0) {
      pen.fillStyle = this.hatch;
      pen.fillRect(x, y, w, h);
    } else if (this.grid.bad.has(record)) {
      pen.fillStyle = GLARING;
      pen.fillRect(x, y, w, h);
      cross(pen, x, y, w, h);
    } else {
      pen.fillStyle = this.color(row, record);
      pen.fillRect(x, y, w, h);
    }
    if (this.cursor && this.cursor[0] === row && this.cursor[1] === column) {
      pen.strokeStyle = this.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, w - 2, h - 2);
    }
  }

  color(row, record) {
    if (!(this.grid.state[record] & 1)) return this.hatch;
    if (!this.scale) return FINITE;
    const value = this.grid.planes[this.metric][record];
    if (Number.isNaN(value)) return this.hatch;
    return (this.rowScales?.[row] ?? this.scale).color(value);
  }

  names(pen, first, last, high) {
    pen.font = "11px ui-monospace, monospace";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillStyle = this.ink;
    const every = this.cellHeight < 12 ? 2 : 1;
    for (let row = first; row < last; row++) {
      const [, y] = this.place(row, 0);
      if (row % every || y < AXIS - 2 || y > high) continue;
      const name = this.grid.about.layers[row].slice(this.prefix.length);
      const room = Math.floor((this.gutter - 12) / 6.6);
      pen.fillText(name.length > room ? `…${name.slice(1 - room)}` : name, this.gutter - 8, y + this.cellHeight / 2);
    }
  }

  steps(pen, first, last, wide) {
    pen.textAlign = "left";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000].find((n) => n * this.cellWidth >= 34) ?? 10000;
    for (let column = first; column < last; column++) {
      const [x] = this.place(0, column);
      if (column % every || x < this.gutter - 2 || x > wide - 8) continue;
      pen.fillText(String(this.grid.step(column)), x, AXIS / 2);
    }
    pen.textAlign = "right";
    pen.fillText("step", this.gutter - 8, AXIS / 2);
  }

  // --- reading ------------------------------------------------------------------------------------

  listen() {
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.box);
    const point = (event) => {
      const { left, top } = this.box.getBoundingClientRect();
      const x = event.clientX - left - this.gutter;
      const y = event.clientY - top - AXIS;
      if (x < 0 || y < 0) return;
      const column = Math.floor((x + this.box.scrollLeft) / this.cellWidth);
      const row = Math.floor((y + this.box.scrollTop) / this.cellHeight);
      if (column < this.grid.width && row < this.grid.height) this.look(row, column);
    };
    this.box.addEventListener("pointermove", point);
    this.box.addEventListener("pointerdown", point);
    this.box.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      event.stopPropagation();
      const [row, column] = this.cursor ?? [0, -1];
      const within = (number, length) => Math.min(length - 1, Math.max(0, number));
      this.look(within(row + moves[event.key][0], this.grid.height), within(column + moves[event.key][1], this.grid.width), true);
    });
  }

  look(row, column, scroll = false) {
    if (this.cursor?.[0] === row && this.cursor[1] === column) return;
    this.cursor = [row, column];
    if (scroll) this.bring(row, column);
    this.read();
    this.draw();
  }

  bring(row, column) {
    const { box } = this;
    const [x, y] = this.place(row, column);
    if (x < this.gutter || x + this.cellWidth > box.clientWidth) box.scrollLeft = Math.max(0, column * this.cellWidth - box.clientWidth / 2);
    if (y < AXIS || y + this.cellHeight > box.clientHeight) box.scrollTop = Math.max(0, row * this.cellHeight - box.clientHeight / 2);
  }

  // The next non-finite cell after the cursor.
  seekBad() {
    const cells = [...this.grid.bad.keys()].map((record) => this.grid.cells[record]).sort((a, b) => a - b);
    const now = this.cursor ? this.cursor[0] * this.grid.width + this.cursor[1] : -1;
    const cell = cells.find((place) => place > now) ?? cells[0];
    if (cell !== undefined) this.look(Math.floor(cell / this.grid.width), cell % this.grid.width, true);
  }

  read() {
    if (!this.cursor) {
      this.readout.replaceChildren(el("span", { class: "dim" }, "Point at a cell, or move with the arrow keys."));
      return;
    }
    const [row, column] = this.cursor;
    const { grid } = this;
    const record = grid.at(row, column);
    const where = el("span", {}, foreign(grid.about.layers[row], { class: "mono" }), ` · step ${grid.step(column)}`);
    this.readout.replaceChildren(where, ...(record < 0 ? [this.absent()] : this.values(record)));
  }

  absent() {
    return el("b", { class: "absent" }, `not recorded: ${this.why}`);
  }

  values(record) {
    const { grid } = this;
    const [dtype, shape, fidelity, sampled] = grid.about.kinds[grid.kind[record]] ?? ["?", [], "?", 1];
    const value = (name, label) => {
      const found = grid.planes[name][record];
      const text = Number.isNaN(found) ? "none" : Math.abs(found) >= LARGEST ? "≥ 3.4e38" : significant(found);
      return el("span", {}, el("span", { class: "dim" }, `${label} `), text);
    };
    const bad = grid.bad.get(record);
    const parts = [];
    if (bad) {
      const [nan, inf, all] = bad;
      parts.push(el("b", { class: "badge nonfinite" }, `${count(nan)} NaN, ${count(inf)} Inf of ${count(all)}`));
    }
    if (!(grid.state[record] & 1)) return [...parts, el("b", { class: "absent" }, "no statistics: only the tensor")];
    parts.push(value("mean", "mean"), value("std", "std"), value("min", "min"), value("max", "max"), value("abs_max", "abs-max"));
    parts.push(el("span", {}, el("span", { class: "dim" }, "zeros "), percent(grid.planes.zeros[record], 1)));
    parts.push(el("span", { class: "dim" }, foreign(`${dtype} [${shape.join("×")}] · ${fidelity}`)));
    if (sampled < 1) parts.push(el("span", { class: "dim" }, `from ${percent(sampled, 1)} of the rows`));
    return parts;
  }

  explain() {
    const { grid, scale } = this;
    const parts = [];
    const swatch = (name, text) => el("span", {}, el("i", { class: `swatch ${name}`, "aria-hidden": "true" }), text);
    if (scale) {
      const ramp = el("i", { class: "ramp", style: { background: `linear-gradient(90deg, ${scale.colors.join(",")})` } });
      const [low, high] = this.byLayer ? ["layer's least", "its most"] : [significant(scale.low, 3), significant(scale.high, 3)];
      const label = METRICS.find(([name]) => name === this.metric)[1];
      parts.push(el("span", {}, `${label} ${low}`, ramp, high, scale.log && !this.byLayer ? " (log)" : ""));
    } else {
      parts.push(swatch("finite", "finite"));
    }
    parts.push(swatch("nonfinite", "NaN or Inf"), swatch("absent", `not recorded${grid.missing ? `: ${this.why}` : ""}`));
    if (this.prefix) parts.push(el("span", { class: "dim" }, "layers begin with ", foreign(this.prefix, { class: "mono" })));
    this.legend.replaceChildren(...parts);
  }
}

function cross(pen, x, y, w, h) {
  const size = Math.min(w, h) / 3.2;
  pen.strokeStyle = "#fff";
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const way of [1, -1]) {
    pen.moveTo(x + w / 2 - size, y + h / 2 - way * size);
    pen.lineTo(x + w / 2 + size, y + h / 2 + way * size);
  }
  pen.stroke();
}

function hatch(pen, back, line) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = back || "#fff";
  brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = line || "#999";
  brush.lineWidth = 1.2;
  brush.beginPath();
  for (const shift of [-6, 0, 6]) {
    brush.moveTo(shift - 1, 7);
    brush.lineTo(shift + 7, -1);
  }
  brush.stroke();
  return pen.createPattern(tile, "repeat");
}

// What all layers' names begin with, up to a dot.
export function commonPrefix(layers) {
  if (layers.length < 2) return "";
  let prefix = layers[0];
  for (const layer of layers) {
    while (!layer.startsWith(prefix)) prefix = prefix.slice(0, -1);
  }
  return prefix.slice(0, prefix.lastIndexOf(".") + 1);
}
