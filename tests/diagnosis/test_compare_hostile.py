"""What real recordings do to a comparison: outages, clocks, sizes, mixes of traffic, two causes at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.diagnosis.side import DOCUMENTS, Service
from tests.diagnosis.test_compare_kinds import CHANGES, sometimes, told

import neuronscope as ns
from neuronscope.diagnosis.comparing.result import Verdict
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.stories import html, markdown
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

BEFORE, AFTER = Service(seed=1, n=300), Service(seed=2, n=300)
Spans = Sequence[SpanRecord]


def moved(spans: Spans, seconds: float, which: Callable[[SpanRecord], bool] = lambda span: True) -> Spans:
    """Some spans at another time."""
    ns_ = int(seconds * 1e9)
    return [
        msgspec.structs.replace(
            span, start_unix_ns=span.start_unix_ns + ns_, end_unix_ns=span.end_unix_ns + ns_
        )
        if which(span)
        else span
        for span in spans
    ]


def without(spans: Spans, *operations: str) -> Spans:
    """A service that does not make these calls any more."""
    return [span for span in spans if span.name not in operations]


def reports(n: int, seed: int) -> Service:
    """Another endpoint: everything about it is otherwise."""
    attributes: dict[str, Any] = told(
        "chat",
        REQUEST_MODEL="big",
        RESPONSE_MODEL="big-1",
        REQUEST_MAX_TOKENS=512,
        SYSTEM_FINGERPRINT="cccc",
        FINISH_REASONS=sometimes(0.3, ["length"], ["stop"]),
        CACHE_READ_TOKENS=sometimes(0.6, 100, 0),
    )
    seconds = {"embeddings": 0.02, "retrieval": 0.02, "chat": 2.0, "first": 0.5}
    return Service(
        n=n, seed=seed, route="/reports", collection="reports", pieces=(71, 72), k=8, wait_s=0.01,
        seconds=seconds, attributes=attributes,
    )  # fmt: skip


# --- calls that are not made any more ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("operations", "verb"), [(("chat",), "ask a model"), (("retrieval", "embeddings"), "search")]
)
def test_calls_that_are_not_made_any_more_are_a_cause(operations: tuple[str, ...], verb: str) -> None:
    """There is nothing to compare of what is not there: that it is not there is the finding."""
    result = ns.compare(BEFORE.spans(), without(AFTER.spans(), *operations))
    assert result.kinds == (Kind.CALLS_CHANGED,)
    assert "0% of the requests to /ask" in result.causes[0].summary
    assert verb in " ".join(item.what for item in result.causes[0].evidence)
    mirrored = ns.compare(without(BEFORE.spans(), *operations), AFTER.spans())
    assert mirrored.kinds == (Kind.CALLS_CHANGED,)
    assert "100% of the requests to /ask" in mirrored.causes[0].summary


def test_a_loop_that_asks_the_model_again_and_again_is_a_cause() -> None:
    """The same requests, three calls each."""
    again = [
        msgspec.structs.replace(span, span_id=span.span_id ^ turn)
        for span in AFTER.spans()
        for turn in range(3 if span.name == "chat" else 1)
    ]
    result = ns.compare(BEFORE.spans(), again)
    assert result.kinds == (Kind.CALLS_CHANGED,)
    assert "3 times on average; it was 1" in result.causes[0].summary


def test_a_model_that_is_not_asked_since_the_search_fails_is_a_consequence() -> None:
    """The provider of embeddings is down: the cause is the failure, not the missing calls."""
    failed: list[SpanRecord] = []
    for span in without(AFTER.spans(), "chat", "retrieval"):
        error = {names.ERROR_TYPE: "APIConnectionError"} if span.name == "embeddings" else {}
        failed.append(msgspec.structs.replace(span, attributes={**span.attributes, **error}))
    result = ns.compare(BEFORE.spans(), failed)
    assert result.kinds == (Kind.PROVIDER_FAILING,)
    assert Kind.CALLS_CHANGED in {item.kind for item in result.consequences}


# --- clocks ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", [40.0, -40.0])
def test_another_clock_of_the_called_process_is_no_queue(seconds: float) -> None:
    """Spans of two machines in one trace, one of which is wrong by forty seconds on one side."""
    skewed = moved(AFTER.spans(), seconds, lambda span: span.parent_span_id is not None)
    assert ns.compare(BEFORE.spans(), skewed).verdict is Verdict.NO_CHANGE


def test_a_later_side_with_an_earlier_clock_is_compared_all_the_same() -> None:
    """Nothing hangs on which side is the older one."""
    assert ns.compare(BEFORE.spans(), moved(AFTER.spans(), -86_400)).verdict is Verdict.NO_CHANGE


# --- sizes and mixes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n"), [(20, 2_000), (2_000, 20)])
@pytest.mark.parametrize("seed", [1, 2])
def test_sides_of_very_different_size_are_no_change(m: int, n: int, seed: int) -> None:
    """Twenty requests beside two thousand."""
    before, after = replace(BEFORE, n=m, seed=seed), replace(AFTER, n=n, seed=100 + seed)
    assert ns.compare(before.spans(), after.spans()).verdict is Verdict.NO_CHANGE


@pytest.mark.parametrize("kind", [Kind.INDEX_LOST, Kind.PROMPT_CHANGED, Kind.MODEL_CHANGED, Kind.OUTPUT_CUT])
def test_a_cause_is_found_from_twenty_requests_beside_a_thousand(kind: Kind) -> None:
    """A candidate's smoke test beside a day of the live release."""
    before, after = CHANGES[kind]
    result = ns.compare(replace(before, n=1_000).spans(), replace(after, n=20).spans())
    assert result.kinds == (kind,)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_another_mix_of_endpoints_is_traffic_and_nothing_else(share: float) -> None:
    """Night and day, a weekend: models, prompts, times and collections differ by endpoint."""
    n = 600
    before = [*replace(BEFORE, n=540).spans(), *reports(60, 3).spans()]
    after = [*replace(AFTER, n=int(n * (1 - share))).spans(), *reports(int(n * share), 4).spans()]
    assert ns.compare(before, after).kinds == ((Kind.TRAFFIC_CHANGED,) if share > 0.25 else ())


def test_a_new_endpoint_is_traffic_and_nothing_else() -> None:
    """With a tenth of the requests it is not even that."""
    before, after = BEFORE.spans(), AFTER.spans()
    assert ns.compare(before, [*after, *reports(30, 4).spans()]).kinds == ()
    assert ns.compare(before, [*after, *reports(200, 4).spans()]).kinds == (Kind.TRAFFIC_CHANGED,)


def test_known_models_in_another_proportion_are_told() -> None:
    """A router sends half of the questions to the large model, not a tenth; answers are cut as they were."""
    before = replace(BEFORE, attributes=told("chat", REQUEST_MODEL=sometimes(0.1, "large", "small")))
    after = replace(AFTER, attributes=told("chat", REQUEST_MODEL=sometimes(0.5, "large", "small")))
    (cause,) = ns.compare(before.spans(), after.spans()).causes
    assert cause.kind is Kind.MODEL_CHANGED
    assert "of the calls of /ask ask large; it was" in cause.summary


def test_ten_times_the_traffic_is_told_as_that() -> None:
    """In as many requests, or in ten times as many."""
    for n in (300, 3_000):
        result = ns.compare(BEFORE.spans(), replace(AFTER, n=n, gap_s=0.1).spans())
        assert result.kinds == (Kind.TRAFFIC_CHANGED,)


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_side_is_too_little(empty: int) -> None:
    """Not a change of everything."""
    sides: list[Spans] = [BEFORE.spans(), AFTER.spans()]
    sides[empty] = []
    result = ns.compare(*sides)
    assert (result.verdict, result.causes) == (Verdict.INSUFFICIENT, ())


# --- what changes by itself --------------------------------------------------------------------------------
def test_a_date_in_the_system_prompt_is_told_as_what_it_may_be() -> None:
    """It is another prompt every day; anything that is surely a cause comes before it."""
    dated = replace(AFTER, attributes=told("chat", SYSTEM_FINGERPRINT="bbbb"))
    (cause,) = ns.compare(BEFORE.spans(), dated.spans()).causes
    assert cause.confidence < 0.9
    assert "a date or a version in it" in cause.summary
    lost = replace(dated, documents=frozenset(range(0, DOCUMENTS, 2)))
    assert ns.compare(BEFORE.spans(), lost.spans()).kinds[0] is Kind.INDEX_LOST


# --- two at once -------------------------------------------------------------------------------------------
def test_lost_documents_are_found_beside_another_k() -> None:
    """The hits that either k would show are compared."""
    both = replace(AFTER, k=3, documents=frozenset(range(DOCUMENTS)) - frozenset(range(0, 200, 10)))
    assert set(ns.compare(BEFORE.spans(), both.spans()).kinds) == {Kind.SEARCH_CHANGED, Kind.INDEX_LOST}
    more = replace(AFTER, k=12)
    assert ns.compare(BEFORE.spans(), more.spans()).kinds == (Kind.SEARCH_CHANGED,)


def test_another_k_is_seen_in_another_collection() -> None:
    """Both are facts of the route."""
    result = ns.compare(BEFORE.spans(), replace(AFTER, collection="drafts", k=3).spans())
    assert result.kinds == (Kind.COLLECTION_SWITCHED,)
    assert {item.kind for item in result.consequences} == {Kind.SEARCH_CHANGED}


def test_another_embedder_is_told_where_a_filter_came_too() -> None:
    """A text's vector does not hang on the filter."""
    result = ns.compare(BEFORE.spans(), replace(AFTER, embedder=7, filtered=True).spans())
    assert set(result.kinds) == {Kind.EMBEDDER_CHANGED, Kind.FILTER_CHANGED}


# --- a stranger's recording --------------------------------------------------------------------------------
ODD: Sequence[Any] = (
    float("nan"), float("inf"), -1, 0, 1e308, "", [], [1], ["x"], [float("nan")], [[1]], [""] * 40, True,
    None, "x" * 300, 2**62, -(2**62), b"zz", "ffffffffffffffff", 1e-320,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_values_of_any_type_break_no_comparison(seed: int) -> None:
    """Some attributes of some spans hold nonsense; so do times and parents.  A page is made all the same."""
    draw = random.Random(seed)
    for _ in range(6):
        sides = [
            _spoilt(replace(side, n=30, seed=draw.randrange(10**6)).spans(), draw) for side in (BEFORE, AFTER)
        ]
        result = ns.compare(*sides)
        assert html(result)
        assert markdown(result)
        assert result.to_dict()


def _spoilt(spans: Spans, draw: random.Random) -> Spans:
    keys = sorted({(span.name, key) for span in spans[:8] for key in span.attributes})
    hit = draw.sample(keys, draw.randrange(1, 6))
    found: list[SpanRecord] = []
    for span in spans:
        attributes = dict(span.attributes)
        for name, key in hit:
            if span.name == name and draw.random() < 0.5:
                attributes[key] = draw.choice(ODD)
        more: dict[str, Any] = {}
        if draw.random() < 0.03:
            more["start_unix_ns"] = draw.choice([0, 1, 2**62])
        if draw.random() < 0.03:
            more["parent_span_id"] = draw.choice([None, span.span_id, 5])
        found.append(msgspec.structs.replace(span, attributes=attributes, **more))
    return found
