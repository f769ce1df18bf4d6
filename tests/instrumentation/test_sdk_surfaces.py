"""Nothing public of an SDK that a model works for is left out in silence."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import openai
import pytest

import neuronscope as ns
import openai_methods
import vllm_shaped
from client_cases import function_at
from neuronscope.doctor.surfaces import SURFACES, Surface
from neuronscope.doctor.surfaces.surface import suspected
from neuronscope.instrumentation import Kind

pytestmark = [
    # modules that an SDK keeps for those who import them
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
each_sdk = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
with_library = pytest.mark.usefixtures("library")
# Helpers of the SDK that make the calls of the contract's table.
HELPERS = {
    "chat.completions.completions:Completions.parse",
    "chat.completions.completions:Completions.stream",
    "responses.responses:Responses.parse",
    "responses.responses:Responses.stream",
    "videos:Videos.create_and_poll",
}


@pytest.fixture
def library(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be installed here is there in shape."""
    if surface.name == "vllm":
        vllm_shaped.install(monkeypatch)


def gaps_of(surface: Surface) -> list[str]:
    """Targets of the adapter's gaps."""
    return [gap.target for gap in ns.registry.client(surface.name).gaps]


@each_sdk
@with_library
def test_every_method_is_covered_or_said_not_to_be(surface: Surface) -> None:
    """A new release with a new API fails here, by name."""
    assert surface.suspects()
    assert surface.unknown(gaps_of(surface)) == set()


@each_sdk
@with_library
def test_nothing_is_said_of_what_is_gone(surface: Surface) -> None:
    """Tables that fit nothing any more tell nothing."""
    assert surface.stale() == set()


@each_sdk
@with_library
def test_gaps_are_there(surface: Surface) -> None:
    """Each names a function of the installed release, and says why."""
    suspects = surface.suspects()
    for gap in ns.registry.client(surface.name).gaps:
        assert surface.short(gap.target) in suspects or callable(function_at(gap.target)), gap.target
        assert gap.why


# Servers and models, which have no methods to look through: their whole tables are in the contracts.
NOT_SDKS = {
    "uvicorn",
    "transformers",
    "continuous_batching",
    "pipelines",
    "tokenizers",
    "onnxruntime",
    "keras",
}


def test_every_sdk_of_a_model_is_looked_through() -> None:
    """An adapter that is added says what it covers."""
    adapters = {name: ns.registry.client(name) for name in ns.registry.client_names()}
    sdks = {name for name, adapter in adapters.items() if adapter.kind is not Kind.VECTOR_STORE}
    assert {surface.name for surface in SURFACES} == sdks - NOT_SDKS


def test_a_new_method_would_be_noticed() -> None:
    """Suspected by what it takes; its asynchronous twin and private ones are not counted."""

    class Things:
        """A new resource."""

        def imagine(self, *, model: str) -> None:
            """Call a model."""

        async def imagine_async(self, *, model: str) -> None:
            """Call a model."""

        def connect(self) -> None:
            """Open a socket."""

        def list(self) -> None:
            """Bookkeeping."""

        def _post(self, model: str) -> None:
            """Private."""

    found = functools.partial(suspected, [Things])
    surface = dataclasses.replace(SURFACES[0], found=found, package=Things.__module__)
    imagine, connect = "Things.imagine", "Things.connect"
    assert surface.unknown([]) == {imagine, connect}
    assert surface.unknown([connect]) == {imagine}


def test_what_is_called_covered_is_in_the_contracts_table() -> None:
    """Of the OpenAI SDK each covered method is called there, or is a helper that calls one."""
    client = openai.OpenAI(api_key="x")
    called: set[str] = set()
    for method in openai_methods.METHODS:
        *path, name = method.path.split(".")
        resource: Any = functools.reduce(getattr, path, client)
        module = str(resource.__class__.__module__).removeprefix("openai.resources.")
        called.add(f"{module}:{resource.__class__.__name__}.{name}")
    client.close()
    covered = set(SURFACES[0].covered)
    assert covered - HELPERS <= called
    assert called - covered <= {
        "responses.responses:Responses.retrieve",
        "beta.responses.responses:Responses.retrieve",
    }
