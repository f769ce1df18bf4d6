"""Which runs of a model had the same input, told without its words and without its tensors.

Of a model whose texts are known by their checksums: the same texts.  Of others: a prompt of the same length,
in a trace whose searches had the same query vectors and found the same documents.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

from neuronscope.diagnosis.comparing.case import Case
from neuronscope.diagnosis.comparing.columns import Columns

Inputs: TypeAlias = dict[str, dict[str, Hashable]]  # by model and trace
Traces: TypeAlias = dict[str, dict[str, str]]  # by model: a trace, and another with the same input


def same_inputs(case: Case) -> tuple[Traces, tuple[Traces, Traces]]:
    """Traces of both sides with the same input, and traces of each side that repeat one.

    Only traces in which layers were recorded: of a question asked ten times any will do.
    """
    before, after = _inputs(case, 0), _inputs(case, 1)
    both = {model: _matched(before[model], after[model]) for model in before if model in after}
    return both, (_repeated(before), _repeated(after))


def _matched(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> dict[str, str]:
    earlier, later = _by_input(before), _by_input(after)
    return {
        trace: other
        for key, traces in earlier.items()
        for trace, other in zip(traces, later.get(key, ()), strict=False)
    }


def _repeated(inputs: Inputs) -> Traces:
    return {
        model: {trace: other for same in _by_input(keys).values() for trace, other in pairwise(same)}
        for model, keys in inputs.items()
    }


def _by_input(keys: Mapping[str, Hashable]) -> dict[Hashable, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for trace, key in keys.items():
        found.setdefault(key, []).append(trace)
    return found


def _inputs(case: Case, place: int) -> Inputs:
    side, pairs = case.sides[place], case.pairs
    recorded = _recorded(side)
    texts = _by_trace(side, pairs.call_keys[place]) if pairs.calls else {}
    searched = _searched(side, pairs.vector_keys[place])
    found: Inputs = {}
    calls = side.calls
    rows = zip(calls.labels("watched"), calls.labels("trace"), calls.number("input_tokens"), strict=True)
    for model, trace, tokens in rows:
        if trace not in recorded.get(model, ()):
            continue
        if model in texts:
            key = texts[model].get(trace)
        else:
            key = (tokens, searched[trace]) if trace in searched and math.isfinite(tokens) else None
        if key is not None:
            found.setdefault(model, {})[trace] = key
    return found


def _recorded(side: Columns) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for (model, _, run), rows in side.layers.items():
        if run == "first":
            found.setdefault(model, set()).update(rows.traces)
    for model, runs in side.snapshots.items():
        found.setdefault(model, set()).update(trace for trace, _, _ in runs)
    return found


def _by_trace(side: Columns, keys: Iterable[Hashable]) -> Inputs:
    """What each model was given in each trace, if that is known of all its calls there."""
    parts: dict[str, dict[str, list[Hashable]]] = {}
    calls = side.calls
    for model, trace, key in zip(calls.labels("watched"), calls.labels("trace"), keys, strict=True):
        if model:
            parts.setdefault(model, {}).setdefault(trace, []).append(key)
    known: Inputs = {
        model: {trace: tuple(each) for trace, each in traces.items() if None not in each}
        for model, traces in parts.items()
    }
    return {model: traces for model, traces in known.items() if traces}


def _searched(side: Columns, keys: Iterable[Hashable]) -> dict[str, Hashable]:
    """What each trace asked and found, if that is known of all its searches."""
    parts: dict[str, list[Hashable]] = {}
    searches = side.searches
    for trace, ids, key in zip(searches.labels("trace"), searches.labels("ids"), keys, strict=True):
        parts.setdefault(trace, []).append((key, ids) if key is not None and ids else None)
    return {trace: tuple(each) for trace, each in parts.items() if None not in each}
