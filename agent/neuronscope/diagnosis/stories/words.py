"""What a comparison says, in plain words: sentences and numbers that page and ticket share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from neuronscope.diagnosis.comparing.result import Cause, Comparison, Effect, Evidence, Power, Side, Verdict
from neuronscope.diagnosis.kinds import Kind, Stage
from neuronscope.diagnosis.stories.headlines import DIRECTED, HEADLINES

PLACES: Final = {
    Stage.TRAFFIC: "the traffic",
    Stage.QUERIES: "what users ask",
    Stage.EMBED: "the embedder",
    Stage.INDEX: "the index",
    Stage.SEARCH: "the search",
    Stage.RERANK: "the reranker",
    Stage.PROMPT: "the prompt",
    Stage.MODEL: "the language model",
    Stage.INSIDE: "the inside of a model",
    Stage.PROVIDER: "the provider",
    Stage.SERVICE: "the service itself",
    Stage.ENVIRONMENT: "the environment",
    Stage.AGENT: "the recording itself",
}
NOTICED: Final = {
    Effect.ANSWERS: "other answers",
    Effect.RESULTS: "other documents found",
    Effect.SCORES: "other scores",
    Effect.EMPTY: "too few documents found",
    Effect.PROMPT_SIZE: "prompts of another size",
    Effect.LATENCY: "other response times",
    Effect.FIRST_CHUNK: "another wait for the first word",
    Effect.ERRORS: "errors",
    Effect.COST: "another bill",
    Effect.LAYERS: "other numbers inside the model",
    Effect.TRAFFIC: "other traffic",
}


# Differences that are shares of something: told in per cent.
_SHARES: Final = frozenset({"share", "ks", "ratio", "pairs", "angle"})
_ASKED: Final = ("score", "hits", "tokens", "duration", "first", "find nothing")


def title(kind: Kind) -> str:
    """A kind's name for people: ``embedder changed``."""
    return str(kind.value).replace("_", " ")


def headline(found: Comparison) -> str:
    """The answer in one sentence."""
    match found.verdict:
        case Verdict.CHANGED if found.causes:
            more = len(found.causes) - 1
            rest = (
                "" if not more else " A second cause was found." if more == 1 else f" {more} more were found."
            )
            return sentence(_headline(found.causes[0])) + rest
        case Verdict.NO_CHANGE:
            return "Nothing changed that these recordings could show."
        case Verdict.UNKNOWN:
            return "Something changed, and nothing in these recordings explains it."
        case _:
            return "The recordings hold too little to tell."


def _headline(cause: Cause) -> str:
    """With the direction, where the kind has one and it was measured."""
    measured = [cause.evidence[0].before, cause.evidence[0].after] if cause.evidence else []
    known = [value for value in measured if isinstance(value, int | float) and math.isfinite(value)]
    if cause.kind in DIRECTED and len(known) == 2 and known[0] != known[1]:
        return DIRECTED[cause.kind][known[1] < known[0]]
    return HEADLINES[cause.kind]


def sentence(text: str) -> str:
    """A summary as a sentence: with a capital letter and a full stop."""
    text = text.strip()
    if not text:
        return ""
    if text.partition(" ")[0].isalpha():  # a model's or a setting's name keeps its letters
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def sureness(cause: Cause) -> str:
    """How sure a cause is, and on what that rests."""
    facts = sum(1 for item in cause.evidence if item.p is None)
    tests = len(cause.evidence) - facts
    rests = [
        f"{n} {noun if n == 1 else noun + 's'}"
        for n, noun in ((facts, "recorded fact"), (tests, "statistical test"))
        if n
    ]
    word = (
        "practically certain"
        if cause.confidence >= 0.99
        else "very likely"
        if cause.confidence >= 0.9
        else "likely"
        if cause.confidence >= 0.7
        else "possible"
    )
    rest = f", from {' and '.join(rests)}" if rests else ""
    return f"{word} ({percent(cause.confidence, certain=False)}){rest}"


def explained(found: Comparison, cause: Cause) -> str:
    """What follows from a cause, as far as it was seen; empty if nothing was."""
    seen = [item.summary for item in found.symptoms if cause.kind in item.explained_by]
    parts = [text.rstrip(".") for text in seen] or [NOTICED[effect] for effect in cause.explains]
    return "; ".join(parts)


def power(item: Power) -> str:
    """What would have been seen."""
    size = percent(item.detectable) if item.statistic in _SHARES else figure(item.detectable)
    of = {"ks": "a shift of {} of the values", "ratio": "a change by {}"}.get(
        item.statistic, "a change of {}"
    )
    return f"{item.what}: {of.format(size)} ({item.n_before:,} and {item.n_after:,} measured)"


def telling(items: Sequence[Power]) -> list[Power]:
    """Those first that people ask about: scores, documents, tokens, times."""
    return sorted(items, key=lambda item: not any(word in item.what for word in _ASKED))


def percent(share: float, *, certain: bool = True) -> str:
    """A share; one that rounds to 100 without being it is told as more than 99."""
    if not math.isfinite(share):
        return "unknown"
    rounded = f"{100 * share:.0f} %" if abs(share) >= 0.1 or share == 0 else f"{100 * share:.1f} %"
    return "more than 99 %" if rounded == "100 %" and (not certain or share < 1) else rounded


def quantity(value: str | float | None, unit: str, *, statistic: str = "") -> str:
    """A measured value with its unit."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if unit == "s":
        return seconds(number)
    if unit == "%":
        return f"{figure(number)} %"
    if statistic in {"share", "pairs", "angle"} or (unit == "1" and abs(number) <= 1):
        return percent(number)
    if statistic == "ratio":
        return f"{number:+.0%}".replace("%", " %")
    name = {"1": "", "By": "bytes"}.get(unit, unit.strip("{}"))
    return f"{figure(number)} {name}".rstrip()


def seconds(value: float) -> str:
    """A duration."""
    if value == 0:
        return "0 s"
    if abs(value) < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if abs(value) < 120 else f"{value / 60:.3g} min"


def figure(value: float) -> str:
    """Three digits that count."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{value:.2e}"


def difference(item: Evidence) -> str:
    """How large the difference is, in the terms of its statistic."""
    if item.statistic == "fact":
        return "another value"
    names = {"ks": "distance", "overlap": "less in common", "angle": "of the bits"}
    if item.statistic in {"share", "ratio", "pairs"}:
        return quantity(item.effect, "", statistic=item.statistic)
    if item.statistic == "count":
        return figure(item.effect)
    return f"{figure(item.effect)} {names.get(item.statistic, item.statistic)}"


def chance(item: Evidence) -> str:
    """How probable such a difference is without any change."""
    if item.p is None:
        return "recorded"
    return "< 1e-6" if item.p < 1e-6 else f"{item.p:.2g}"


def window(side: Side) -> str:
    """When a side was recorded, in UTC."""
    if not side.end_unix_ns:
        return "no spans"
    start, end = (datetime.fromtimestamp(at / 1e9, UTC) for at in (side.start_unix_ns, side.end_unix_ns))
    same = start.date() == end.date()
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:{'%H:%M:%S' if same else '%Y-%m-%d %H:%M:%S'}} UTC"


def size(side: Side) -> str:
    """What a side holds."""
    parts = [f"{side.traces:,} traces", f"{side.spans:,} spans"]
    if side.layers:
        parts.append(f"{side.layers:,} layer records")
    if side.sampled is not None:
        parts.append(f"kept of about {side.sampled:,.0f} traces")
    return ", ".join(parts)


def pairing(found: Comparison) -> str:
    """How far the sides answer the same questions."""
    total = sum(found.pairing.pairs.values())
    if not total:
        return "No call could be paired: the sides are compared as distributions."
    by = ", ".join(f"{n:,} by {name}" for name, n in found.pairing.pairs.items())
    return f"{percent(found.pairing.rate)} of the calls could be paired ({by})."


def command(before: Side, after: Side) -> str:
    """What to type to see this again."""
    words = ["neuronscope", "diff", *before.paths[:1]]
    windows = [
        part
        for option, side in (("--before", before), ("--after", after))
        if any(side.window)
        for part in (option, "..".join(map(_moment, side.window)))
    ]
    if before.paths[:1] != after.paths[:1] or len(windows) < 4:
        words += after.paths[:1]
    return shlex.join([*words, *windows])


def _moment(unix_ns: int) -> str:
    """A time as the command line reads it; empty for none."""
    if not unix_ns:
        return ""
    whole, rest = divmod(unix_ns, 10**9)
    told = datetime.fromtimestamp(whole, UTC).isoformat().removesuffix("+00:00")
    return f"{told}.{rest // 1000:06d}Z" if rest else f"{told}Z"
