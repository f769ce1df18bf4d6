// Numbers in people's words, and elements made of text.  Nothing in this page parses markup: whatever a
// recording holds becomes a text node.

export function el(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// A text of the recording: its direction stays its own.
export function foreign(text, options = {}) {
  return el("bdi", options, text);
}

export function duration(microseconds) {
  const ms = microseconds / 1000;
  const size = Math.abs(ms);
  if (size >= 600000) return `${significant(ms / 60000, 3)} min`;
  if (size >= 1000) return `${(ms / 1000).toFixed(size >= 10000 ? 1 : 2)} s`;
  if (size >= 10) return `${ms.toFixed(0)} ms`;
  if (size >= 0.1) return `${ms.toFixed(2)} ms`;
  if (size === 0) return "0 ms";
  return `${microseconds.toFixed(size >= 0.01 ? 0 : 1)} µs`;
}

export function count(number, singular, plural = `${singular}s`) {
  const text = number.toLocaleString("en");
  return singular === undefined ? text : `${text} ${number === 1 ? singular : plural}`;
}

export function significant(value, digits = 4) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

export function percent(part, whole) {
  if (!(whole > 0)) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "<1 %" : `${share.toFixed(0)} %`;
}

// Local time to the millisecond; the zone is told once, in the trace's heading.
export function clock(microseconds) {
  const date = new Date(microseconds / 1000);
  if (Number.isNaN(date.getTime())) return "at no known time";
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function shown(value) {
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : significant(value, 7);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value);
}
