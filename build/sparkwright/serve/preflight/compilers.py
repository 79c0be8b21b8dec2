"""Findings about what is compiled after the start, and what a start without a network needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from packaging.version import Version

from sparkwright.engine.companions import build_command
from sparkwright.engine.installed import COMPANION, EngineFacts
from sparkwright.recipes import Recipe
from sparkwright.recipes.rule import ServerOptions
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.host import CardFacts, HostFacts
from sparkwright.serve.preflight.request import PreflightRequest
from sparkwright.serve.preflight.shape import model_shape

_ARCHITECTURES = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST", "CUTE_DSL_ARCH")
_FIRST_NVCC = {"12.1": (12, 9), "12.0": (12, 8), "10.0": (12, 8)}
_FIRST_THAT_LOOKS = Version("0.7")
_NOT_FLASHINFER = ("Gemma3", "Gemma4", "GptOss")


def check_compilers(
    host: HostFacts, request: PreflightRequest, engine: EngineFacts | None, target: Checkpoint | None = None
) -> Iterator[Finding]:
    """Yield findings about just-in-time compilers: FlashInfer's, Triton's, CuTe's.

    Args:
        host: the machine's facts.
        request: the start: a companion states by the recipe's name which kernels that needs.
        engine: the vLLM that would serve; `None` where it is not known.
        target: the model; `None` where it is not on this machine.
    """
    card, environment, recipe = host.card, request.variables, request.recipe.name
    if card is None:
        return
    missing = _missing(engine, card.capability, recipe) if engine is not None else None
    if engine is not None and not engine.installed and request.lacks:
        missing = _Missing.some("no companion for this card was found that holds", request.lacks)
    if engine is not None and missing is not None:
        command = build_command(engine.version, engine.machine or host.machine, card.capability, recipe)
        remedy = f"install a companion with them ({command})"
        yield _of_another_card(engine, card) if missing.loaded else _uncompiled(host, card, missing, remedy)
        if not missing.loaded and missing.attention and not _compiles(host, card):
            yield from _fp8_attention(request.recipe, card, engine, target, remedy)
    prebuilt = missing is None and engine is not None and bool(engine.packages.get(COMPANION))
    for name in _ARCHITECTURES:
        value = environment.get(name, "")
        if value and not _names(value, card.capability):
            yield Finding(
                "jit-architecture",
                "note" if prebuilt else "warn",
                f"{name} leaves this card out",
                f"it is {value!r}, and {card.name} has {card.capability}: kernels are made for other cards",
                f"unset {name}, or set it to {_spelled(name, card.capability)}",
            )
    yield from _ptxas(environment.get("TRITON_PTXAS_PATH", ""))


def _ptxas(program: str) -> Iterator[Finding]:
    if program and not os.access(program, os.X_OK):
        yield Finding(
            "ptxas",
            "refuse",
            "Triton cannot assemble its kernels",
            f"TRITON_PTXAS_PATH is {program}, which is no program",
            "unset it, or name CUDA 13's ptxas: /usr/local/cuda/bin/ptxas",
        )


@dataclass(frozen=True)
class _Missing:
    """Kernels of FlashInfer that no installed file holds.

    Attributes:
        kernels: the subject of a sentence about them.
        sampling: the sampler's is among them.
        loaded: FlashInfer loads the kernels of another card in their place.
        attention: attention, the drafter's too, is among them.
    """

    why: str
    kernels: str = "FlashInfer's kernels"
    sampling: bool = True
    loaded: bool = False
    attention: bool = True

    @classmethod
    def some(cls, why: str, names: Sequence[str]) -> _Missing:
        """Return those called *names*, which end the reason *why*."""
        return cls(
            f"{why} {', '.join(names)}",
            "some of FlashInfer's kernels",
            sampling="sampling" in names,
            attention=any(name.startswith("attention-") for name in names),
        )


def _missing(engine: EngineFacts, capability: str, recipe: str) -> _Missing | None:
    """Return the kernels that *recipe* needs on a card of *capability* and that are not installed, if any.

    A companion without sparkwright's record is treated as complete, since it does not list its kernels.
    """
    if not engine.packages.get("flashinfer-python"):
        return None
    if not engine.packages.get(COMPANION):
        return _Missing(f"{COMPANION} is not installed")
    if engine.companion_arch and engine.companion_arch.rstrip("af") != capability:
        loaded = Version(engine.packages["flashinfer-python"]) < _FIRST_THAT_LOOKS
        return _Missing(f"the installed {COMPANION} is for {engine.companion_arch}", loaded=loaded)
    lacks = engine.companion_lacks.get(recipe, engine.companion_lacks.get("*", ()))
    return _Missing.some(f"the installed {COMPANION} lacks", lacks) if lacks else None


def _of_another_card(engine: EngineFacts, card: CardFacts) -> Finding:
    return Finding(
        "companion",
        "refuse",
        "FlashInfer would load kernels that this card cannot run",
        f"the installed {COMPANION} is for {engine.companion_arch}, {card.name} has {card.capability}, and "
        f"FlashInfer {engine.packages['flashinfer-python']} does not look which card a companion is for",
        f"install a companion for this card, or none: pip uninstall {COMPANION}",
    )


def _compiles(host: HostFacts, card: CardFacts) -> bool:
    """Tell if this machine can compile kernels for *card*."""
    return bool(host.tools.get("nvcc")) and not (
        host.nvcc and host.nvcc < _FIRST_NVCC.get(card.capability, ())
    )


def _fp8_attention(
    recipe: Recipe, card: CardFacts, engine: EngineFacts, target: Checkpoint | None, remedy: str
) -> Iterator[Finding]:
    """Yield a finding where vLLM chooses FlashInfer for an FP8 cache and has no kernel of it (vllm#60262).

    FLASH_ATTN reads such a cache on 9.x alone, and FLASHINFER is next, whether it can compile or not. Windows
    over images (Gemma) and sinks (gpt-oss) are left to TRITON_ATTN, and latent attention to TRITON_MLA.
    """
    options = ServerOptions.of(msgspec.structs.replace(recipe, speculative={}), card.capability)
    others = target is not None and any(name.startswith(_NOT_FLASHINFER) for name in target.architectures)
    latent = "mla" in options.traits or (target is not None and model_shape(target.text).mla)
    fp8 = options.kv in {"fp8", "fp8_e4m3", "fp8_e5m2"}
    chosen = not options.backends or "FLASHINFER" in options.backends
    if not fp8 or not chosen or others or latent or options.family(12) is not True:
        return
    yield Finding(
        "fp8-kv-fallback",
        "refuse",
        "the server would end at its first attention",
        f"vLLM {engine.version} takes FlashInfer for an FP8 KV cache on {card.capability}, whether or not "
        "its kernels can be had, and here they can be neither found nor compiled (vllm#60262)",
        f'set attention-backend = "TRITON_ATTN", or {remedy}, or install CUDA 13',
        liftable=True,
    )


def _uncompiled(host: HostFacts, card: CardFacts, missing: _Missing, remedy: str) -> Finding:
    """Return the finding about *missing* kernels: compiled late, or not at all."""
    found = host.tools.get("nvcc")
    if found is None:
        sampler = ", or set VLLM_USE_FLASHINFER_SAMPLER=0" if missing.sampling else ""
        return Finding(
            "nvcc",
            "warn",
            f"{missing.kernels} can be neither found nor compiled",
            f"{missing.why}, and no nvcc is on PATH, in CUDA_HOME or in /usr/local/cuda",
            f"{remedy} or CUDA 13{sampler}",
        )
    if host.nvcc and host.nvcc < _FIRST_NVCC.get(card.capability, ()):
        oldest = ".".join(map(str, _FIRST_NVCC[card.capability]))
        return Finding(
            "nvcc",
            "warn",
            f"{missing.kernels} cannot be compiled for this card",
            f"{missing.why}; {found} is of CUDA {'.'.join(map(str, host.nvcc))}, and {card.capability} needs "
            f"{oldest}",
            f"{remedy}, or CUDA 13 and set CUDA_HOME to it",
        )
    return Finding(
        "jit",
        "note",
        f"{missing.kernels} are compiled while the first requests wait",
        f"{missing.why}; {found} compiles them, which takes minutes once",
        remedy,
    )


def _names(value: str, capability: str) -> bool:
    """Tell if a list of architectures has *capability*, however it spells it."""
    digits = capability.replace(".", "")
    spellings = re.findall(r"(\d+)\.?(\d)[af]?", value)
    return any(f"{major}{minor}" == digits for major, minor in spellings)


def _spelled(name: str, capability: str) -> str:
    return f"sm_{capability.replace('.', '')}a" if name == "CUTE_DSL_ARCH" else f"{capability}a"


def check_caches(host: HostFacts) -> Iterator[Finding]:
    """Yield a finding for each cache that cannot be written."""
    for name, folder in host.unwritable.items():
        yield Finding(
            "cache",
            "warn",
            f"{name}'s cache cannot be written",
            f"{folder} cannot be made or written to: each start compiles again, or ends",
            "give the user a home that can be written, or set the cache's variable to another folder",
        )
