"""Machines, recipes and whole starts for preflight, none of which is the one that runs the tests."""

from pathlib import Path
from typing import Any

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.machine import CardFacts, HostFacts

GIB = 1 << 30
SPARK_TOTAL = int(121.69 * GIB)
GB10 = CardFacts("NVIDIA GB10", "12.1", "580.95.05")
H200 = CardFacts("NVIDIA H200", "9.0", "580.95.05", 140 * GIB, 139 * GIB)
ENGINE = EngineFacts(
    version="0.24.0+spark.1",
    machine="aarch64",
    carries=frozenset({"kv-page-nvfp4", "draft-kv-dtype"}),
    codes=frozenset({"sm_121a"}),
    packages={"flashinfer-python": "0.6.1", "flashinfer-jit-cache": "0.6.1", "nvidia-nccl-cu13": "2.30.7"},
)


def spark(
    *, available: float = 116, cached: float = 4, swap: float = 0, card: CardFacts | None = GB10, **keys: Any
) -> HostFacts:
    """Return a Spark with so many GiB available, in the page cache, and in swap."""
    meminfo = {
        "MemTotal": SPARK_TOTAL,
        "MemAvailable": int(available * GIB),
        "MemFree": int((available - cached) * GIB),
        "Cached": int(cached * GIB),
        "SwapTotal": 16 * GIB,
        "SwapFree": int((16 - swap) * GIB),
    }
    keys = {"machine": "aarch64", "disk_free": 500 * GIB, "compiler": "/usr/local/cuda/bin/nvcc", **keys}
    return HostFacts(meminfo=meminfo, card=card, **keys)


def recipe(model: Path | str = "m", **keys: Any) -> Recipe:
    """Return a recipe for *model*."""
    flags = {
        "max-model-len": 32768,
        "max-num-seqs": 16,
        "gpu-memory-utilization": 0.7,
        **keys.pop("flags", {}),
    }
    return Recipe(**{"format": 1, "name": "r", "title": "r", "model": str(model), "flags": flags, **keys})


def start(served: Recipe, host: HostFacts | None = None, **keys: Any) -> PreflightRequest:
    """Return a start of a recipe on a Spark, with nothing of this machine in it."""
    keys = {"engine": ENGINE, "environment": {"HF_HUB_OFFLINE": "1", "HOME": "/nonexistent"}, **keys}
    return PreflightRequest(recipe=served, host=host or spark(), **keys)
