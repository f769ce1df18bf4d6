"""Whatever runs a model can be traced: transformers' pipelines with text in, and loops of a denoiser."""

# What a trace gives is Any; transformers and torch leave parts of themselves untyped.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions import OutOfOrderError
from tinymodels import WORDS, llama, tokenizer
from tracednets import left_on

TEXT = "how do heat pumps [UNK]"
TASKS = {
    "text-classification": "BertForSequenceClassification",
    "token-classification": "BertForTokenClassification",
    "fill-mask": "BertForMaskedLM",
    "feature-extraction": "BertModel",
}


@pytest.fixture(autouse=True)
def told_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pipelines put into the environment where it is not there."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def pipe(task: str, folder: Path) -> Any:
    """A pipeline of a tiny model whose vocabulary is `WORDS`."""
    import transformers

    library: Any = transformers
    reader = tokenizer(folder)
    reader.mask_token = "[UNK]"
    if task == "text-generation":
        model = llama(vocab_size=len(WORDS), eos_token_id=None)
    else:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = library.BertConfig(
                vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64,
            )  # fmt: skip
            model = getattr(library, TASKS[task])(config).eval()
    return library.pipeline(task, model=model, tokenizer=reader)


@pytest.mark.parametrize("task", TASKS)
def test_a_pipeline_is_traced_with_text_in(task: str, tmp_path: Path) -> None:
    """Untouched it answers as ever; an absurd edit changes the answer; several texts are a batch."""
    pipeline = pipe(task, tmp_path)
    plain = pipeline(TEXT)
    model = ns.Model.wrap(pipeline)
    block = ("" if task == "feature-extraction" else "bert.") + "encoder.layer.1"
    with model.trace(TEXT) as t:
        hidden = t[block].first
    assert hidden.shape == (1, 5, 32)
    assert t.result == plain
    with model.trace(TEXT) as t:
        t[block].first = torch.full_like(t[block].first, 3.0)
    assert t.result != plain
    with model.trace([TEXT, TEXT], batch_size=2) as t:
        assert t[block].first.shape == (2, 5, 32)
    assert len(t.result) == 2
    assert pipeline(TEXT) == plain
    assert not left_on(pipeline.model)


def test_a_pipeline_that_generates_has_steps(tmp_path: Path) -> None:
    """One for each token; what is changed in one of them changes what follows."""
    pipeline = pipe("text-generation", tmp_path)
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    plain = pipeline("how do heat", **settings)
    model = ns.Model.wrap(pipeline)
    with model.trace("how do heat", **settings) as t:
        lengths = [t["model.layers.1"].first.shape[1] for _ in t.steps]
    assert lengths == [3, 1, 1, 1]
    assert t.result == plain
    with model.trace("how do heat", **settings) as t:
        for _ in t.steps:
            logits = torch.zeros_like(t.lm_head.output)
            logits[..., WORDS.index("cold")] = 9.0
            t.lm_head.output = logits
    assert t.result[0]["generated_text"].endswith("cold cold cold cold")


def test_the_model_of_a_pipeline_can_be_scanned_and_shown(tmp_path: Path) -> None:
    """Shapes need no answer: the model itself is called, on the tokens of the text."""
    model = ns.Model.wrap(pipe("text-classification", tmp_path))
    with model.scan(TEXT) as t:
        assert t["bert.encoder.layer.0"].first.shape == (1, 5, 32)
    assert any(call.name == "linear" for call in model.show("bert.encoder.layer.0", TEXT))


class Denoiser(nn.Module):
    """Down, middle, up, told which step it is."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 8)
        self.time = nn.Embedding(10, 4)

    def forward(self, sample: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """The noise that it sees."""
        return self.up(torch.tanh(self.mid(self.down(sample) + self.time(step))))  # type: ignore[no-any-return]


class Diffusion:
    """As pipelines of diffusers are: no module, a scheduler's loop around the denoiser, guidance or none."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.unet = Denoiser()

    @torch.no_grad()
    def __call__(self, noise: torch.Tensor, steps: int = 5, guidance: float = 0.0) -> torch.Tensor:
        """The sample after so many steps; with guidance the denoiser is called twice in each."""
        sample = noise
        for step in reversed(range(steps)):
            seen = self.unet(sample, torch.tensor(step))
            if guidance:
                seen = seen + guidance * (seen - self.unet(torch.zeros_like(sample), torch.tensor(step)))
            sample = sample - seen / steps
        return sample


def test_the_loop_of_a_denoiser_is_steps() -> None:
    """One for each call of the denoiser; untouched bit-equal; an edit in one step is that step's."""
    diffusion, noise = Diffusion(), torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    plain = diffusion(noise)
    model = ns.Model.wrap(diffusion.unet)
    model.call = diffusion
    with model.trace(noise) as t:
        times = [int(t.root.inputs[0][1]) for _ in t.steps]
        after = t.result
    assert times == [4, 3, 2, 1, 0]
    assert torch.equal(after, plain)

    expected = noise
    for step in reversed(range(5)):
        hidden = diffusion.unet.down(expected) + diffusion.unet.time(torch.tensor(step))
        mid = diffusion.unet.mid(hidden) * (0.0 if step == 2 else 1.0)
        expected = expected - diffusion.unet.up(torch.tanh(mid)) / 5
    with model.trace(noise) as t:
        for number in t.steps:
            if number == 2:
                t.mid.output = t.mid.output * 0
    assert torch.allclose(t.result, expected)
    assert not torch.equal(t.result, plain)


def test_a_guided_loop_has_a_step_for_each_call() -> None:
    """Two calls of the denoiser in a step of the scheduler: both can be told apart, and edited alone."""
    diffusion, noise = Diffusion(), torch.ones(2, 8)
    plain = diffusion(noise, 3, guidance=2.0)
    model = ns.Model.wrap(diffusion.unet)
    with model.trace(noise, 3, guidance=2.0, method=diffusion) as t:
        guided = [bool(t.root.input.any()) for _ in t.steps]
    assert guided == [True, False] * 3
    assert torch.equal(t.result, plain)
    with model.trace(noise, 3, guidance=2.0, method=diffusion) as t:
        for number in t.steps[:6]:
            if number % 2:
                t.mid.skip(torch.zeros(2, 4))
    assert not torch.equal(t.result, plain)


def test_a_site_that_has_passed_in_a_step_of_a_loop_is_refused() -> None:
    """It never means the next step."""
    diffusion = Diffusion()
    with pytest.raises(OutOfOrderError, match="within this step"):
        with ns.Model.wrap(diffusion.unet).trace(torch.ones(2, 8), method=diffusion) as t:
            for _ in t.steps:
                _ = t.up.output
                _ = t.mid.output
    assert not left_on(diffusion.unet)
