"""Round keys and values as a KV cache of each format holds them.

NVFP4 follows ``tests/gpu/nvfp4/coder.py`` bit for bit, which the kernels' bytes are proved against. The
others follow what vLLM 0.33 states of them: INT8 with a scale for each token and head, and TurboQuant's
presets ``turboquant_k8v4`` and ``turboquant_4bit_nc``, which leave two layers at either end in 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Rounding = Callable[[torch.Tensor, float], torch.Tensor]

__all__ = ["FORMATS", "Format", "bfloat16", "fp8", "int8", "nvfp4", "turbo_keys", "turbo_values"]

GROUP = 16
FP8_TOP = 448.0
NVFP4_TOP = 6.0 * FP8_TOP
LEVELS = 16
FINE, MIDDLE = 2.0, 4.0  # where the distance between E2M1 values changes


def bfloat16(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return *x* as a 16-bit cache holds it; *scale* is not used."""
    del scale
    return x.bfloat16().float()


def fp8(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return *x* as an E4M3 cache with the tensor's *scale* holds it; too large values saturate."""
    return (x.bfloat16().float() / scale).clamp(-FP8_TOP, FP8_TOP).to(torch.float8_e4m3fn).float() * scale


def nvfp4(x: torch.Tensor, scale: float, *, largest: tuple[float, ...] = (6.0,)) -> torch.Tensor:
    """Return *x* as an NVFP4 cache with the tensor's *scale* holds it.

    Args:
        x: keys or values; the last dimension is a head's, a multiple of 16.
        scale: of the tensor.
        largest: codes that a group's largest value may get; the one with the least squared error is taken.
    """
    groups = x.bfloat16().float().unflatten(-1, (-1, GROUP))
    whole = torch.tensor(scale)
    size = groups.abs()
    top = size.amax(-1, keepdim=True)
    found = []
    for code in largest:
        step = (top / (code * whole)).clamp(max=FP8_TOP).to(torch.float8_e4m3fn).float()
        step = torch.where((top > 0) & (step == 0), 2.0**-9, step)
        inverse = torch.where(step > 0, 1.0 / (step * whole), 0.0)
        # In float64 as the coder's decoding: code and step are exact, the scale is multiplied last.
        value = (e2m1((size * inverse).clamp(max=6.0)) * step * groups.sign()).double() * scale
        found.append((value, (value - groups).square().sum(-1, keepdim=True)))
    best, error = found[0]
    for value, missed in found[1:]:
        best, error = torch.where(missed < error, value, best), torch.minimum(missed, error)
    return best.float().flatten(-2)


def e2m1(x: torch.Tensor) -> torch.Tensor:
    """Return *x*, between 0 and 6, rounded to E2M1, ties to even codes."""
    step = torch.where(x < FINE, 0.5, torch.where(x < MIDDLE, 1.0, 2.0))
    return torch.round(x / step) * step


def int8(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return *x* in INT8 with a float32 scale for each token and head; *scale* is not used."""
    del scale
    exact = x.bfloat16().float()
    step = (exact.abs().amax(-1, keepdim=True) / 127.0).clamp(min=1e-6)
    return ((exact / step).abs() + 0.5).floor().clamp(max=127.0) * exact.sign() * step


def turbo_keys(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return keys in four bits a channel: unit vectors, rotated, at Lloyd-Max levels.

    *scale* is not used. Vectors are brought to unit length again; each one's length is kept in float16.
    """
    del scale
    exact = x.bfloat16().float()
    length = exact.norm(dim=-1, keepdim=True)
    rotation = hadamard(x.shape[-1])
    centres = normal_levels() / math.sqrt(x.shape[-1])
    code = torch.bucketize((exact / (length + 1e-8)) @ rotation, (centres[1:] + centres[:-1]) / 2)
    unit = centres[code]
    unit = unit / unit.norm(dim=-1, keepdim=True).clamp(min=1e-8)
    return (unit @ rotation) * length.half().float()


def turbo_values(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return values at 16 even levels from each vector's least to its greatest; *scale* is not used."""
    del scale
    exact = x.bfloat16().float()
    least = exact.amin(-1, keepdim=True)
    step = ((exact.amax(-1, keepdim=True) - least) / (LEVELS - 1)).clamp(min=1e-8)
    code = ((exact - least) / step + 0.5).floor().clamp(0, LEVELS - 1)
    return code * step.half().float() + least.half().float()


@cache
def hadamard(width: int) -> torch.Tensor:
    """Return the orthonormal Hadamard matrix of *width*, a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(width)


@cache
def normal_levels() -> torch.Tensor:
    """Return the 16 levels with the least squared error for a normal distribution (Lloyd, Max)."""
    levels = torch.linspace(-2.7, 2.7, LEVELS, dtype=torch.float64)
    far = torch.tensor([math.inf], dtype=torch.float64)
    for _ in range(2000):
        edges = torch.cat([-far, (levels[1:] + levels[:-1]) / 2, far])
        height = torch.exp(-edges.square() / 2) / math.sqrt(2 * math.pi)
        below = torch.special.ndtr(edges)
        levels = (height[:-1] - height[1:]) / (below[1:] - below[:-1])
    return levels.float()


@dataclass(frozen=True)
class Format:
    """A format of a KV cache.

    Attributes:
        keys: rounding of keys.
        values: rounding of values.
        top: magnitude that a layer's largest calibrated value gets in units of the scale; 0: scales of 1.
        whole: layers at either end that stay 16-bit.
    """

    keys: Rounding
    values: Rounding
    top: float = 0.0
    whole: int = 0


_FOUR_OVER_SIX = partial(nvfp4, largest=(6.0, 4.0))

FORMATS = {
    "16 bits": Format(bfloat16, bfloat16),
    "FP8": Format(fp8, fp8),
    "FP8, calibrated": Format(fp8, fp8, FP8_TOP),
    "NVFP4": Format(nvfp4, nvfp4),
    "NVFP4, calibrated": Format(nvfp4, nvfp4, NVFP4_TOP),
    "NVFP4, 4 over 6": Format(_FOUR_OVER_SIX, _FOUR_OVER_SIX),
    "NVFP4, 4 over 6, calibrated": Format(_FOUR_OVER_SIX, _FOUR_OVER_SIX, NVFP4_TOP),
    "NVFP4 keys, FP8 values": Format(nvfp4, fp8),
    "FP8 keys, NVFP4 values": Format(fp8, nvfp4),
    "NVFP4, ends in 16 bits": Format(nvfp4, nvfp4, whole=2),
    "INT8 per token and head": Format(int8, int8),
    "TurboQuant, FP8 keys": Format(fp8, turbo_values, whole=2),
    "TurboQuant, 4 bits": Format(turbo_keys, turbo_values, whole=2),
}
"""Formats by name; the first is what the others are compared with."""
