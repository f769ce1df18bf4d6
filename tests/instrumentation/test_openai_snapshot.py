"""What is kept of OpenAI's requests: the compiled way and its twin keep the same of whatever comes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import FinalRequestOptions

from growth import traced_growth
from neuronscope import compiled
from neuronscope.instrumentation import Snapshot
from neuronscope_instrumentation.openai import chat, keeping, routes
from neuronscope_instrumentation.openai.clients import KNOWN, peer_of

CLIENT = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")
PATHS = (
    "/chat/completions",
    "/embeddings",
    "/responses",
    "/completions",
    "/moderations",
    "/files",
    "/vector_stores/vs_1/search",
    "https://elsewhere.example/v1/chat/completions",
    "/chat/completions?api-version=1",
)


class Items(list[Any]):
    """A list that tells another length than it has, and other elements."""

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Any:
        return iter("xyz")


class Text(str):
    """A string that is no plain one."""


class Strange:
    """A client of another library's."""


class Odd(Mapping[str, Any]):
    """A body that is no dictionary."""

    def __init__(self, inner: dict[str, Any]) -> None:
        self._inner = inner

    def __getitem__(self, key: str) -> Any:
        return self._inner[key]

    def __iter__(self) -> Any:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


_plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4))
_values = st.one_of(
    _plain,
    st.sampled_from([Text("m"), openai.NOT_GIVEN, openai.omit, Items([1]), ["END"], ("a", "b"), {"a": 1}]),
    st.lists(_plain, max_size=3),
    st.lists(_plain, max_size=3).map(tuple),
)
_names = st.sampled_from(
    [
        *sorted(routes.KEPT),
        *sorted(chat.USUAL.rare),
        "messages",
        "input",
        "prompt",
        "user",
        Text("model"),
        Text("n"),
    ]
)
_bodies = st.dictionaries(_names, _values, max_size=6)
_options = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["post", "post", "post", "POST", "get"]),
        "url": st.sampled_from(PATHS),
        "json_data": st.one_of(_bodies, _bodies, _bodies.map(Odd), st.none(), st.just([1])),
        "extra_json": st.one_of(st.none(), st.just(dict[str, Any]()), _bodies),
    }
)


def outcome(take: Any, client: Any, arguments: dict[str, Any], content: Any) -> object:
    """What is kept, by name and in order; or which exception is raised."""
    try:
        kept: Snapshot | None = take(client, arguments, content)
    except Exception as error:  # noqa: BLE001 - whichever it is, the twin has to raise it, too
        return type(error)
    if kept is None:
        return None
    return kept.endpoint, kept.target, repr(kept.arguments), kept.peer, kept.method


@pytest.fixture(autouse=True)
def known() -> None:
    """As if each path had been posted to before: only then the compiled way is taken."""
    for url in PATHS:
        routes.POSTED.setdefault(url, (routes.route_of("post", url), "://" not in url))
    peer_of(CLIENT)


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(options=_options, content=st.booleans(), kind=st.sampled_from(["model", "model", "plain", "dict"]))
def test_the_same_is_kept(options: dict[str, Any], content: bool, kind: str) -> None:
    """Bodies, paths and options of every kind, from clients known and not."""
    told: Any = options
    if kind == "model":
        told = FinalRequestOptions.model_construct(**options)
    elif kind == "plain":
        told = SimpleNamespace(**options)
    for client in (CLIENT, CLIENT.with_options(timeout=1), Strange()):
        arguments = {"options": told}
        compiled_one = outcome(routes.snapshot, client, arguments, content)
        assert compiled_one == outcome(routes.snapshot_in_python, client, arguments, content)
    assert outcome(routes.snapshot, CLIENT, {}, content) == outcome(
        routes.snapshot_in_python, CLIENT, {}, content
    )


@pytest.mark.skipif(compiled.MODULE is None, reason="nothing is compiled here")
def test_a_usual_request_does_without_the_twin() -> None:
    """Else the two would agree for want of a difference."""

    def refuse(*_: Any) -> Snapshot | None:
        raise AssertionError

    take = keeping.quick(refuse, routes.POSTED, routes.KEPT)
    for url in PATHS[:6]:
        body = {"model": "m", "messages": [1], "input": "a", "temperature": 0.5}
        options = FinalRequestOptions.model_construct(method="post", url=url, json_data=body)
        for content in (False, True):
            assert outcome(take, CLIENT, {"options": options}, content) is not AssertionError


def test_what_may_change_is_copied() -> None:
    """The service may go on with its list; what reading would use up stays unread."""
    messages: list[Any] = [{"role": "user", "content": "a"}]
    once = (each for each in messages)
    for value, expected in ((messages, messages), (once, [])):
        options = FinalRequestOptions.model_construct(
            method="post", url=PATHS[0], json_data={"model": "m", "messages": value}
        )
        kept = routes.snapshot(CLIENT, {"options": options}, True)
        assert kept is not None
        assert kept.arguments["messages"] == expected
        assert kept.arguments["messages"] is not messages
    assert next(once) is messages[0]


def test_another_client_is_another_server() -> None:
    """Told by the URL that the client holds, also where two are equal; one that is set anew is found anew."""
    client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")
    options = FinalRequestOptions.model_construct(method="post", url=PATHS[0], json_data={"model": "m"})

    def port() -> Any:
        kept = routes.snapshot(client, {"options": options}, False)
        assert kept is not None
        return kept.peer.port

    assert port() == 9
    assert port() == 9
    client.base_url = "http://127.0.0.1:10/v1/"
    assert port() == 10
    KNOWN.clear()
    assert port() == 10


@pytest.mark.skipif(compiled.MODULE is None, reason="nothing is compiled here")
def test_memory_does_not_grow() -> None:
    """No reference is kept, whichever way is taken."""
    bodies: list[Any] = [
        {"model": "m", "messages": [1, 2], "n": 1},
        {"model": "m", "messages": Items(), "stop": "x"},
        {"input": "a", Text("model"): 1},
        Odd({"model": "m"}),
        None,
    ]
    made = [
        FinalRequestOptions.model_construct(method="post", url=url, json_data=body)
        for url in PATHS
        for body in bodies
    ]

    def everything_once() -> None:
        for options in made:
            for client in (CLIENT, Strange()):
                outcome(routes.snapshot, client, {"options": options}, True)

    def everything(times: int) -> None:
        for _ in range(times):
            everything_once()

    everything(20)
    # One leaked object a round would be more.
    assert traced_growth(lambda: everything(200), 10_000) < 10_000
