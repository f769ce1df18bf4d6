"""The model that is measured: a decoder of 12 layers, in two sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SIZES = {"small": (256, 64), "base": (768, 128)}  # channels, tokens


class Attention(nn.Module):
    """Causal self-attention of eight heads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As usual."""
        rows, tokens, size = x.shape
        q, k, v = (
            layer(x).view(rows, tokens, 8, size // 8).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.o(mixed.transpose(1, 2).reshape(rows, tokens, size))
        return out


class Block(nn.Module):
    """Attention and a feed-forward net."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn = Attention(size)
        self.fc1, self.act, self.fc2 = nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As usual."""
        x = x + self.attn(self.ln1(x))
        out: torch.Tensor = x + self.fc2(self.act(self.fc1(self.ln2(x))))
        return out


class Decoder(nn.Module):
    """Embeddings, 12 blocks, a head."""

    def __init__(self, size: int, tokens: int) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(1000, size), nn.Embedding(tokens, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(12))
        self.ln, self.head = nn.LayerNorm(size), nn.Linear(size, 1000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.ln(x))
        return out


def make(size: str) -> tuple[Any, torch.Tensor]:
    """The model and its input."""
    channels, tokens = SIZES[size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Decoder(channels, tokens).eval(), torch.randint(0, 1000, (1, tokens))
