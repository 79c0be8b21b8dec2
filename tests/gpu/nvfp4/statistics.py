"""Queries, keys and values as a language model has them, as far as a seed can make them.

What makes 4-bit keys hard is in it: two channels of each head with several times the others' spread and a
mean far from zero, among those that rotary position embedding turns slowly, the embedding itself, and a first
token whose key is much larger than all others. Values have a heavy tail over channels and tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nvfp4.rig import Shape

__all__ = ["OUTLIERS", "Source"]

THETA = 1_000_000.0
OUTLIERS = 2  # channels of each head, where a layer has them
LOGITS = 2.5  # standard deviation of the attention's logits


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of *x* (tokens x heads x channels), halves rotated as in Llama and Qwen."""
    half = x.shape[-1] // 2
    frequency = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions.float()[:, None, None] * frequency
    left, right = x[..., :half], x[..., half:]
    return torch.cat(
        [left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=-1
    )


@dataclass
class Source:
    """A layer's random source: the channels' statistics stay, the tokens are new with each call."""

    shape: Shape
    device: torch.device
    dtype: torch.dtype
    seed: int
    outliers: int = OUTLIERS

    def __post_init__(self) -> None:
        """Draw the channels' statistics."""
        self._random = torch.Generator(device=self.device).manual_seed(self.seed)
        heads, width = self.shape.kv_heads, self.shape.head
        self._spread = torch.exp(0.3 * self._normal(heads, width))
        self._mean = 0.3 * self._normal(heads, width)
        for head in range(heads):
            slow = torch.randperm(width // 8, generator=self._random, device=self.device) + 3 * width // 8
            chosen = slow[: self.outliers]
            self._spread[head, chosen] *= 4
            self._mean[head, chosen] += 8 * self._normal(self.outliers).sign()
        self._value_spread = torch.exp(0.6 * self._normal(heads, width))

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._random, device=self.device)

    def keys(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotated keys (tokens x heads x channels) at *positions*."""
        count = len(positions)
        key = self._mean + self._spread * self._normal(count, self.shape.kv_heads, self.shape.head)
        key = torch.where((positions == 0)[:, None, None], 4 * key, key)
        return rotate(key, positions).to(self.dtype)

    def values(self, positions: torch.Tensor) -> torch.Tensor:
        """Return values (tokens x heads x channels); the first token's are small."""
        count, heads = len(positions), self.shape.kv_heads
        tail = torch.exp(0.5 * self._normal(count, heads, 1))
        value = self._value_spread * tail * self._normal(count, heads, self.shape.head)
        return torch.where((positions == 0)[:, None, None], 0.05 * value, value).to(self.dtype)

    def queries(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotated queries (tokens x heads x channels), small in the keys' outlier channels."""
        group = self.shape.q_heads // self.shape.kv_heads
        size = torch.sqrt(self._spread**2 + self._mean**2).repeat_interleave(group, dim=0)
        query = self._normal(len(positions), self.shape.q_heads, self.shape.head) / size
        return rotate(LOGITS * query, positions).to(self.dtype)
