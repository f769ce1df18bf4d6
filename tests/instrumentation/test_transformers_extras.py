"""transformers beyond `generate`: configurations, steps, pipelines, tokenizers, continuous batching."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from transformers.generation.continuous_batching import continuous_api

import neuronscope as ns
import tinymodels
from neuronscope.demo.models import prepare_smollm2
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.transformers.generation import config_fingerprint

hf: Any = transformers  # its own types are partial
batching: Any = continuous_api
PROMPT = torch.arange(3, 11)[None]
TEXT = "how do heat pumps work"


@pytest.fixture(scope="module")
def model() -> Any:
    return tinymodels.llama(layers=2)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tinymodels.tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture
def scope() -> Iterator[ns.Scope]:
    ns.Platform()
    ns.instrument("transformers", "pipelines", "continuous_batching")
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        yield scope


def spans(scope: ns.Scope, library: str = "transformers") -> list[SpanRecord]:
    return [s for s in scope.artifact.telemetry.spans if s.library == f"neuronscope.{library}"]


# --- generate ---------------------------------------------------------------------------------------------
def test_equal_settings_have_one_fingerprint_however_they_are_given(model: Any, scope: ns.Scope) -> None:
    """By a configuration or by arguments; others have another."""
    model.generate(PROMPT, max_new_tokens=2, do_sample=False)
    model.generate(PROMPT, generation_config=given(model, max_new_tokens=2, do_sample=False))
    model.generate(PROMPT, max_new_tokens=3, do_sample=False)
    one, same, other = [span.attributes[names.GENERATION_CONFIG] for span in spans(scope)]
    assert one == same != other
    assert str(one).startswith("ns1:")


def test_settings_that_only_look_equal_have_fingerprints_of_their_own() -> None:
    """1, 1.0 and True are equal to Python and to no model; what cannot be looked up is named all the same."""
    names_ = [config_fingerprint({"top_k": value}) for value in (1, 1.0, True, [1], [True], abs)]
    assert len(set(names_)) == len(names_)
    one, same = {"b": 2, "a": [1, None]}, {"a": [1, None], "b": 2, "_c": 3}
    assert config_fingerprint(one) == config_fingerprint(same)


def given(model: Any, **changes: Any) -> Any:
    config = hf.GenerationConfig(**model.generation_config.to_dict())
    config.update(**changes)
    return config


def test_steps_of_the_decoding_are_told(model: Any, scope: ns.Scope) -> None:
    """The slowest one by its number."""
    calls: list[int] = []

    def slow(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            threading.Event().wait(0.5)  # the third step after the prefill

    handle = model.model.register_forward_pre_hook(slow)
    model.generate(PROMPT, max_new_tokens=6)
    handle.remove()
    (span,) = spans(scope)
    told = span.attributes
    assert told[names.MODEL_STEP_SLOWEST] == 3
    assert 0.49 < told[names.MODEL_STEP_MAX] < told[names.MODEL_DECODE]  # type: ignore[operator]
    assert 0 < told[names.MODEL_STEP_MEDIAN] <= told[names.MODEL_STEP_MAX]  # type: ignore[operator]


# --- pipelines --------------------------------------------------------------------------------------------
def test_a_pipeline_is_the_parent_of_what_it_runs(model: Any, tokenizer: Any, scope: ns.Scope) -> None:
    """One span a call, whatever the task's own class does."""
    pipe = hf.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    pipe(TEXT, max_new_tokens=2, return_full_text=False)
    pipe([TEXT, TEXT], max_new_tokens=2)
    single, several = spans(scope, "pipelines")
    assert single.name == "inference LlamaForCausalLM"
    assert single.attributes[names.PIPELINE_TASK] == "text-generation"
    assert (single.attributes[names.INPUT_COUNT], several.attributes[names.INPUT_COUNT]) == (1, 2)
    generated = spans(scope)
    assert [span.parent_span_id for span in generated] == [single.span_id, several.span_id, several.span_id]


# --- tokenizers -------------------------------------------------------------------------------------------
def test_tokenizers_are_observed_on_request_only(tokenizer: Any) -> None:
    """Counts without texts; padding is no token."""
    ns.Platform()
    ns.instrument()
    with ns.Scope("all") as everything:
        tokenizer(TEXT)
    assert spans(everything, "tokenizers") == []
    ns.instrument("tokenizers")
    with ns.Scope("test") as scope:
        encoded = tokenizer([TEXT, "heat"], padding=True, return_tensors="pt")
        tokenizer(TEXT)
        decoded = tokenizer.decode(encoded["input_ids"][0])
        tokenizer.batch_decode(encoded["input_ids"])
    batch, single, one, two = spans(scope, "tokenizers")
    assert batch.name.startswith("tokenize ")
    assert batch.attributes[names.INPUT_COUNT] == 2
    assert batch.attributes[names.TOKENIZER_TOKENS] == int(encoded["attention_mask"].sum())
    assert batch.attributes[names.MODEL_BATCH] == 2
    assert single.attributes[names.TOKENIZER_TOKENS] == len(tokenizer(TEXT)["input_ids"])
    assert one.name.startswith("detokenize ")
    assert one.attributes[names.TOKENIZER_TOKENS] == encoded["input_ids"].shape[1]
    assert two.attributes[names.TOKENIZER_TOKENS] == encoded["input_ids"].numel()
    assert not any("pumps" in str(span.attributes) for span in (batch, single, one, two))
    assert "pumps" in decoded


def test_texts_of_tokenizers_come_with_content(tokenizer: Any) -> None:
    """Both ways."""
    ns.Platform(capture_content="span_only")
    ns.instrument("tokenizers")
    with ns.Scope("test") as scope:
        tokenizer.decode(tokenizer(TEXT)["input_ids"])
    encoded, decoded = spans(scope, "tokenizers")
    assert TEXT in str(encoded.attributes[names.INPUT_MESSAGES])
    assert "pumps" in str(decoded.attributes[names.OUTPUT_MESSAGES])


# --- continuous batching ----------------------------------------------------------------------------------
def in_one_batch(model: Any, prompts: list[list[int]]) -> Any:
    """With a small cache: by default it takes what memory there is."""
    config = hf.ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=32)
    return model.generate_batch(prompts, max_new_tokens=5, continuous_batching_config=config, warmup=False)


def test_requests_of_a_batch_have_spans_that_the_batch_links_to(model: Any, scope: ns.Scope) -> None:
    """Tokens and ends are each request's own; the work is in a trace of its own."""
    prompts = [list(range(3, 3 + length)) for length in (4, 7, 9)]
    results = in_one_batch(model, prompts)
    told = spans(scope)
    requests = [span for span in told if span.name.startswith("text_completion")]
    assert sorted(span.attributes[names.INPUT_TOKENS] for span in requests) == [4, 7, 9]  # type: ignore[type-var]
    expected = sorted(len(result.generated_tokens) for result in results.values())
    assert sorted(span.attributes[names.OUTPUT_TOKENS] for span in requests) == expected  # type: ignore[type-var]
    assert all(span.attributes[names.FINISH_REASONS] in (["length"], ["stop"]) for span in requests)
    assert all(span.attributes[names.MODEL_QUEUE] >= 0 for span in requests)  # type: ignore[operator]
    (batch,) = [span for span in told if span.name.startswith("batch")]
    assert {link.span_id for link in batch.links} == {span.span_id for span in requests}
    assert batch.trace_id not in {span.trace_id for span in requests}
    assert batch.attributes[names.MODEL_BATCH] == 3
    assert batch.attributes[names.MODEL_FORWARDS] >= 5  # type: ignore[operator]


def test_a_request_that_is_cancelled_ends_its_span_and_the_work(model: Any, scope: ns.Scope) -> None:
    """The library delivers nothing of it: nothing stays open for the life of the process."""
    config = hf.ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=32)
    manager = model.init_continuous_batching(continuous_batching_config=config)
    name = manager.add_request(list(range(3, 9)), max_new_tokens=5)
    assert not spans(scope)
    manager.cancel_request(name)
    manager.cancel_request(name)  # again is no harm
    request, batch = sorted(spans(scope), key=lambda span: span.name, reverse=True)
    assert request.attributes[names.FINISH_REASONS] == ["cancelled"]
    assert batch.attributes[names.MODEL_BATCH] == 1
    assert [link.span_id for link in batch.links] == [request.span_id]


def test_batched_tokens_are_those_without_us(model: Any) -> None:
    """And the library's functions are its own again."""
    patched = ((batching.ContinuousBatchingManager, "add_request"), (batching.OutputRouter, "deliver"))
    before = [getattr(holder, name) for holder, name in patched]
    prompts = [list(range(3, 3 + length)) for length in (4, 7)]

    def run() -> list[list[int]]:
        return [result.generated_tokens for result in in_one_batch(model, prompts).values()]

    expected = run()
    ns.Platform()
    ns.instrument("continuous_batching")
    assert [getattr(holder, name) for holder, name in patched] != before
    assert run() == expected
    ns.uninstrument("continuous_batching")
    assert [getattr(holder, name) for holder, name in patched] == before


@pytest.mark.integration
def test_smollm2_in_a_pipeline(scope: ns.Scope) -> None:
    """A real model: its configuration, steps and tokens under one parent."""
    pipe = hf.pipeline("text-generation", model=str(prepare_smollm2()), device="cpu")
    pipe("The capital of France is", max_new_tokens=4, do_sample=False)
    (parent,) = spans(scope, "pipelines")
    (generated,) = spans(scope)
    assert generated.parent_span_id == parent.span_id
    assert generated.attributes[names.OUTPUT_TOKENS] == 4
    assert str(generated.attributes[names.GENERATION_CONFIG]).startswith("ns1:")
    assert generated.attributes[names.MODEL_STEP_MEDIAN] > 0  # type: ignore[operator]
