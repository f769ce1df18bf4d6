"""Detectors of time and failure: providers, queues in the process, consumers of streams.

A busier machine makes everything slower.  So what the process itself got slower is taken out first
(`machine`): a provider is slower only by what it lost beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from neuronscope.diagnosis.comparing.case import TESTED, Case, cause, groups, one_minus, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, finite
from neuronscope.diagnosis.comparing.detectors.calling import WRITERS, Masks, at_route, calls, traces
from neuronscope.diagnosis.comparing.machine import Pace, pace_of
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

SLOWER: Final = 1.5  # times as slow, beyond what everything else got slower
LEAST_S: Final = 0.015
DISTANCE: Final = 0.35
PARTS: Final = 5
STALLED: Final = 0.1  # of a streamed call, in which the provider waits for the service
_LIMITED: Final = ("ratelimit", "rate_limit", "toomanyrequests", "throttl", "resourceexhausted", "overloaded")


def provider_slower(case: Case) -> Iterator[Cause]:
    """Time to the first chunk, time a token, or the whole call, of what is not in the process."""
    pace = pace_of(case)
    for (operation, provider, in_process, route), before, after in groups(
        case, calls, ("operation", "provider", "in_process", "route"), 10
    ):
        if in_process or operation == "rerank":
            continue
        pair = (before, after)
        for what, values in _paces(case, pair, operation):
            test = _slower(case, what, values, pace)
            if test is None:
                continue
            before_s, after_s = float(test.before or 0), float(test.after or 0)
            word = "slower" if after_s > before_s else "faster"
            where = f" for {route}" if route else ""
            lost = pace.towards(before_s, after_s)
            process = f"while the process got {max(lost, 1 / lost):.2g} times as {word[:4]}"
            yield cause(
                Kind.PROVIDER_SLOWER,
                provider,
                f"{_named(provider)} is {word}{where}: {what} {_time(test.after)}; "
                f"it was {_time(test.before)}{f', {process}' if pace.told else ''}.",
                [test],
                TESTED,
                traces(case, (before, after)),
                effect=one_minus(ratio(before_s, after_s)),
            )
            break


def _named(provider: str) -> str:
    return f"The provider {provider}" if provider else "The provider"


def _paces(case: Case, masks: Masks, operation: str) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """How fast the provider was, without what the service did with it."""
    columns: list[tuple[Floats, Floats, Floats]] = []
    for side, mask in zip(case.sides, masks, strict=True):
        table = side.calls
        good = mask & np.array([not error for error in table.labels("error")], bool)
        consumer = table.number("consumer")[good]
        whole = table.number("duration")[good] - np.where(np.isfinite(consumer), consumer, 0.0)
        first = table.number("first_chunk")[good]
        tokens = table.number("output_tokens")[good]
        pace = np.where(
            tokens >= 4, (whole - np.where(np.isfinite(first), first, 0.0)) / np.maximum(tokens, 1), np.nan
        )
        columns.append((first, pace, whole))
    yield "the first chunk comes after", (columns[0][0], columns[1][0])
    if operation in WRITERS:
        yield "a token takes", (columns[0][1], columns[1][1])
    else:
        yield "a call takes", (columns[0][2], columns[1][2])


def _slower(case: Case, what: str, values: tuple[Floats, Floats], pace: Pace) -> Evidence | None:
    test = case.shift(what, values[0], values[1], "s")
    if test is None or test.effect < DISTANCE:
        return None
    before, after = float(test.before or 0), float(test.after or 0)
    if min(before, after) <= 0 or abs(after - before) < (LEAST_S if "token" not in what else LEAST_S / 10):
        return None
    if not _apart(*values):
        return None
    return test if min(pace.beyond(before, after), ratio(before, after)) >= SLOWER else None


def _apart(before: Floats, after: Floats) -> bool:
    """Are the parts of one side's time, but for one, all above or all below those of the other, but for one?

    Times of neighbours are alike, so a busy minute looks like a thousand independent slow calls to any test.
    One part may differ: that in which the service warmed up, say.
    """
    parts = [
        sorted(float(np.median(part)) for part in np.array_split(finite(side), PARTS) if part.size)
        for side in (before, after)
    ]
    return parts[1][1] > parts[0][-2] or parts[1][-2] < parts[0][1]


def provider_limited(case: Case) -> Iterator[Cause]:
    """Rate limits, and requests that had to be sent again."""
    for (provider,), before, after in groups(case, calls, ("provider",), 5):
        flags = [_limited(side, mask) for side, mask in zip(case.sides, (before, after), strict=True)]
        share = case.share_of("calls that were limited, or sent again", flags[0], flags[1])
        if share is not None and share.effect >= 0.03:
            yield cause(
                Kind.PROVIDER_LIMITED,
                provider,
                f"{_named(provider)} limits or refuses {share.after:.1%} of the calls so "
                "that they are sent again "
                f"or fail; it was {share.before:.1%}.",
                [share],
                TESTED,
                (_some(case.before, before, flags[0]), _some(case.after, after, flags[1])),
            )


def provider_failing(case: Case) -> Iterator[Cause]:
    """Calls or searches that fail for other reasons."""
    for (provider,), before, after in groups(case, calls, ("provider",), 5):
        flags: list[Mask] = []
        for side, mask in zip(case.sides, (before, after), strict=True):
            errors = np.array([bool(error) for error in side.calls.rows(mask, "error")], bool)
            flags.append(errors & ~_limited(side, mask))
        share = case.share_of("calls that fail", flags[0], flags[1])
        if share is not None and share.effect >= 0.03:
            kinds = [value for value in case.after.calls.rows(after, "error") if value] or [
                value for value in case.before.calls.rows(before, "error") if value
            ]
            most = max(set(kinds), key=kinds.count) if kinds else ""
            yield cause(
                Kind.PROVIDER_FAILING,
                provider,
                f"{share.after:.1%} of the calls of {provider or 'the provider'} fail, mostly with "
                f"{most}; it was {share.before:.1%}.",
                [share],
                TESTED,
                (_some(case.before, before, flags[0]), _some(case.after, after, flags[1])),
            )
    for (store,), before, after in groups(case, lambda side: side.searches, ("store",), 5):
        flags = [
            np.array([bool(error) for error in side.searches.rows(mask, "error")], bool)
            for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        share = case.share_of("searches that fail", flags[0], flags[1])
        if share is not None and share.effect >= 0.03:
            yield cause(
                Kind.PROVIDER_FAILING,
                store,
                f"{share.after:.1%} of the searches in {store} fail; it was {share.before:.1%}.",
                [share],
                TESTED,
                (case.before.searches.rows(before, "trace"), case.after.searches.rows(after, "trace")),
            )


def queueing(case: Case) -> Iterator[Cause]:
    """Requests wait in the process: before their first call, or before a model runs them."""
    pace = pace_of(case)
    for (route,), before, after in groups(case, lambda side: side.requests, ("route",), 10):
        waits = case.before.requests.number("wait")[before], case.after.requests.number("wait")[after]
        test = _waits(case, "a request waits before its first call", waits, pace)
        if test is not None:
            yield cause(
                Kind.QUEUEING,
                route,
                f"Requests{at_route(route)} wait {_time(test.after)} before their first call; it was "
                f"{_time(test.before)}.",
                [test],
                TESTED,
                (case.before.requests.rows(before, "trace"), case.after.requests.rows(after, "trace")),
                effect=one_minus(ratio(float(test.before or 0), float(test.after or 0))),
            )
            return
    for (model,), before, after in groups(case, calls, ("model",), 10):
        queues = case.before.calls.number("queue")[before], case.after.calls.number("queue")[after]
        test = _waits(case, "a call waits for the model", queues, pace)
        if test is not None:
            yield cause(
                Kind.QUEUEING,
                model,
                f"Calls of {model} wait {_time(test.after)} before they are run; it was "
                f"{_time(test.before)}.",
                [test],
                TESTED,
                traces(case, (before, after)),
                effect=one_minus(ratio(float(test.before or 0), float(test.after or 0))),
            )
            return


def _waits(case: Case, what: str, values: tuple[Floats, Floats], pace: Pace) -> Evidence | None:
    """A wait counts if its mean or its median grew: a queue holds up some requests, or all."""
    test = case.shift(what, values[0], values[1], "s")
    if test is None or test.effect < 0.25:
        return None
    middle = float(test.before or 0), float(test.after or 0)
    highs = [float(np.quantile(finite(each), 0.75)) for each in values]
    longer = max(abs(middle[1] - middle[0]), abs(highs[1] - highs[0]))
    if longer < 2 * LEAST_S or ratio(*highs) < 2 or pace.beyond(max(highs[0], 1e-6), highs[1]) < 2:
        return None
    return test if middle[1] > 0 else None


def consumer_stalling(case: Case) -> Iterator[Cause]:
    """The service takes its time between the chunks of a stream, or leaves before its end."""
    for (operation, route), before, after in groups(case, calls, ("operation", "route"), 10):
        if operation in WRITERS:
            masks = (before, after)
            found = _stalled(case, route, masks) or _left(case, route, masks)
            if found is not None:
                yield found


def _stalled(case: Case, route: str, masks: Masks) -> Cause | None:
    """A stall counts by its part of the time that users wait for a stream, not by seconds alone."""
    tables = [(side.calls, mask) for side, mask in zip(case.sides, masks, strict=True)]
    held = [table.number("consumer")[mask] for table, mask in tables]
    pace = [h / np.maximum(t.number("chunks")[mask], 1) for h, (t, mask) in zip(held, tables, strict=True)]
    parts = [
        h / np.maximum(t.number("duration")[mask], 1e-9) for h, (t, mask) in zip(held, tables, strict=True)
    ]
    test = case.shift("the service keeps a chunk for", pace[0], pace[1], "s")
    if test is None or test.effect < DISTANCE or not _apart(pace[0], pace[1]):
        return None
    totals = [float(np.median(finite(each))) for each in held]
    shares = [float(np.median(finite(each))) for each in parts]
    if abs(totals[1] - totals[0]) < LEAST_S or ratio(*totals) < 2 or abs(shares[1] - shares[0]) < STALLED:
        return None
    return cause(
        Kind.CONSUMER_STALLING,
        route,
        f"While a stream{at_route(route)} comes in, the provider waits {_time(totals[1])} for the service, "
        f"{shares[1]:.0%} of the call; it was {_time(totals[0])}, {shares[0]:.0%}.",
        [test],
        TESTED,
        traces(case, masks),
        effect=one_minus(ratio(*totals)),
    )


def _left(case: Case, route: str, masks: Masks) -> Cause | None:
    ends = [
        [end for end in side.calls.rows(mask, "end") if end]
        for side, mask in zip(case.sides, masks, strict=True)
    ]
    left = [sum(end in {"client_closed", "cancelled", "abandoned"} for end in side) for side in ends]
    share = case.share(
        "streams that the service left before their end", (left[0], left[1]), (len(ends[0]), len(ends[1]))
    )
    if share is None or share.effect < 0.1:
        return None
    return cause(
        Kind.CONSUMER_STALLING,
        route,
        f"{share.after:.0%} of the streams{at_route(route)} are left before their end; it was "
        f"{share.before:.0%}.",
        [share],
        TESTED,
        traces(case, masks),
    )


def _limited(side: Columns, mask: Mask) -> Mask:
    table = side.calls
    again = np.nan_to_num(table.number("resends")[mask]) > 0
    status = table.number("status")[mask] == 429
    errors = [any(word in str(error).lower() for word in _LIMITED) for error in table.rows(mask, "error")]
    limited: Mask = again | status | np.array(errors, bool)
    return limited


def _some(side: Columns, mask: Mask, flags: Any) -> list[str]:
    names = side.calls.rows(mask, "trace")
    return [names[row] for row in np.flatnonzero(flags)[:20]] or names[:5]


def _time(value: str | float | None) -> str:
    seconds = float(value or 0.0)
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


DETECTORS = (provider_slower, provider_limited, provider_failing, queueing, consumer_stalling)
