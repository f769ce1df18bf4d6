"""``ns.compare``: reads both sides, asks every detector, and puts what is believed into order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from typing import Any

from neuronscope.diagnosis.comparing.case import Case
from neuronscope.diagnosis.comparing.columns import Columns
from neuronscope.diagnosis.comparing.detectors import DETECTORS
from neuronscope.diagnosis.comparing.keys import settle_keys
from neuronscope.diagnosis.comparing.pairs import find_pairs
from neuronscope.diagnosis.comparing.ranking import rank
from neuronscope.diagnosis.comparing.reading import Reader, Source, Window
from neuronscope.diagnosis.comparing.result import Cause, Comparison, Pairing, Side, Verdict
from neuronscope.diagnosis.comparing.symptoms import asks, symptoms, untold

Steps = Callable[[str], Any]
MIN_TRACES = 5


def compare(
    before: Source,
    after: Source,
    *,
    window_before: Window | None = None,
    window_after: Window | None = None,
    step: Steps | None = None,
) -> Comparison:
    """Say what changed from one recording to the other, and why things are different now.

    Args:
        before, after: a `.nsz` file, a directory of segments or ranks, several of both, an `Artifact` (a
        scope's, or one that `ns.load` read), or spans. window_before, window_after: only what began within
        these times; both sides may then be the same recording. step: called with a name, gives a context
        manager that yields ``(done, total) -> None``: shows progress.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: a file named is no `.nsz` file, or a directory has none that can be read.
    """
    started = time.perf_counter()
    told = step or _unwatched
    sides: list[tuple[Columns, Side]] = []
    with ExitStack() as stack:
        for name, source, window in (("before", before, window_before), ("after", after, window_after)):
            reader = stack.enter_context(closing(Reader(window)))
            with told(f"reading {name}") as progress:
                reader.read(source, progress)
            sides.append((reader.columns, reader.side()))
        with told("comparing") as progress:
            result = conclude((sides[0][0], sides[1][0]), (sides[0][1], sides[1][1]), progress)
    return replace(result, seconds=time.perf_counter() - started)


def conclude(
    columns: tuple[Columns, Columns], sides: tuple[Side, Side], progress: Callable[[int, int], None]
) -> Comparison:
    """The comparison of two sides that have been read."""
    settle_keys(*columns)
    pairs, pairing = find_pairs(*columns)
    case = Case(*columns, pairs)
    found: list[Cause] = []
    for place, detector in enumerate(DETECTORS):
        found += detector(case)
        progress(place + 1, len(DETECTORS) + 1)
    seen = list(symptoms(case))
    accepted = case.accepted()
    causes, consequences, explained = rank(
        [item for item in found if case.believed(item.evidence[0], accepted)],
        [item for item in seen if case.believed(item.evidence[0], accepted)],
    )
    progress(len(DETECTORS) + 1, len(DETECTORS) + 1)
    enough = min(side.traces for side in columns) >= MIN_TRACES
    if causes:
        verdict = Verdict.CHANGED
    elif any(asks(symptom) for symptom in explained):
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.NO_CHANGE if enough and case.power else Verdict.INSUFFICIENT
    power = sorted(case.power.values(), key=lambda item: item.what)
    return Comparison(
        sides[0],
        sides[1],
        pairing if pairing.pairs else Pairing(),
        verdict,
        causes,
        consequences,
        explained,
        tuple(power),
        tuple(untold(case)),
        len(case.p_values),
    )


def _unwatched(_name: str) -> Any:
    return nullcontext(_ignore)


def _ignore(done: int, total: int) -> None:
    """Nobody watches."""
