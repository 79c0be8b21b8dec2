"""Compiled kernels against what torch computes: a few calls, each with its largest error.

Serving made-up weights shows that kernels run; whether they are right it cannot show. Started by
`serve_pair.py` as ``python -m pair.kernels FILE``; appends a JSON line for each call to that file. It
takes what vLLM's own layers call, so that nothing here knows which card it runs on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm import _custom_ops as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_CARD = torch.device("cuda")
_EPSILON = 1e-6
_ROUNDING = 2**-7  # one unit in the last place of bfloat16, relative


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device=_CARD, dtype=torch.float32).to(dtype)


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value that is wanted."""
    difference = (found.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    return float(difference.item())


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPSILON) * weight.float()


def rms_norm() -> float:
    """Root mean square normalisation of 33 rows."""
    x, weight = _random(33, 1024), _random(1024)
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, _EPSILON)
    return _error(out, _normed(x, weight))


def fused_add_rms_norm() -> float:
    """The same after the addition of a residual, in place."""
    x, residual, weight = _random(33, 1024), _random(33, 1024), _random(1024)
    total = x.float() + residual.float()
    wanted = _normed(total.to(torch.bfloat16), weight)
    ops.fused_add_rms_norm(x, residual, weight, _EPSILON)
    return max(_error(x, wanted), _error(residual, total))


def silu_and_mul() -> float:
    """The gated activation."""
    x = _random(33, 4096)
    out = torch.empty(33, 2048, device=_CARD, dtype=torch.bfloat16)
    torch.ops._C.silu_and_mul(out, x)
    gate, up = x.float().chunk(2, dim=-1)
    return _error(out, torch.nn.functional.silu(gate) * up)


def reshape_and_cache_flash() -> float:
    """Keys and values into their slots: not a bit may change."""
    key, value = _random(33, 4, 128), _random(33, 4, 128)
    caches = [torch.zeros(8, 16, 4, 128, device=_CARD, dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.randperm(8 * 16, device=_CARD)[:33]
    one = torch.ones(1, device=_CARD)
    ops.reshape_and_cache_flash(key, value, *caches, slots, "auto", one, one)
    wanted = [torch.zeros_like(cache) for cache in caches]
    for cache, rows in zip(wanted, (key, value), strict=True):
        cache.view(-1, 4, 128)[slots] = rows
    return max(_error(cache, goal) for cache, goal in zip(caches, wanted, strict=True))


def cutlass_scaled_mm() -> float:
    """CUTLASS's product of two FP8 matrices, one scale each."""
    left, scale_left = ops.scaled_fp8_quant(_random(48, 512))
    right, scale_right = ops.scaled_fp8_quant(_random(256, 512))
    out = ops.cutlass_scaled_mm(left, right.t(), scale_left, scale_right, torch.bfloat16)
    return _error(out, (left.float() @ right.float().t()) * scale_left * scale_right)


def topk_softmax() -> float:
    """Which experts get a token, and with which weight."""
    logits = _random(33, 64, dtype=torch.float32)
    weights = torch.empty(33, 4, device=_CARD)
    chosen, rows = (torch.empty(33, 4, device=_CARD, dtype=torch.int32) for _ in range(2))
    ops.topk_softmax(weights, chosen, rows, logits)
    wanted = torch.softmax(logits, dim=-1).topk(4)
    if not torch.equal(chosen.long().sort().values, wanted.indices.sort().values):
        return float("inf")
    return _error(weights, wanted.values)


def moe_sum() -> float:
    """The sum over a token's experts."""
    x = _random(33, 4, 1024)
    out = torch.empty(33, 1024, device=_CARD, dtype=torch.bfloat16)
    ops.moe_sum(x, out)
    return _error(out, x.float().sum(1))


KERNELS: dict[Callable[[], float], float] = {
    rms_norm: 2 * _ROUNDING,
    fused_add_rms_norm: 2 * _ROUNDING,
    silu_and_mul: 2 * _ROUNDING,
    reshape_and_cache_flash: 0.0,
    cutlass_scaled_mm: 2 * _ROUNDING,
    topk_softmax: 1e-4,
    moe_sum: 4 * _ROUNDING,
}
"""Each call, and the error that it may have."""


def _lines() -> Iterator[dict[str, object]]:
    for kernel, allowed in KERNELS.items():
        torch.manual_seed(0)
        try:
            error, why = kernel(), ""
            torch.cuda.synchronize()
        except Exception as fault:  # noqa: BLE001 - reported as this kernel's failure
            error, why = float("inf"), repr(fault)[:300]
        yield {"kernel": kernel.__name__, "error": error, "allowed": allowed, "fault": why}


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as stream:
        for line in _lines():
            stream.write(json.dumps(line) + "\n")
            stream.flush()
