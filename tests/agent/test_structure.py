"""What prompts are made of is recorded with content off, and no word of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import neuronscope as ns
from neuronscope.engine.chunks import TIMED_EVERY
from neuronscope.engine.environment import environment
from neuronscope.engine.streams import StreamState, observe_generator
from neuronscope.engine.structure import (
    BITS,
    BURST,
    GRACE_S,
    MAX_CHARACTERS,
    RATE,
    REFILL,
    Structure,
    checksum,
    pieces,
)
from neuronscope.instrumentation import Endpoint, Hit, Message, Operation, Request
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI
from openai_cases import CANARY, sync_client

SYSTEM = "Answer from the passages."
DOCUMENTS = [
    f"Document {n} tells at some length how part {n} of the machine is put together. It ends {n}."
    for n in range(4)
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


def request(prompt: str, system: str = SYSTEM, **more: Any) -> Request:
    """A chat request, read with its texts."""
    return Request(
        messages=[
            Message("system", [{"type": "text", "content": system}]),
            Message("user", [{"type": "text", "content": prompt}]),
        ],
        **more,
    )


@pytest.mark.parametrize("structure", [True, False])
def test_structure_is_recorded_without_a_word(server: FakeOpenAI, structure: bool) -> None:
    """Through a real client: checksums, lengths and a fingerprint; the text nowhere."""
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False, structure=structure):
        ns.instrument("openai")
        messages: Any = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Question: {CANARY}"},
        ]
        with sync_client(server) as client:
            client.chat.completions.create(model="gpt-4o-mini", messages=messages)
            client.embeddings.create(model="text-embedding-3-small", input=f"query: {CANARY}")
    chat, embedding = (span.attributes for span in exporter.spans)
    assert CANARY not in repr(exporter.spans)
    assert SYSTEM not in repr(exporter.spans)
    if not structure:
        assert not {
            key for key in (*chat, *embedding) if key.startswith(("neuronscope.prompt", "neuronscope.system"))
        }
        return
    assert chat[names.PROMPT_CHARACTERS] == len(f"Question: {CANARY}")
    assert chat[names.PROMPT_CHECKSUM] == checksum(f"Question: {CANARY}")
    assert list(chat[names.PROMPT_PIECES]) == [checksum("Question:")]  # type: ignore[arg-type]
    assert chat[names.SYSTEM_CHARACTERS] == len(SYSTEM)
    assert len(str(chat[names.SYSTEM_FINGERPRINT])) == 16
    assert embedding[names.PROMPT_CHARACTERS] == len(f"query: {CANARY}")
    assert list(embedding[names.PROMPT_PIECES]) == [checksum("query:")]  # type: ignore[arg-type]


def test_a_users_text_is_one_of_thousands_with_its_checksum() -> None:
    """Twelve bits confirm no guess: among 40,960 texts about ten share each."""
    found = [checksum(f"my number is {n}") for n in range(10 * 2**BITS)]
    assert max(found) < 2**BITS
    counts = [found.count(value) for value in found[:50]]
    assert min(counts) >= 2


def test_with_a_key_nobody_can_test_a_guess(server: FakeOpenAI) -> None:
    """Through a real client: other checksums, the same in every process, and the key's id."""
    seen: list[dict[str, Any]] = []
    for secret in ("a long secret", "a long secret", "another secret"):
        exporter = InMemoryExporter()
        with ns.Platform(exporters=[exporter], deferred=False, hash_key=secret, hash_identifiers=True):
            ns.instrument("openai")
            messages: Any = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Question: {CANARY}"},
            ]
            with sync_client(server) as client, ns.tenant("acme"):
                client.chat.completions.create(model="gpt-4o-mini", messages=messages)
        seen.append(dict(exporter.spans[0].attributes))
    one, again, other = seen
    keyed = (
        names.PROMPT_CHECKSUM,
        names.PROMPT_PIECES,
        names.SYSTEM_FINGERPRINT,
        names.HASH_KEY,
        names.TENANT,
    )
    assert [one[name] for name in keyed] == [again[name] for name in keyed]
    assert all(one[name] != other[name] for name in keyed)
    assert one[names.PROMPT_CHECKSUM] != checksum(f"Question: {CANARY}")
    assert str(one[names.TENANT]).startswith(f"sha256:{one[names.HASH_KEY]}:")
    assert one[names.PROMPT_CHARACTERS] == other[names.PROMPT_CHARACTERS]
    assert "a long secret" not in repr(seen)


def test_documents_in_the_prompt_are_counted() -> None:
    """Of four retrieved documents two are whole, one is cut, one is missing."""
    structure = Structure()
    structure.of_hits(
        7, [[Hit(str(n), 0.5, {"title": f"t{n}", "text": text}) for n, text in enumerate(DOCUMENTS)]]
    )
    prompt = "\n\n".join(["Passages:", DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2][:60]])
    facts = structure.of_request(7, request(prompt))
    assert facts[names.PROMPT_DOCUMENTS_RETRIEVED] == 4
    assert facts[names.PROMPT_DOCUMENTS_WHOLE] == 2
    assert facts[names.PROMPT_DOCUMENTS_CUT] == 1
    other = structure.of_request(8, request(prompt))
    assert names.PROMPT_DOCUMENTS_RETRIEVED not in other


def test_documents_in_a_system_prompt_count_too() -> None:
    """Some services put them there."""
    structure = Structure()
    structure.of_hits(7, [[Hit("1", 0.5, None, DOCUMENTS[1])]])
    assert structure.of_request(7, request("Why?", DOCUMENTS[1]))[names.PROMPT_DOCUMENTS_WHOLE] == 1


def test_what_is_remembered_of_documents_is_bounded() -> None:
    """Traces that never ask a model are forgotten."""
    structure = Structure()
    for trace in range(5_000):
        structure.of_hits(trace, [[Hit("1", 0.5, None, DOCUMENTS[1])] * 500])
    retrieved = structure._retrieved  # pyright: ignore[reportPrivateUsage]
    assert len(retrieved) <= 512
    assert max(map(len, retrieved.values())) <= 64


def test_only_constant_pieces_of_a_template_repeat() -> None:
    """Labels stay, what follows them does not count; a long prompt gives its beginning and its end."""
    one, other = (
        list(pieces(f"Passages:\n{text}\n\nQuestion: {text}?\nBe brief.")) for text in DOCUMENTS[:2]
    )
    assert {"Passages:", "Question:", "Be brief."} <= {*one} & {*other}
    assert len(list(pieces("\n".join(f"line {n}" for n in range(500))))) == 32


@pytest.mark.parametrize(
    "odd", [Request(), Request(messages=[]), request("", ""), request("\ud800 lone"), Request(inputs=[""])]
)
def test_odd_requests_are_read(odd: Request) -> None:
    """Nothing, nothing of everything, and what no encoding knows."""
    assert isinstance(Structure().of_request(1, odd), dict)


def test_the_time_that_the_service_keeps_chunks_is_told() -> None:
    """A quarter of the chunks is timed, and stands for all; a stream of three says nothing."""
    endpoint = Endpoint(operation=Operation.CHAT, read_request=lambda _, __: Request())
    for n in (3, 40):
        state = StreamState(endpoint, "test", False, lambda _, __: None)
        clock = 0
        for _ in observe_generator((part for part in range(n)), state):
            clock += 1
        assert clock == n
        if n < TIMED_EVERY:
            assert state.consumer_ns is None
        else:
            assert state.consumer_ns is not None
            assert state.consumer_ns >= 0


def test_the_environment_is_told_without_importing_anything() -> None:
    """Versions of what is installed, by the packages' own metadata."""
    found = environment()
    assert any(text.startswith("numpy ") for text in found[names.PACKAGES])
    assert found["process.runtime.version"].count(".") == 2
    assert found[names.HOST_CPUS] >= 1


def test_a_busy_service_pays_for_some_traces_only() -> None:
    """All calls of a trace or none; a burst, then as many as are earned; between them no text is kept."""
    now, wanted = 0.0, [True]
    structure = Structure(lambda: now, wanted.append)
    admitted = [structure.admits(trace) for trace in range(1_000)]
    assert sum(admitted) == BURST
    assert wanted == [True]  # the last traces are not over
    assert all(structure.admits(trace) is was for trace, was in list(enumerate(admitted))[:BURST])
    now = GRACE_S + 0.1
    assert not structure.admits(2_000)
    assert wanted == [True, False]
    now = REFILL / RATE
    assert sum(structure.admits(trace) for trace in range(2_001, 3_000)) == REFILL
    assert wanted == [True, False, True]


def test_a_long_prompt_is_not_read_whole() -> None:
    """Its length is told; its beginning and end count; nothing is said of its documents."""
    text = f"Passages:\n{'x' * MAX_CHARACTERS}\nQuestion: why?"
    structure = Structure()
    structure.of_hits(7, [[Hit("1", 0.5, None, DOCUMENTS[1])]])
    facts = structure.of_request(7, request(text))
    assert facts[names.PROMPT_CHARACTERS] == len(text)
    assert {checksum("Passages:"), checksum("Question:")} <= {*facts[names.PROMPT_PIECES]}
    assert names.PROMPT_DOCUMENTS_RETRIEVED not in facts
    parts = [Message("user", [{"type": "text", "content": text[:1_000]}])] * 1_000
    many = structure.of_request(7, Request(messages=parts))
    assert many[names.PROMPT_CHARACTERS] == 1_000 * 1_000 + 999
    changed = structure.of_request(7, Request(messages=[*parts[:-1], Message("user", [{"content": "?"}])]))
    assert changed[names.PROMPT_CHECKSUM] != many[names.PROMPT_CHECKSUM]
