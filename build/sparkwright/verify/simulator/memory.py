"""How the simulated card's memory is shared out when the server starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sparkwright.verify.simulator.settings import BLOCK

if TYPE_CHECKING:
    from sparkwright.verify.simulator.settings import Settings

_GIB: Final = 1 << 30
_MOST_LEN: Final = 40_960
_OTHER_GIB: Final = 3.42  # activations at their peak, and what is not torch's
_GRAPHS_GIB: Final = {"estimated": 1.03, "actual": 0.86}
# Bytes that a token takes, of a hybrid model with 16 layers of full attention and the drafter's own layers.
# NVFP4 holds less than twice what FP8 does: scales, and states that stay as they are (published: 1.79 times).
_BYTES: Final = {"auto": 146_000, "bfloat16": 146_000, "fp8": 73_000, "fp8_e4m3": 73_000, "nvfp4": 40_850}


@dataclass(frozen=True)
class Memory:
    """Shares of the card's memory, in GiB.

    Attributes:
        kv_gib: the KV cache.
        kv_tokens: tokens that it holds, whole blocks.
        kv_dtype: their type.
        graphs_gib: CUDA graphs as estimated.
        graphs_actual_gib: as captured.
    """

    kv_gib: float
    kv_tokens: int
    kv_dtype: str
    graphs_gib: float
    graphs_actual_gib: float


def share_out(settings: Settings) -> Memory:
    """What is left for the KV cache, as vLLM reckons it: what may be used, less weights, less graphs."""
    dtype = "nvfp4" if "nvfp4-no-gain" in settings.faults else settings.kv_dtype
    size = _BYTES["fp8" if "nvfp4-no-gain" in settings.faults else dtype]
    wrong = settings.faults.value("negative-estimate", "gib")
    estimate = _GRAPHS_GIB["estimated"] if wrong is None else wrong
    budget = settings.utilization * settings.total_gib - settings.weights_gib - _OTHER_GIB - estimate
    tokens = settings.kv_tokens or int(budget * _GIB / size)
    tokens -= tokens % BLOCK
    gib = tokens * size / _GIB if settings.kv_tokens else budget
    return Memory(round(gib, 2), tokens, dtype, estimate, _GRAPHS_GIB["actual"])


def fitted(settings: Settings) -> Settings:
    """The same settings with the longest request that fits, where they say 0 for it."""
    if settings.max_model_len:
        return settings
    most = share_out(settings).kv_tokens - BLOCK - 1 - settings.k
    return replace(settings, max_model_len=min(_MOST_LEN, most - most % BLOCK))
