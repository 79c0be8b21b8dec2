"""Findings about what is compiled after the start, and what a start without a network needs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from sparkwright.serve.preflight.engine import COMPANION
from sparkwright.serve.preflight.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkwright.serve.preflight.checkpoint import Checkpoint
    from sparkwright.serve.preflight.engine import EngineFacts
    from sparkwright.serve.preflight.host import HostFacts

_ARCHITECTURES = ("FLASHINFER_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST", "CUTE_DSL_ARCH")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_FIRST_NVCC = {"12.1": (12, 9), "12.0": (12, 8), "10.0": (12, 8)}
_TRUE = {"1", "true", "yes", "on"}


def check_compilers(
    host: HostFacts, environment: Mapping[str, str], engine: EngineFacts | None
) -> Iterator[Finding]:
    """Yield findings about just-in-time compilers: FlashInfer's, Triton's, CuTe's.

    Args:
        host: the machine's facts.
        environment: variables of the server.
        engine: the vLLM that would serve; `None` where it is not known.
    """
    card = host.card
    if card is None:
        return
    prebuilt = engine is not None and bool(engine.packages.get(COMPANION))
    if not prebuilt:
        yield from _nvcc(host, engine)
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
    ptxas = environment.get("TRITON_PTXAS_PATH", "")
    if ptxas and not os.access(ptxas, os.X_OK):
        yield Finding(
            "ptxas",
            "refuse",
            "Triton cannot assemble its kernels",
            f"TRITON_PTXAS_PATH is {ptxas}, which is no program",
            "unset it, or name CUDA 13's ptxas: /usr/local/cuda/bin/ptxas",
        )


def _nvcc(host: HostFacts, engine: EngineFacts | None) -> Iterator[Finding]:
    if engine is None or not engine.packages.get("flashinfer-python"):
        return
    found = host.tools.get("nvcc")
    if found is None:
        yield Finding(
            "nvcc",
            "warn",
            "FlashInfer's kernels can be neither found nor compiled",
            f"{COMPANION} is not installed, and no nvcc is on PATH, in CUDA_HOME or in /usr/local/cuda",
            f"install the companion wheel {COMPANION} or CUDA 13, or set VLLM_USE_FLASHINFER_SAMPLER=0",
        )
    elif host.nvcc and host.card and host.nvcc < _FIRST_NVCC.get(host.card.capability, ()):
        oldest = ".".join(map(str, _FIRST_NVCC[host.card.capability]))
        yield Finding(
            "nvcc",
            "warn",
            "FlashInfer's kernels cannot be compiled for this card",
            f"{found} is of CUDA {'.'.join(map(str, host.nvcc))}, and {host.card.capability} needs {oldest}",
            f"install the companion wheel {COMPANION} or CUDA 13, and set CUDA_HOME to it",
        )
    else:
        yield Finding(
            "jit",
            "note",
            "FlashInfer's kernels are compiled while the first requests wait",
            f"{COMPANION} is not installed; {found} compiles them, which takes minutes once",
            f"install the companion wheel {COMPANION}",
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


def check_offline(
    environment: Mapping[str, str], models: Mapping[str, Checkpoint | None]
) -> Iterator[Finding]:
    """Yield findings about models that a start would have to fetch or look up.

    Args:
        environment: variables of the server.
        models: the models by name; `None` for one that is not on this machine.
    """
    offline = any(environment.get(name, "").lower() in _TRUE for name in _OFFLINE)
    for name, checkpoint in models.items():
        path = name.startswith(("/", ".", "~")) or name.count("/") > 1
        if checkpoint is None and (offline or path):
            yield Finding(
                "model-missing",
                "refuse",
                f"{name} is not on this machine",
                "there is no such folder"
                if path
                else "it is not in the cache, and the network is off (HF_HUB_OFFLINE)",
                "correct the path" if path else f"fetch it first: hf download {name}",
            )
        elif checkpoint is None:
            yield Finding(
                "model-fetched",
                "note",
                f"{name} is fetched when the server starts",
                "it is not in the cache, so that its files cannot be checked and its memory is not known",
                f"fetch it first, and check again: hf download {name}",
            )
        elif not offline and str(checkpoint.folder) != os.path.expanduser(name):  # noqa: PTH111 - a name
            yield Finding(
                "offline",
                "note",
                f"the start asks the hub about {name}, though it is here",
                "HF_HUB_OFFLINE is not set: without DNS, vLLM waits or ends",
                'set HF_HUB_OFFLINE = "1" in the recipe\'s [environment]',
            )
