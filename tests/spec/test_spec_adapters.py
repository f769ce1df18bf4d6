"""The specification's list of adapters: each of its names is one that the platform knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from qdrant_client import QdrantClient

import neuronscope as ns
from neuronscope import platform
from neuronscope.instrumentation import Kind, registry

SINGLE = {"torch", "jax", "tf", "onnx"}


@pytest.fixture(autouse=True)
def nothing_instrumented() -> Iterator[None]:
    """Leave the libraries of other tests alone."""
    ns.uninstrument()
    yield
    ns.uninstrument()


def test_every_name_of_the_specification_is_known() -> None:
    """Runtimes by themselves; families stand for adapters that exist, of the right kind."""
    assert {adapter.name for adapter in registry.backends()} >= SINGLE
    assert set(registry.FAMILIES) == {"llm_api", "vector_store", "hf_transformers"}
    for family in registry.FAMILIES:
        assert set(registry.members([family])) <= set(registry.client_names())
    stores = {name for name in registry.CLIENTS if registry.client(name).kind is Kind.VECTOR_STORE}
    assert set(registry.members(["vector_store"])) == stores


def test_a_family_is_instrumented_left_alone_and_given_back_as_a_whole() -> None:
    """Also beside other names."""
    ns.instrument("hf_transformers", "faiss")
    there = set(platform.installations())
    assert there >= {"transformers", "pipelines", "tokenizers", "continuous_batching", "faiss"}
    assert "openai" not in there
    ns.uninstrument("hf_transformers")
    assert set(platform.installations()) & {"transformers", "tokenizers", "faiss"} == {"faiss"}


def test_disabling_a_family_leaves_all_of_it_out() -> None:
    """`NEURONSCOPE_DISABLE=vector_store`."""
    with ns.Platform(disable=("vector_store", "uvicorn")):
        ns.instrument()
        there = set(platform.installations())
    assert "openai" in there
    assert not there & {"uvicorn", *registry.members(["vector_store"])}


def test_a_client_that_is_taken_for_a_model_is_told_how_to_be_observed() -> None:
    """The message names the adapter of its library."""
    client = QdrantClient(":memory:")
    with pytest.raises(LookupError, match=r"QdrantClient is no model.*ns\.instrument\('qdrant'\)"):
        ns.Model.wrap(client)
    client.close()
