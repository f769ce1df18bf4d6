"""One small transformer, written for each runtime: for the same weights it has to give the same summaries.

A twin is made of the weights, and runs on token ids; its layers have the same paths in every runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray
from torch import nn

BLOCKS, WIDTH, HEADS, HIDDEN, WORDS = 2, 32, 4, 64, 50
EPSILON = 1e-5
LINEAR = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH),
          "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}  # fmt: skip
LAYERS = [
    "embed",
    *(f"blocks.{n}.{part}" for n in range(BLOCKS) for part in ("norm1", *LINEAR, "norm2")),
    "head",
]
TOKENS = np.random.default_rng(1).integers(0, WORDS, size=(3, 7))

Weights = dict[str, NDArray[np.float32]]


def make_weights(seed: int = 0) -> Weights:
    """Weights by path; of a linear layer as (in, out)."""
    numbers = np.random.default_rng(seed)

    def draw(*shape: int) -> NDArray[np.float32]:
        drawn = numbers.normal(size=shape) / np.sqrt(shape[0])
        return np.asarray(drawn, np.float32)

    weights = {"embed": draw(WORDS, WIDTH), "head": draw(WIDTH, WORDS)}
    for number in range(BLOCKS):
        weights |= {f"blocks.{number}.{name}": draw(*shape) for name, shape in LINEAR.items()}
    return weights


class TorchBlock(nn.Module):
    """A pre-norm block."""

    def __init__(self, weights: Weights, path: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        for name, (wide, narrow) in LINEAR.items():
            layer = nn.Linear(wide, narrow, bias=False)
            layer.weight.data = torch.from_numpy(weights[f"{path}.{name}"].T.copy())
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then a feed-forward layer."""
        parts: dict[str, Any] = dict(self.named_children())
        y = self.norm1(x)

        def heads(name: str) -> torch.Tensor:
            return parts[name](y).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # type: ignore[no-any-return]

        q, k, v = heads("q"), heads("k"), heads("v")
        share = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5, dim=-1)
        x = x + parts["o"]((share @ v).transpose(1, 2).flatten(-2))
        return x + parts["down"](nn.functional.gelu(parts["up"](self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class TorchTwin(nn.Module):
    """The transformer in PyTorch."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.embed.weight.data = torch.from_numpy(weights["embed"].copy())
        self.blocks = nn.ModuleList(TorchBlock(weights, f"blocks.{n}") for n in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight.data = torch.from_numpy(weights["head"].T.copy())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def _linear(weight: NDArray[np.float32], rngs: nnx.Rngs) -> nnx.Linear:
    layer = nnx.Linear(*weight.shape, use_bias=False, rngs=rngs)
    layer.kernel[...] = jnp.asarray(weight)
    return layer


class JaxBlock(nnx.Module):
    """A pre-norm block."""

    def __init__(self, weights: Weights, path: str, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
        for name in LINEAR:
            setattr(self, name, _linear(weights[f"{path}.{name}"], rngs))

    def __call__(self, x: Any) -> Any:
        """Attention, then a feed-forward layer."""
        parts: Any = self
        y = self.norm1(x)

        def heads(layer: Any) -> Any:
            return layer(y).reshape(*y.shape[:-1], HEADS, -1).swapaxes(1, 2)

        q, k, v = heads(parts.q), heads(parts.k), heads(parts.v)
        share = nnx.softmax(q @ k.swapaxes(-1, -2) / (WIDTH / HEADS) ** 0.5, axis=-1)
        x = x + parts.o((share @ v).swapaxes(1, 2).reshape(x.shape))
        return x + parts.down(nnx.gelu(parts.up(self.norm2(x)), approximate=True))


class JaxTwin(nnx.Module):
    """The transformer in JAX."""

    def __init__(self, weights: Weights) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.embed.embedding[...] = jnp.asarray(weights["embed"])
        self.blocks = nnx.List([JaxBlock(weights, f"blocks.{n}", rngs) for n in range(BLOCKS)])
        self.head = _linear(weights["head"], rngs)

    def __call__(self, tokens: Any) -> Any:
        """Logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
