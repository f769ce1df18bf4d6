"""What a recording does not hold, and why: absence of data must not look like health."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.artifact import Artifact
from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanRecord
from neuronscope.viewer.safe import number

MAX_CHANGES: Final = 8
MAX_LAYERS: Final = 6


def not_captured(artifact: Artifact) -> list[str]:
    """Lines for people; none if everything that was watched has been recorded."""
    return [
        *_runs(artifact.telemetry.spans),
        *_coverage(artifact.events),
        *_changes(artifact.events),
        *_measured(artifact.events),
        *_sampling(artifact.events),
    ]


def layer_words(span: SpanRecord) -> Iterator[str]:
    """What a model call says about its layers, and what it cannot say."""
    get = span.attributes.get
    skipped, non_finite = get(names.LAYERS_SKIPPED), get(names.LAYERS_NON_FINITE)
    yield f"{get(names.LAYERS_OBSERVED)} layers, {get(names.LAYERS_RECORDS)} {get(names.FIDELITY)} records"
    if skipped:
        yield f"{skipped} NOT RECORDED ({get(names.FIDELITY_REASON) or 'unknown why'})"
    if non_finite:
        yield f"{non_finite} NON-FINITE"
    elif not get(names.LAYERS_RECORDS):
        yield "finite or not: unknown"
    else:
        yield "all recorded ones finite" if skipped else "all finite"


def _runs(spans: Sequence[SpanRecord]) -> Iterator[str]:
    """Layer runs without a record, by reason."""
    recorded, missing = 0.0, dict[str, float]()
    for span in spans:
        recorded += number(span.attributes.get(names.LAYERS_RECORDS)) or 0
        skipped = number(span.attributes.get(names.LAYERS_SKIPPED)) or 0
        if skipped:
            reason = str(span.attributes.get(names.FIDELITY_REASON) or "unknown why")
            missing[reason] = missing.get(reason, 0) + skipped
    total = recorded + sum(missing.values())
    for reason, n in sorted(missing.items()):
        yield f"{n:,.0f} of {total:,.0f} runs of watched layers ({100 * n / total:.0f} %): {reason}"


def _coverage(events: Sequence[SpanEvent]) -> Iterator[str]:
    """The layers least seen, by the latest balance sheet of each budget."""
    latest: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.name == "neuronscope.coverage":
            latest[str(event.attributes.get("budget"))] = event.attributes
    for budget, facts in latest.items():
        shares = [
            (captured / ran, str(layer), captured, ran)
            for layer, ran, captured in zip(
                _items(facts.get("layers")),
                map(number, _items(facts.get("layers_ran"))),
                map(number, _items(facts.get("layers_captured"))),
                strict=False,
            )
            if ran and captured is not None and captured < ran
        ]
        if not shares:
            continue
        least = ", ".join(
            f"{layer} {captured:.0f}/{ran:.0f}" for _, layer, captured, ran in sorted(shares)[:MAX_LAYERS]
        )
        more = f" and {len(shares) - MAX_LAYERS} more" if len(shares) > MAX_LAYERS else ""
        yield f"layers seen in part by {budget!r}: {least}{more}"


def _changes(events: Sequence[SpanEvent]) -> Iterator[str]:
    """Changes of fidelity: when, to what, at which cost."""
    changes = [
        event for event in events if event.name in ("neuronscope.fidelity", "neuronscope.overhead.exceeded")
    ]
    for event in changes[-MAX_CHANGES:]:
        facts = event.attributes
        when = time.strftime("%H:%M:%S", time.localtime(event.time_unix_ns / 1e9))
        what = "budget exceeded" if event.name.endswith("exceeded") else f"fidelity {facts.get('state')}"
        yield (
            f"{when} {what} ({facts.get('budget')}): "
            f"{facts.get('overhead_pct')} % of {facts.get('work_s')} s, "
            f"budget {facts.get('budget_pct')} %, most of it {facts.get('probe')}"
        )
    if len(changes) > MAX_CHANGES:
        yield f"and {len(changes) - MAX_CHANGES} earlier changes"


def _measured(events: Sequence[SpanEvent]) -> Iterator[str]:
    found = [event for event in events if event.name == "neuronscope.overhead.measured"]
    if found:
        facts = found[-1].attributes
        doubt = "" if facts.get("agrees") else ": THE ACCOUNTS AND THE MEASUREMENT DISAGREE"
        yield f"captures cost {facts.get('result')}{doubt}"


def _sampling(events: Sequence[SpanEvent]) -> Iterator[str]:
    found = [event for event in events if event.name == "neuronscope.sampling"]
    if found:
        facts = found[-1].attributes
        kept = sum(number(value) or 0 for key, value in facts.items() if key.startswith("kept."))
        left = number(facts.get("left_out.unit")) or 0
        share = 100 * (number(facts.get("share")) or 0)
        yield f"{left:,.0f} of {kept + left:,.0f} traces: ordinary, and not in the sampled {share:g} %"


def _items(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []
