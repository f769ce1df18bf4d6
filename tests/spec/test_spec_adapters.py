"""The specification's list of adapters: each of its names is one that the platform knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from qdrant_client import QdrantClient, models
from torch import nn

import neuronscope as ns
import tinymodels
from neuronscope import joining, platform
from neuronscope.instrumentation import Kind, registry
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity
from neuronscope.testing import FakeOpenAI

SPECIFIED = {"torch", "jax", "tf", "llm_api", "vector_store", "onnx", "hf_transformers"}


@pytest.fixture(autouse=True)
def nothing_instrumented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the libraries of other tests alone, and the models that scopes watch."""
    monkeypatch.setattr(joining.MEMBERS, "_models", {})
    ns.uninstrument()
    yield
    ns.uninstrument()


def test_every_name_of_the_specification_is_known() -> None:
    """As a model's adapter; families stand for adapters that exist, of the right kind."""
    assert {adapter.name for adapter in registry.backends()} >= SPECIFIED
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


# --- selected by the framework of the object that a scope or `Model.wrap` is given --------------------------


def module() -> Any:
    """A model of PyTorch."""
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def layers_of_flax() -> Any:
    """A model of Flax."""
    from flax import linen

    return linen.Dense(4)


def graph() -> Any:
    """An exported graph."""
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    return helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    )


def endpoint() -> Any:
    """A client of a language model."""
    return openai.OpenAI(api_key="test", base_url="http://127.0.0.1:9/v1")


def store() -> Any:
    """An index of vectors."""
    import faiss

    return faiss.IndexFlatL2(4)


def reader(folder: Path) -> Any:
    """A tokenizer of transformers."""
    return tinymodels.tokenizer(folder)


# Keras is tried in `tests/instrumentation/keras_suite.py`: TensorFlow gets a process of its own.
OBJECTS: dict[str, Callable[[], Any]] = {
    "torch": module,
    "jax": layers_of_flax,
    "onnx": graph,
    "llm_api": endpoint,
    "vector_store": store,
}


@pytest.mark.parametrize(("name", "make"), OBJECTS.items(), ids=OBJECTS)
def test_the_adapter_is_selected_by_the_object(name: str, make: Callable[[], Any]) -> None:
    """For `Model.wrap`, with and without the name, and for a scope."""
    thing = make()
    assert ns.Model.wrap(thing).adapter_name == name
    assert ns.Model.wrap(thing, adapter=name).adapter_name == name
    with ns.Scope("given", thing) as scope:
        pass
    assert scope.model is not None
    assert scope.model.adapter_name == name


def test_an_object_is_refused_by_an_adapter_that_is_not_its_own(tmp_path: Path) -> None:
    """By the name asked for, with what it is for; and a scope refuses what nobody handles."""
    for name, wrong in (("llm_api", store()), ("vector_store", endpoint()), ("hf_transformers", module())):
        with pytest.raises(ns.AdapterNotFoundError, match=f"'{name}' does not handle a .*for "):
            ns.Model.wrap(wrong, adapter=name)
    with pytest.raises(ns.AdapterNotFoundError, match=r"no adapter handles a builtins\.object"):
        ns.Scope("given", object())


# --- llm_api and vector_store: clients ------------------------------------------------------------------


def test_a_wrapped_client_has_calls_and_no_layers() -> None:
    """Nothing is made up for what is elsewhere: neither layers nor the fingerprint of weights."""
    ns_model = ns.Model.wrap(endpoint(), adapter="llm_api")
    assert ns_model.name == "OpenAI"
    assert ns_model.layers == []
    with pytest.raises(ns.LayerNotFoundError, match="matches none"):
        ns_model.attach_probe(layers=["model.layers.0"])
    with pytest.raises(ns.AdapterNotFoundError, match="sees no weights"):
        _ = ns_model.fingerprint
    with pytest.raises(ns.AdapterNotFoundError, match="'llm_api' cannot intervene"):
        ns_model.trace("x")


@pytest.mark.integration
def test_only_the_wrapped_endpoint_is_observed() -> None:
    """As `ns.hooks.instrument_openai` does; of another client nothing is recorded."""
    with FakeOpenAI() as server:
        clients = [openai.OpenAI(base_url=server.base_url, api_key="test") for _ in range(2)]
        with clients[0] as ours, clients[1] as other, ns.Scope("query", ours) as scope:
            for client in (other, ours):
                client.chat.completions.create(
                    model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}]
                )
    (call,) = scope.artifact.llm_spans
    assert call.prompt_tokens
    assert call.completion_tokens
    assert call.latency_ms > 0
    assert call.finish_reason == "stop"
    assert call.cost_usd is not None
    assert 0 < call.cost_usd < 1


def test_only_the_wrapped_store_is_observed() -> None:
    """As `ns.Dataset.wrap_vector_store` does."""
    ours, other = QdrantClient(":memory:"), QdrantClient(":memory:")
    with ns.Scope("search", ours) as scope:
        for client in (other, ours):
            client.create_collection("docs", models.VectorParams(size=2, distance=models.Distance.COSINE))
            client.upsert("docs", [models.PointStruct(id=7, vector=[1.0, 0.0])])
            client.query_points("docs", query=[1.0, 0.0])
            client.close()
    (search,) = scope.artifact.retrieval_spans
    assert search.ids == ["7"]


# --- a model given to a scope -----------------------------------------------------------------------------


def test_a_scope_watches_the_model_that_it_was_given() -> None:
    """Its blocks in summaries, without a word; afterwards the model is as it was."""
    model = tinymodels.llama(layers=3)
    with ns.Scope("given", model, max_overhead_pct=1000) as scope:
        model(torch.arange(3, 11)[None])
    records = scope.artifact.telemetry.layer_snapshots
    assert [record.layer_id for record in records] == [f"model.layers.{i}" for i in range(3)]
    assert {record.fidelity for record in records} == {Fidelity.SUMMARY}
    assert all("_call_impl" not in vars(part) for part in model.modules())
    model(torch.arange(3, 11)[None])
    assert len(scope.artifact.telemetry.layer_snapshots) == 3


def test_a_given_model_is_watched_once_where_its_library_is_observed_too() -> None:
    """`generate` watches no layers that the scope watches already; the call is a span."""
    ns.instrument("transformers")
    model = tinymodels.llama(layers=2)
    with ns.Scope("given", model=model, max_overhead_pct=1000) as scope:
        model.generate(torch.arange(3, 11)[None], max_new_tokens=2)
    assert len(scope.artifact.llm_spans) == 1
    seen = [(record.layer_id, record.step) for record in scope.artifact.telemetry.layer_snapshots]
    assert sorted(seen) == [(f"model.layers.{i}", step) for i in range(2) for step in range(2)]


def test_probes_of_ones_own_take_the_place_of_what_a_scope_watches() -> None:
    """The handle is the scope's; what is attached is all that is watched, and what did not run is told."""
    model = tinymodels.llama(layers=2)
    with ns.Scope("given", ns.Model.wrap(model), max_overhead_pct=1000) as scope:
        assert scope.model is not None
        scope.model.attach_probe(layers=["model.norm"], kind=ns.probes.LayerActivations)
        model(torch.arange(3, 11)[None])
    (record,) = scope.artifact.telemetry.layer_snapshots
    assert record.layer_id == "model.norm"
    assert record.tensor is not None
    with ns.Scope("not run", model) as scope:
        pass
    (span,) = scope.artifact.telemetry.spans
    assert span.attributes[names.LAYERS_NOT_VISITED] == [f"model.layers.{i}: not run" for i in range(2)]


# --- hf_transformers ------------------------------------------------------------------------------------


def test_hf_transformers_adds_to_torch_what_it_knows_of_a_model() -> None:
    """Layers and attention patterns as in `torch`; `generate` with the fingerprint of its configuration."""
    model, other = tinymodels.llama(layers=2), tinymodels.llama(layers=2)
    ns_model = ns.Model.wrap(model, adapter="hf_transformers")
    assert ns_model.layers == ns.Model.wrap(model).layers
    assert ns_model.fingerprint == ns.Model.wrap(model).fingerprint
    with ns.Scope("generate", max_overhead_pct=1000) as scope:
        ns_model.attach_probe(layers=["model.layers.1.self_attn"], kind=ns.probes.AttentionMaps)
        for each in (other, model):
            each.generate(torch.arange(3, 11)[None], max_new_tokens=2)
    (call,) = scope.artifact.llm_spans
    assert call.span.attributes[names.GENERATION_CONFIG]
    maps = scope.artifact.telemetry.layer_snapshots
    assert [record.role for record in maps] == ["attention"] * 2
    assert maps[0].shape == (1, 4, 8, 8)


def test_hf_transformers_sees_what_goes_into_a_tokenizer_and_comes_out(tmp_path: Path) -> None:
    """Counts; of this tokenizer alone."""
    tokenizer, other = reader(tmp_path / "ours"), reader(tmp_path / "other")
    ns_model = ns.Model.wrap(tokenizer)
    assert ns_model.adapter_name == "hf_transformers"
    assert ns_model.layers == []
    with ns.Scope("text", tokenizer) as scope:
        for each in (other, tokenizer):
            each.decode(each("how do heat pumps work")["input_ids"])
    there, back = scope.artifact.telemetry.spans[1:]
    assert there.attributes[names.TOKENIZER_TOKENS] == back.attributes[names.TOKENIZER_TOKENS] == 5
    with pytest.raises(ns.LayerNotFoundError, match="a tokenizer has no layers"):
        ns_model.attach_probe(layers=["x"])
    with pytest.raises(ns.AdapterNotFoundError, match="no weights"):
        _ = ns_model.fingerprint


def test_hf_transformers_sees_a_whole_pipeline(tmp_path: Path) -> None:
    """Its call, its tokenizer's and its model's; wrapped as another adapter's it is only a model."""
    hf: Any = transformers  # its own types are partial
    pipe = hf.pipeline("text-generation", model=tinymodels.llama(layers=2), tokenizer=reader(tmp_path))
    with ns.Scope("untold", max_overhead_pct=1000) as scope:
        ns.Model.wrap(pipe)
        pipe("how do heat pumps work", max_new_tokens=2)
    assert [span.name for span in scope.artifact.telemetry.spans] == ["untold"]
    ns.Model.wrap(pipe, adapter="hf_transformers")
    with ns.Scope("told", max_overhead_pct=1000) as scope:
        pipe("how do heat pumps work", max_new_tokens=2)
    operations = [span.attributes.get(names.OPERATION_NAME) for span in scope.artifact.telemetry.spans[1:]]
    assert set(operations) == {"inference", "tokenize", "text_completion", "detokenize"}
