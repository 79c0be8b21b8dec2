"""Kernels that a server fell back to though the card has faster ones: found by the facts of its start."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkwright.base.events import warn
from sparkwright.engine.observations import BootFacts

# Kernels that unpack four bits to sixteen: Marlin's and those called W4A16.
_UNPACKING = re.compile(r"MARLIN|W4A16", re.IGNORECASE)
_EMULATION = re.compile(r"EMULATION", re.IGNORECASE)
_FP4 = re.compile(r"FP4", re.IGNORECASE)
_WHOLE = (
    "On 12.x set VLLM_HAS_FLASHINFER_CUBIN=1 where nvcc or a companion is there, or name TRITON_ATTN as "
    "attention-backend, here and in [speculative]"
)
_TENSOR_CORES = ("10.", "11.", "12.")
"""Compute capabilities with tensor cores for FP4."""


@dataclass(frozen=True)
class Fallback:
    """One slow path that was chosen.

    Attributes:
        layers: ``linear``, ``MoE`` or ``graphs``.
        shown: the chosen kernel and its kind, in the log's words.
        next_step: how to get the fast path, or to ask for this one.
    """

    layers: str
    shown: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.shown}; {self.next_step}"


def has_fp4_weights(facts: BootFacts) -> bool:
    """Tell if the log names kernels or a quantization of FP4 weights."""
    words = (facts.quantization, *facts.linear_backends, *facts.moe_backends)
    return bool(facts.slow_paths) or any(_FP4.search(word) for word in words)


def computes_fp4(capability: str) -> bool:
    """Tell if cards of this compute capability compute in FP4."""
    return capability.startswith(_TENSOR_CORES)


def names_fp4_kernels(facts: BootFacts) -> bool:
    """Tell if the log names the kernels of the FP4 weights."""
    return any(_FP4.search(word) for word in (*facts.linear_backends, *facts.moe_backends))


def fallbacks(facts: BootFacts) -> tuple[Fallback, ...]:
    """Return the slow paths that were chosen without being asked for, whatever the card is.

    A backend that the recipe names is asked for: ``linear-backend`` for linear layers, ``moe-backend`` for
    experts, ``enforce-eager`` for a start without graphs.
    """
    if not has_fp4_weights(facts):
        return ()
    found = _of_layers("linear", facts.linear_backends, facts.asked_linear)
    found += _of_layers("MoE", facts.moe_backends, facts.asked_moe)
    asked = bool(_named(facts.asked_linear) or _named(facts.asked_moe))
    if facts.slow_paths and not found and not asked:
        found.append(
            Fallback(
                "linear or MoE",
                f"the log warns of {' and '.join(facts.slow_paths)} for FP4 weights",
                "name linear-backend and moe-backend in the recipe",
            )
        )
    if facts.graph_mode == "NONE" and facts.eager is False:
        shown = "CUDA graphs were turned off while it started, and enforce-eager was not asked for"
        found.append(Fallback("graphs", shown, "the log's line on cudagraph_mode says why"))
    return tuple(found)


def lost_graphs(facts: BootFacts) -> str:
    """Return what is wrong where steps with drafts were to be whole CUDA graphs, and attention is left out.

    Empty where nothing is. So it is in 0.33 with FlashInfer on 12.x, if that may not use XQA (vllm#49547).
    """
    planned, drafts = facts.planned_graphs, facts.speculative_tokens > 0
    if not drafts or "FULL" not in planned or facts.graph_mode != "PIECEWISE":
        return ""
    return (
        f"steps with drafts run in piecewise graphs, and {planned} was configured: an attention backend "
        f"takes no whole ones; its line on cudagraph_mode names it. {_WHOLE}"
    )


def warn_of_fallbacks(facts: BootFacts) -> tuple[Fallback, ...]:
    """Warn of each slow path that a card which computes in FP4 was given without being asked to.

    On any card it warns of whole graphs that drafts have lost.

    Returns:
        The slow paths that were warned of.
    """
    if lost := lost_graphs(facts):
        warn(lost)
    found = fallbacks(facts) if computes_fp4(facts.capability) else ()
    for fallback in found:
        warn(str(fallback), layers=fallback.layers)
    return found


def _of_layers(layers: str, chosen: tuple[str, ...], asked: str) -> list[Fallback]:
    flag = f"{layers.lower()}-backend"
    found = []
    for word in chosen:
        kind, _, name = word.partition(" ")
        if not _FP4.search(kind) or _asks_for(asked, name):
            continue
        if _EMULATION.search(name):
            how = "emulates FP4: weights are unpacked in each step"
        elif _UNPACKING.search(name):
            how = "uses FP4 weights only to save memory and computes in 16 bits"
        else:
            continue
        step = (
            f"ask for another {flag}, or for this one if it is meant; the wheel or FlashInfer lacks the rest"
        )
        found.append(Fallback(layers, f"{layers} layers run on {name}, which {how}", step))
    return found


def _named(asked: str) -> bool:
    return asked not in {"", "auto"}


def _asks_for(asked: str, name: str) -> bool:
    """Tell if the requested backend is the kernel's: ``marlin`` is that of MarlinNvFp4LinearKernel."""
    return _named(asked) and asked.replace("_", "").lower() in name.replace("_", "").lower()
