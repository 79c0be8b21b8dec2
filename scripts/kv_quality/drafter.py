"""A small block drafter, trained in place, whose attention reads the target's hidden states.

It has DFlash's shape at a small size. Hidden states are projected to keys and values, the stored context. The
last token that the target confirmed and masked places behind it are computed in one step; attention sees the
context before them, all of it or a window's, and the block itself, in both directions. Each masked place
predicts its own token, out of the tokens that occurred in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Round = Callable[[torch.Tensor, int, int], torch.Tensor]

__all__ = ["BLOCK", "Drafter", "Shape", "context_mask", "greatest"]

BLOCK = 6
"""Tokens of a block: one confirmed, five drafted."""


@dataclass(frozen=True)
class Shape:
    """Of a drafter.

    Attributes:
        width: of hidden states, the target's.
        heads: of queries.
        kv_heads: of keys and values.
        inner: width of the feed-forward networks.
        layers: of attention.
        features: target's hidden states that are joined at each position.
        theta: base of the rotary positions.
    """

    width: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    features: int
    theta: float

    @property
    def head(self) -> int:
        """Return the width of a head."""
        return self.width // self.heads


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Return *x* (… x positions x heads x channels) with rotary *positions* (… x positions)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions.float()[..., None, None] * frequency
    left, right = x[..., :half], x[..., half:]
    return torch.cat(
        [left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=-1
    )


def context_mask(
    anchors: torch.Tensor, length: int, window: int | None, block: int = BLOCK, begin: int = 0
) -> torch.Tensor:
    """Return what each place of each block may read: blocks*block x (length + blocks*block), bool.

    Args:
        anchors: position of each block's confirmed token.
        length: positions of context.
        window: of the last positions before the confirmed token that are read; all if none.
        block: tokens of a block.
        begin: first position that is stored; those before it are as if never stored.
    """
    at = anchors.repeat_interleave(block)
    place = torch.arange(length)
    seen = (place[None] < at[:, None]) & (place[None] >= begin)
    if window is not None:
        seen &= place[None] >= at[:, None] - window
    number = torch.arange(len(anchors)).repeat_interleave(block)
    return torch.cat([seen, number[:, None] == number[None]], dim=1)


class Layer(nn.Module):
    """Attention over stored context and the block, and a feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.kv_heads * shape.head
        self.before, self.between = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key, self.value = (nn.Linear(shape.width, narrow, bias=False) for _ in range(2))
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate, self.up = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def store(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (… x positions x heads x channels) of *x* at *positions*."""
        size = (*x.shape[:-1], self.shape.kv_heads, self.shape.head)
        return rotate(self.key(x).view(size), positions, self.shape.theta), self.value(x).view(size)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        context: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the block's hidden states after the layer (batch x places x width)."""
        normal = self.before(x)
        own = self.store(normal, positions)
        keys, values = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(context, own, strict=True))
        query = self.query(normal).view(*x.shape[:-1], self.shape.heads, self.shape.head)
        read = nn.functional.scaled_dot_product_attention(
            rotate(query, positions, self.shape.theta).transpose(1, 2),
            keys,
            values,
            attn_mask=mask[:, None],
            enable_gqa=True,
        )
        x = x + self.out(read.transpose(1, 2).flatten(2))
        normal = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))


class Drafter(nn.Module):
    """A block drafter over a target's hidden states.

    Attributes:
        known: tokens that it can draft, ascending.
    """

    def __init__(
        self, shape: Shape, embedding: torch.Tensor, head: torch.Tensor, known: torch.Tensor
    ) -> None:
        """Take the target's *embedding* and *head* (vocabulary x width), which stay as they are."""
        super().__init__()
        self.shape, self.known = shape, known
        self.embedding, self.head = embedding.detach(), head.detach()[known]
        self.masked = nn.Parameter(torch.randn(shape.width) * float(self.embedding.std()))
        self.join = nn.Linear(shape.features * shape.width, shape.width, bias=False)
        self.joined, self.last = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def store(
        self, features: torch.Tensor, round_: Round | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each layer's keys and values of the context, rounded as its cache's format.

        Args:
            features: the target's hidden states, batch x positions x joined width.
            round_: takes keys or values, the layer and the side (0, 1).
        """
        x = self.joined(self.join(features))
        positions = torch.arange(x.shape[1]).expand(x.shape[:2])
        found = []
        for number, layer in enumerate(self.layers):
            keys, values = layer.store(x, positions)
            found.append(
                (keys, values) if round_ is None else (round_(keys, number, 0), round_(values, number, 1))
            )
        return found

    def forward(
        self,
        tokens: torch.Tensor,
        anchors: torch.Tensor,
        context: list[tuple[torch.Tensor, torch.Tensor]],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return scores of the drafted places (batch x blocks x drafts x known tokens).

        Args:
            tokens: confirmed tokens, batch x blocks.
            anchors: their positions, batch x blocks.
            context: of `store`.
            mask: of `context_mask`, batch first.
        """
        batch, blocks = tokens.shape
        x = self.masked.expand(batch, blocks, BLOCK - 1, -1)
        x = torch.cat([self.embedding[tokens][:, :, None], x], dim=2).flatten(1, 2)
        positions = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
        for layer, stored in zip(self.layers, context, strict=True):
            x = layer(x, positions, stored, mask)
        drafted = self.last(x).unflatten(1, (blocks, BLOCK))[:, :, 1:]
        return drafted @ self.head.T

    def draft(
        self,
        tokens: torch.Tensor,
        anchors: torch.Tensor,
        context: list[tuple[torch.Tensor, torch.Tensor]],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the likeliest tokens of the drafted places (batch x blocks x drafts)."""
        return self.known[self(tokens, anchors, context, mask).argmax(-1)]


def greatest(context: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[tuple[int, int], float]:
    """Return the largest magnitudes in *context* by layer and side, for calibrated scales."""
    return {
        (number, side): float(states.abs().max())
        for number, layer in enumerate(context)
        for side, states in enumerate(layer)
    }
