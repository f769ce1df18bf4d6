"""The transformer of `twins`, in Keras."""

from __future__ import annotations

import importlib
from typing import Any

import twins

keras: Any = importlib.import_module("keras")  # neither typed nor stubbed


class KerasBlock(keras.layers.Layer):  # type: ignore[misc]  # its base is untyped
    """A pre-norm block."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"blocks_{number}")  # on PyTorch a name takes no dot
        self.parts = {
            name: keras.layers.Dense(narrow, use_bias=False, name=name)
            for name, (_, narrow) in twins.LINEAR.items()
        }
        self.norm1 = keras.layers.LayerNormalization(epsilon=twins.EPSILON, name="norm1")
        self.norm2 = keras.layers.LayerNormalization(epsilon=twins.EPSILON, name="norm2")

    def call(self, x: Any) -> Any:
        """Attention, then a feed-forward layer."""
        ops, parts, y = keras.ops, self.parts, self.norm1(x)
        shape = (*y.shape[:-1], twins.HEADS, twins.WIDTH // twins.HEADS)
        q, k, v = [ops.transpose(ops.reshape(parts[name](y), shape), (0, 2, 1, 3)) for name in "qkv"]
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (twins.WIDTH / twins.HEADS) ** 0.5
        mixed = ops.transpose(ops.matmul(ops.softmax(scores), v), (0, 2, 1, 3))
        x = x + parts["o"](ops.reshape(mixed, x.shape))
        return x + parts["down"](keras.activations.gelu(parts["up"](self.norm2(x)), approximate=True))


def make(weights: twins.Weights) -> Any:
    """The model with these weights."""
    tokens = keras.Input(batch_shape=twins.TOKENS.shape, dtype="int32")
    embed = keras.layers.Embedding(twins.WORDS, twins.WIDTH, name="embed")
    blocks = [KerasBlock(number) for number in range(twins.BLOCKS)]
    head = keras.layers.Dense(twins.WORDS, use_bias=False, name="head")
    x = embed(tokens)
    for block in blocks:
        x = block(x)
    model = keras.Model(tokens, head(x), name="twin")
    embed.set_weights([weights["embed"]])
    head.set_weights([weights["head"]])
    for block in blocks:
        for name, layer in block.parts.items():
            layer.set_weights([weights[f"{block.name.replace('_', '.')}.{name}"]])
    return model
