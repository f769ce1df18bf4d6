"""`generate` of transformers, observed: tokens, phases, blocks, bit-equal output, context across threads."""

from __future__ import annotations

import contextvars
import dataclasses
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from opentelemetry.trace import SpanKind
from transformers.generation.utils import GenerationMixin

import neuronscope as ns
import tinymodels
from neuronscope import platform
from neuronscope.demo.models import prepare_smollm2
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.transformers import (
    TRANSFORMERS,
    Output,
    Prompt,
    on_host,
    read_prompt,
    read_response,
    sequence_end,
    unwrap,
)

hf: Any = transformers  # its own types are partial
NEW = 6
PROMPT = torch.arange(3, 11)[None]
BLOCKS = [f"model.layers.{i}" for i in range(4)]


@pytest.fixture(scope="module")
def model() -> Any:
    """A Llama of four blocks."""
    return tinymodels.llama()


@pytest.fixture
def observed() -> Iterator[ns.Scope]:
    """A scope in which transformers is instrumented."""
    ns.Platform()
    ns.instrument("transformers")
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        yield scope


def generations(scope: ns.Scope) -> list[SpanRecord]:
    """The spans of the library."""
    return [s for s in scope.artifact.telemetry.spans if s.library == "neuronscope.transformers"]


# --- what a call tells --------------------------------------------------------------------------------------
def test_generate_is_a_text_completion(model: Any, observed: ns.Scope) -> None:
    """Model, tokens, limit, end, phases and the blocks' aggregates, on one span of this process."""
    output = model.generate(PROMPT, max_new_tokens=NEW)
    (span,) = generations(observed)
    attributes = span.attributes
    assert output.shape == (1, 8 + NEW)
    assert span.name == "text_completion LlamaForCausalLM"
    assert span.kind is SpanKind.INTERNAL
    assert attributes[names.OPERATION_NAME] == "text_completion"
    assert attributes[names.PROVIDER_NAME] == "transformers"
    assert attributes[names.INPUT_TOKENS] == 8
    assert attributes[names.OUTPUT_TOKENS] == NEW
    assert attributes[names.REQUEST_MAX_TOKENS] == NEW
    assert attributes[names.FINISH_REASONS] == ["length"]
    assert attributes[names.MODEL_BATCH] == 1
    assert attributes[names.MODEL_FORWARDS] == NEW
    assert attributes[names.LAYERS_IDS] == BLOCKS
    assert attributes[names.LAYERS_RECORDS] == len(BLOCKS) * NEW
    phases = [attributes[names.MODEL_PREFILL], attributes[names.MODEL_DECODE]]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in phases)
    assert sum(phases) * 1000 <= span.duration_ms  # type: ignore[arg-type]
    assert not {names.REQUEST_TEMPERATURE, names.REQUEST_STREAM, names.INPUT_MESSAGES} & set(attributes)


def test_every_step_of_every_block_is_recorded(model: Any, observed: ns.Scope) -> None:
    """Step 0 is the prefill with the whole prompt; each further step is one token."""
    model.generate(PROMPT, max_new_tokens=NEW)
    (span,) = generations(observed)
    records = observed.artifact.telemetry.layer_snapshots
    assert [(r.layer_id, r.step) for r in records] == [(b, step) for step in range(NEW) for b in BLOCKS]
    assert {record.span_id for record in records} == {span.span_id}
    assert [r.shape for r in records if r.layer_id == BLOCKS[0]] == [(1, 8, 32), *[(1, 1, 32)] * (NEW - 1)]
    assert all(record.summary is not None and record.summary.finite for record in records)


def test_sampling_is_reported_only_when_it_samples(model: Any, observed: ns.Scope) -> None:
    """The call's options win over a configuration's, and that over the model's; greedy has no temperature."""
    config = hf.GenerationConfig(do_sample=True, temperature=0.5, top_k=7, max_new_tokens=3)
    model.generate(PROMPT, generation_config=config, top_p=0.9, max_new_tokens=2, num_return_sequences=2)
    model.generate(PROMPT, max_new_tokens=2, temperature=1.0)
    sampled, greedy = (span.attributes for span in generations(observed))
    assert sampled[names.REQUEST_TEMPERATURE] == 0.5
    assert sampled[names.REQUEST_TOP_K] == 7
    assert sampled[names.REQUEST_TOP_P] == 0.9
    assert sampled[names.REQUEST_MAX_TOKENS] == 2
    assert sampled[names.REQUEST_CHOICE_COUNT] == 2
    assert sampled[names.OUTPUT_TOKENS] == 4
    assert len(sampled[names.FINISH_REASONS]) == 2  # type: ignore[arg-type]
    assert not {names.REQUEST_TEMPERATURE, names.REQUEST_TOP_K} & set(greedy)


def test_padding_is_no_token(model: Any, observed: ns.Scope) -> None:
    """A batch counts what the mask counts, and each sequence up to its own end."""
    ids = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    plain = model.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=NEW)
    stop = int(plain[0, 4 + 2])  # what the first sequence says third now ends it
    output = model.generate(
        ids, attention_mask=(ids != 0).long(), max_new_tokens=NEW, eos_token_id=[stop, 99]
    )
    first, second = output[:, 4:].tolist()
    expected = [first.index(stop) + 1, second.index(stop) + 1 if stop in second else NEW]
    batch = generations(observed)[1].attributes
    assert batch[names.MODEL_BATCH] == 2
    assert batch[names.INPUT_TOKENS] == 6
    assert batch[names.OUTPUT_TOKENS] == sum(expected)
    assert batch[names.FINISH_REASONS] == ["stop", "stop" if stop in second else "length"]


def test_a_result_object_is_read_for_its_sequences(model: Any, observed: ns.Scope) -> None:
    """`return_dict_in_generate`: the sequences count; scores and hidden states are not kept alive."""
    result = model.generate(
        PROMPT,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        output_scores=True,
        output_hidden_states=True,
    )
    held = weakref.ref(result.hidden_states[0][0])
    del result
    gc.collect()
    assert held() is None
    assert generations(observed)[0].attributes[names.OUTPUT_TOKENS] == NEW


def test_embedded_prompts_are_not_returned(model: Any, observed: ns.Scope) -> None:
    """With `inputs_embeds` the result holds new tokens only."""
    embedded = model.get_input_embeddings()(PROMPT)
    output = model.generate(inputs_embeds=embedded, max_new_tokens=NEW)
    assert output.shape == (1, NEW)
    attributes = generations(observed)[0].attributes
    assert attributes[names.INPUT_TOKENS] == 8
    assert attributes[names.OUTPUT_TOKENS] == NEW


def test_an_encoder_decoder_returns_no_prompt(observed: ns.Scope) -> None:
    """T5: the prompt is the encoder's; the start token of the decoder was not generated."""
    config = hf.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = hf.T5ForConditionalGeneration(config)
    model.train(False)
    output = model.generate(torch.arange(3, 9)[None], max_new_tokens=4)
    attributes = generations(observed)[0].attributes
    assert attributes[names.INPUT_TOKENS] == 6
    assert attributes[names.OUTPUT_TOKENS] == output.shape[1] - 1


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_the_default_limit_is_told(model: Any, observed: ns.Scope) -> None:
    """Where nobody sets a limit, transformers stops after 20 tokens; a total length leaves the rest."""
    output = model.generate(PROMPT, eos_token_id=-1)
    model.generate(PROMPT, max_length=10, eos_token_id=-1)
    default, total = (span.attributes for span in generations(observed))
    assert default[names.REQUEST_MAX_TOKENS] == output.shape[1] - 8
    assert default[names.FINISH_REASONS] == ["length"]
    assert total[names.REQUEST_MAX_TOKENS] == total[names.OUTPUT_TOKENS] == 2


def test_sequences_on_a_device_are_not_read() -> None:
    """No value is fetched from a device: a count that needs one is missing, never guessed."""
    prompt = Prompt(rows=2, tokens=None, offset=4, limit=6, stops=(2,))
    batch = read_response(prompt, Output(2, 10, None), False)
    short = read_response(prompt, Output(1, 7, None), False)
    full = read_response(prompt, Output(1, 10, None), False)
    assert (batch.output_tokens, batch.finish_reasons) == (None, None)
    assert (short.output_tokens, short.finish_reasons) == (3, ["stop"])
    assert (full.output_tokens, full.finish_reasons) == (6, None)


def test_only_plain_tensors_on_the_host_are_viewed(model: Any) -> None:
    """Subclasses, devices without values and floats are left alone; shapes still count."""
    assert on_host(torch.ones(2, device="meta", dtype=torch.long)) is None
    assert on_host(torch.nn.Parameter(torch.ones(2, dtype=torch.long), requires_grad=False)) is None
    assert on_host(torch.ones(2, dtype=torch.bfloat16)) is None
    assert on_host(np.ones(2)) is None
    meta = torch.ones(2, 5, device="meta", dtype=torch.long)
    options: dict[str, None] = dict.fromkeys(("max_new_tokens", "max_length"))
    assert unwrap(meta) == Output(2, 5, None)
    assert read_prompt(model, {"inputs": meta}, options).tokens == 10
    assert read_prompt(model, {"inputs": meta, "attention_mask": meta}, options).tokens is None
    assert read_prompt(model, {"inputs": torch.ones(1, 80, 100)}, options).tokens is None
    assert unwrap("text") is None


@pytest.mark.parametrize(
    ("generated", "end"),
    [
        ([5, 2, 0, 0], (2, "stop")),
        ([5, 6, 7, 2], (4, "stop")),
        ([5, 6, 7, 8], (4, "length")),
        ([5], (1, "stop")),
    ],
)
def test_how_a_sequence_ended(generated: list[int], end: tuple[int, str]) -> None:
    """At a stop token, at the limit, or by a criterion."""
    assert sequence_end(generated, stops=(2,), limit=4) == end


# --- harmless -----------------------------------------------------------------------------------------------
class Streamer:
    """A streamer of the service's."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.tokens: list[int] = []
        self.ended = False
        self._fail_after = fail_after

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()
        if len(self.tokens) == self._fail_after:
            raise ConnectionAbortedError("the reader left")

    def end(self) -> None:
        self.ended = True


def raising(*_: Any, **__: Any) -> Any:
    """A fault of ours."""
    raise RuntimeError("ours")


@pytest.mark.parametrize("change", [{}, {"snapshot": raising}, {"unwrap": raising}, {"model": raising}])
def test_tokens_are_bit_equal(model: Any, change: dict[str, Any]) -> None:
    """With us at full fidelity, and with each of the adapter's functions raising, as without us."""

    def run() -> tuple[torch.Tensor, torch.Tensor, list[int], torch.Tensor]:
        torch.manual_seed(7)
        streamer = Streamer()
        result = model.generate(
            PROMPT,
            max_new_tokens=NEW,
            do_sample=True,
            streamer=streamer,
            return_dict_in_generate=True,
            output_logits=True,
        )
        assert streamer.ended
        return result.sequences, torch.stack(result.logits), streamer.tokens, torch.random.get_rng_state()

    expected = run()
    methods = tuple(dataclasses.replace(method, **change) for method in TRANSFORMERS.methods)
    ns.registry.register_adapter(dataclasses.replace(TRANSFORMERS, methods=methods))
    GUARD.reraise = False
    try:
        ns.Platform(probes=("**:full",), max_overhead_pct=1000)
        ns.instrument("transformers")
        sequences, logits, streamed, state = run()
        assert torch.equal(sequences, expected[0])
        assert torch.equal(logits, expected[1])
        assert streamed == expected[2]
        assert torch.equal(state, expected[3])
        ENGINE.drain()
        assert bool(GUARD.faults) == bool(change)
    finally:
        ns.registry.unregister_adapter("transformers")


def test_a_streamed_call_is_told_and_its_streamer_untouched(model: Any, observed: ns.Scope) -> None:
    """The streamer gets the prompt and each token, and may raise to stop: its error goes through."""
    streamer, leaver = Streamer(), Streamer(fail_after=10)
    output = model.generate(PROMPT, max_new_tokens=NEW, streamer=streamer)
    with pytest.raises(ConnectionAbortedError):
        model.generate(PROMPT, max_new_tokens=NEW, streamer=leaver)
    complete, left = generations(observed)
    assert streamer.tokens == output[0].tolist()
    assert complete.attributes[names.REQUEST_STREAM] is True
    assert left.attributes[names.ERROR_TYPE] == "ConnectionAbortedError"
    assert left.attributes[names.MODEL_FORWARDS] == 2
    assert all("_call_impl" not in vars(module) for module in model.modules())


def test_the_model_can_be_collected() -> None:
    """Nothing of ours holds a model that has generated."""
    ns.Platform()
    ns.instrument("transformers")
    model = tinymodels.llama(1)
    model.generate(PROMPT, max_new_tokens=2)
    ENGINE.drain()
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


def test_uninstrumenting_restores_the_method() -> None:
    """The very function is back."""
    original = vars(GenerationMixin)["generate"]
    ns.Platform()
    ns.instrument("transformers")
    assert vars(GenerationMixin)["generate"] is not original
    assert platform.installation("transformers").missing == set()
    platform.uninstrument("transformers")
    assert vars(GenerationMixin)["generate"] is original


# --- across threads -----------------------------------------------------------------------------------------
def inference_thread() -> Any:
    """The thread in which `transformers serve` generates."""
    from transformers.cli.serving import utils

    serving: Any = utils
    return serving.InferenceThread()


async def test_the_inference_thread_of_transformers_serve_keeps_the_parent(model: Any) -> None:
    """Both ways into the thread carry the request's context; two requests do not mix."""
    ns.Platform()
    ns.instrument("transformers")
    thread = inference_thread()
    parents: dict[str, int] = {}
    with ns.Scope("server", max_overhead_pct=1000) as server:
        for name in ("blocking", "awaited"):
            with ns.Scope(name, max_overhead_pct=1000) as request:
                if name == "blocking":
                    thread.submit(model.generate, PROMPT, max_new_tokens=2).result(60)
                else:
                    await thread.async_submit(model.generate, inputs=PROMPT, max_new_tokens=2)
            parents[name] = request.artifact.telemetry.spans[0].span_id
            assert len(request.artifact.telemetry.layer_snapshots) == len(BLOCKS) * 2
    spans = generations(server)
    assert [span.parent_span_id for span in spans] == list(parents.values())
    assert len({span.trace_id for span in spans}) == 1


async def test_the_thread_passes_errors_and_results_on(model: Any) -> None:
    """What the handed-over function returns or raises arrives as before."""
    ns.Platform()
    ns.instrument("transformers")
    thread = inference_thread()
    assert thread.submit(threading.current_thread).result(60) is not threading.current_thread()
    assert await thread.async_submit(divmod, 7, 2) == (3, 1)
    assert await thread.async_submit(int, "11", base=2) == 3
    with pytest.raises(ZeroDivisionError):
        thread.submit(divmod, 1, 0).result(60)


@pytest.mark.integration
def test_a_real_language_model() -> None:
    """SmolLM2: the tokenizer's own count, thirty blocks at every step, bit-equal output."""
    folder = prepare_smollm2()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    expected = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    ns.Platform()
    ns.instrument("transformers")
    with ns.Scope("smollm2", max_overhead_pct=1000) as scope:
        assert torch.equal(model.generate(**inputs, max_new_tokens=5, do_sample=False), expected)
    (span,) = generations(scope)
    assert span.attributes[names.INPUT_TOKENS] == inputs.input_ids.shape[1]
    assert span.attributes[names.LAYERS_OBSERVED] == 30
    assert span.attributes[names.LAYERS_RECORDS] == 150


def test_overlapping_calls_on_one_model_keep_their_records_apart() -> None:
    """Two threads generate on one model at once: each span has its own forwards and layer records."""
    model = tinymodels.llama(layers=2)
    ns.instrument("transformers")
    barrier = threading.Barrier(2)

    def generate(tokens: int) -> None:
        barrier.wait()
        model.generate(torch.ones((1, 4), dtype=torch.long), max_new_tokens=tokens, do_sample=False)

    with ns.Scope("both") as scope:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(generate, tokens))
            for tokens in (12, 16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = scope.artifact.llm_spans
    assert sorted(span.span.attributes[names.MODEL_FORWARDS] for span in spans) == [12, 16]  # type: ignore[type-var]
    for span in spans:
        taken = span.span.attributes[names.LAYERS_RECORDS]
        skipped = span.span.attributes[names.LAYERS_SKIPPED]
        assert taken + skipped == 2 * span.span.attributes[names.MODEL_FORWARDS]  # type: ignore[operator]
