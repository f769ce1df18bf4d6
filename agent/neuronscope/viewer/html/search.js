// The search: words anywhere; key=value, key>number and ms>number; is:error and the other flags.

import { FLAGS } from "./data.js";

const TERM = /"([^"]*)"?|(\S+)/g;
const COMPARISON = /^([^=<>:]+)(=|:|>|<)(.+)$/;

// A query as a list of terms; a trace is found if each of them holds for one of its spans.
export function parse(query) {
  const terms = [];
  for (const [, quoted, plain] of query.toLowerCase().matchAll(TERM)) {
    if (quoted !== undefined) {
      if (quoted) terms.push(words(quoted));
      continue;
    }
    const compared = COMPARISON.exec(plain);
    terms.push((compared && term(compared[1], compared[2], compared[3])) || words(plain));
  }
  return terms;
}

function term(key, sign, value) {
  if (key === "is" && FLAGS.some(([flag]) => flag === value)) return { flag: value };
  if (sign === "=") return { span: (span) => values(span, key).some((found) => found.includes(value)) };
  const limit = Number.parseFloat(value);
  if (sign === ":" || Number.isNaN(limit)) return null;
  const over = sign === ">" ? (number) => number > limit : (number) => number < limit;
  if (key === "ms") return { span: (span) => over(span.duration / 1000) };
  return { span: (span) => numbers(span, key).some(over) };
}

function words(text) {
  return { span: (span) => textOf(span).includes(text) };
}

function values(span, key) {
  const found = span.attributes.filter(([about]) => about[0].toLowerCase().includes(key));
  const own = { name: span.name, service: span.service, trace: span.trace.id, span: span.id, kind: span.kind };
  const texts = found.map(([, value]) => String(value).toLowerCase());
  return Object.hasOwn(own, key) ? [String(own[key]).toLowerCase(), ...texts] : texts;
}

function numbers(span, key) {
  const found = span.attributes.filter(([about]) => about[0].toLowerCase().includes(key));
  return found.flatMap(([, value]) => value).filter((value) => typeof value === "number");
}

function textOf(span) {
  if (span.text === undefined) {
    const pairs = span.attributes.map(([about, value]) => `${about[0]}=${value}`);
    const parts = [span.name, span.service, span.trace.id, span.id, span.extra?.message, ...pairs];
    span.text = parts.join("\n").toLowerCase();
  }
  return span.text;
}

export function found(traces, query, flag) {
  const terms = parse(query);
  return traces.filter(
    (trace) => (!flag || trace.flags.has(flag)) && terms.every((one) => holds(trace, one)),
  );
}

function holds(trace, one) {
  return one.flag ? trace.flags.has(one.flag) : trace.spans.some(one.span);
}

// Does a span itself match a part of the query?  For marking it in the waterfall.
export function matcher(query) {
  const tests = parse(query).flatMap((one) => one.span ?? []);
  return tests.length === 0 ? () => false : (span) => tests.some((test) => test(span));
}
