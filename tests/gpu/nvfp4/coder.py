"""NVFP4 from its definition: what bytes keys and values become, and what these bytes mean.

Shares no code with the kernels. Rounding is a search among the values of E2M1 and E4M3, in float64, where
every midpoint between two of them is exact; only the two quotients and the two products that the format's
writer defines in float32 are computed in float32.

A group of 16 values x with the tensor's scale g is written as

    t = max |x| / fl(6 g)        scale = E4M3(min(t, 448)), at least 2^-9 unless all are zero
    r = 1 / fl(scale g)          code  = E2M1(min(|x| r, 6)), with the sign of x

each rounded to nearest, ties to even.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 16
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(code: int) -> float:
    """Return the value of an E4M3 code without sign, 0 to 126."""
    exponent, mantissa = divmod(code, 8)
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


SCALES = tuple(e4m3(code) for code in range(127))


class Packed(NamedTuple):
    """A tensor (… x head size) in NVFP4: codes (… x half, uint8) and scales (… x sixteenth, uint8)."""

    codes: torch.Tensor
    scales: torch.Tensor


def nearest(x: torch.Tensor, values: tuple[float, ...]) -> torch.Tensor:
    """Index of the nearest of ascending *values*; of two as near, the even one. *x* is at least 0."""
    grid = torch.tensor(values, dtype=torch.float64, device=x.device)
    middles = (grid[1:] + grid[:-1]) / 2
    exact = x.double().contiguous()
    lower, upper = torch.bucketize(exact, middles), torch.bucketize(exact, middles, right=True)
    return torch.where(lower % 2 == 0, lower, upper)


def encode(x: torch.Tensor, scale: float) -> Packed:
    """Write *x* (… x head size, 16 or 32 bits) with the tensor's *scale*."""
    groups = x.float().unflatten(-1, (-1, GROUP))
    size = groups.abs()
    largest = size.amax(-1)
    whole = torch.tensor(scale, dtype=torch.float32, device=x.device)
    quotient = largest / (6.0 * whole)
    code = nearest(quotient.clamp(max=448.0), SCALES)
    code = torch.where((largest > 0) & (code == 0), 1, code)
    value = torch.tensor(SCALES, dtype=torch.float32, device=x.device)[code]
    inverse = torch.where(value > 0, 1.0 / (value * whole), 0.0)
    magnitude = nearest((size * inverse[..., None]).clamp(max=6.0), MAGNITUDES)
    nibbles = (magnitude + 8 * groups.signbit().long()).flatten(-2)
    codes = (nibbles[..., 0::2] + 16 * nibbles[..., 1::2]).to(torch.uint8)
    return Packed(codes, code.to(torch.uint8))


def places(block: int, heads: int, size: int, side: int) -> Packed:
    """Return where a page of *block* tokens has keys (*side* 0) or values (1): all codes, then all scales.

    Offsets of bytes: slots x heads x bytes (int64).
    """
    row = torch.arange(block)[:, None] * heads + torch.arange(heads)[None, :]
    widths = size // 2, size // GROUP
    begin = side * block * heads * sum(widths)
    codes = begin + row[..., None] * widths[0] + torch.arange(widths[0])
    scales = begin + block * heads * widths[0] + row[..., None] * widths[1] + torch.arange(widths[1])
    return Packed(codes, scales)


def write(pages: torch.Tensor, packed: Packed, slots: torch.Tensor, block: int, side: int) -> None:
    """Put *packed* (tokens x heads x …) into *pages* of *block* tokens at *slots*, in place."""
    where = places(block, packed.codes.shape[1], 2 * packed.codes.shape[2], side)
    base = (slots // block * pages.shape[1])[:, None, None]
    within = slots % block
    flat = pages.view(-1)
    flat[base + where.codes.to(pages.device)[within]] = packed.codes
    flat[base + where.scales.to(pages.device)[within]] = packed.scales
