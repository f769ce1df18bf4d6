"""Checksums and hashed names that have a key: compared where it is the same, told where it is not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.diagnosis.side import Service

import neuronscope as ns
from neuronscope.diagnosis.comparing.result import Comparison, Verdict
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

BEFORE, AFTER = Service(seed=1), Service(seed=2)
LABELS = {names.DB_COLLECTION, names.RETRIEVAL_IDS}


def keyed(service: Service, key: str) -> list[SpanRecord]:
    """The service's spans, their checksums made with a key."""
    offset = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 4096 if key else 0

    def value(name: str, known: Any) -> Any:
        if name == names.PROMPT_CHECKSUM:
            return known ^ offset
        if name == names.PROMPT_PIECES:
            return [piece ^ offset for piece in known]
        return f"{known}{key}" if name == names.SYSTEM_FINGERPRINT else known

    return [_rewritten(span, value, {names.HASH_KEY: key} if key else {}) for span in service.spans()]


def hashed(service: Service, process: str, key: str = "") -> list[SpanRecord]:
    """The service's spans, names of documents and collections hashed by a process or with a key."""

    def one(text: str) -> str:
        digest = hashlib.sha256(f"{key or process}{text}".encode()).hexdigest()[:16]
        return f"sha256:{key}:{digest}" if key else f"sha256:{digest}"

    def value(name: str, known: Any) -> Any:
        if name not in LABELS:
            return known
        texts: list[str] = known if name == names.RETRIEVAL_IDS else []
        return [one(text) for text in texts] or one(str(known))

    return [_rewritten(span, value, {}) for span in service.spans()]


def _rewritten(span: SpanRecord, value: Any, more: dict[str, str]) -> SpanRecord:
    attributes = {name: value(name, known) for name, known in span.attributes.items()}
    prompted = names.PROMPT_CHECKSUM in attributes
    return msgspec.structs.replace(span, attributes={**attributes, **(more if prompted else {})})


def untold(comparison: Comparison) -> set[Kind]:
    """Kinds that a key hides."""
    return {item.kind for item in comparison.untold if "NEURONSCOPE_HASH_KEY" in item.needs}


def test_with_the_same_key_a_changed_template_is_told() -> None:
    """As without one."""
    changed = replace(AFTER, pieces=(11, 44, 33))
    result = ns.compare(keyed(BEFORE, "k1"), keyed(changed, "k1"))
    assert result.kinds == (Kind.PROMPT_CHANGED,)
    assert not untold(result)


@pytest.mark.parametrize("keys", [("k1", "k2"), ("", "k1"), ("k1", "")])
def test_checksums_of_other_keys_are_no_change_and_it_is_said(keys: tuple[str, str]) -> None:
    """A key that was introduced, or replaced."""
    result = ns.compare(keyed(BEFORE, keys[0]), keyed(AFTER, keys[1]))
    assert result.verdict is Verdict.NO_CHANGE, result.causes
    assert {Kind.PROMPT_CHANGED, Kind.SYSTEM_PROMPT_CHANGED} <= untold(result)
    assert not any("request" in result.pairing.pairs or "question" in result.pairing.pairs for _ in keys)


def test_what_needs_no_checksum_is_told_all_the_same() -> None:
    """Searches are paired by their vectors."""
    lost = replace(AFTER, documents=frozenset(range(0, 200, 2)))
    result = ns.compare(keyed(BEFORE, "k1"), keyed(lost, "k2"))
    assert result.kinds[0] is Kind.INDEX_LOST


def test_names_that_each_process_hashes_its_own_way_are_no_change() -> None:
    """No collection was switched and no document lost; that one could not tell is said."""
    result = ns.compare(hashed(BEFORE, "one"), hashed(AFTER, "other"))
    assert result.verdict is Verdict.NO_CHANGE, result.causes
    assert Kind.INDEX_LOST in untold(result)


def test_hashed_names_of_one_process_are_compared() -> None:
    """Two windows of one recording have one key."""
    lost = replace(AFTER, documents=frozenset(range(0, 200, 2)))
    assert ns.compare(hashed(BEFORE, "one"), hashed(AFTER, "one")).verdict is Verdict.NO_CHANGE
    assert ns.compare(hashed(BEFORE, "one"), hashed(lost, "one")).kinds[0] is Kind.INDEX_LOST


def test_hashed_names_with_a_common_key_are_compared() -> None:
    """A lost half of the index, and another collection."""
    lost = replace(AFTER, documents=frozenset(range(0, 200, 2)))
    result = ns.compare(hashed(BEFORE, "one", "abcd1234"), hashed(lost, "other", "abcd1234"))
    assert result.kinds[0] is Kind.INDEX_LOST
    assert not untold(result)
    other = replace(AFTER, collection="drafts")
    result = ns.compare(hashed(BEFORE, "one", "abcd1234"), hashed(other, "other", "abcd1234"))
    assert Kind.COLLECTION_SWITCHED in result.kinds
