"""Folders of servers in the store: one for each run, and caches for each wheel, recipe and card.

Caches hold what is compiled while a server starts. Their variables are those that vLLM 0.24 to 0.33 and its
pinned FlashInfer, Triton and torch read: see ``vllm/envs.py``, ``vllm/compilation/compiler_interface.py`` and
``flashinfer/jit/env.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.recipes.recipe import SERVED_NAMES, Recipe
from sparkwright.store.disk import remove_tree
from sparkwright.store.paths import Store

_KEPT = 20


CACHES = {
    "VLLM_CACHE_ROOT": ("vllm", "torch.compile's graphs, and FlashInfer's tuned tactics"),
    "TRITON_CACHE_DIR": ("triton", "kernels that Triton compiles"),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", "what torch compiles outside of vLLM's own cache"),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", "kernels that FlashInfer compiles"),
    "CUDA_CACHE_PATH": ("cuda", "machine code that the driver makes of PTX"),
}
"""By variable: the folder that it names, below the server's own, and what is kept there."""


def cache_key(identity: str, recipe: Recipe, card: str) -> str:
    """Return the name of the folder for a wheel, a recipe and a card.

    Titles, notes, reasons and served names do not count: they change nothing that is compiled.
    """
    flags = {name: value for name, value in recipe.flags.items() if name != SERVED_NAMES}
    parts = [recipe.model, recipe.drafter, flags, recipe.speculative, recipe.environment]
    return digest_of([identity, to_builtins(parts), card])[:16]


def cache_variables(folder: Path, taken: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep compiled results below *folder*, but those already *taken*."""
    return {name: str(folder / below) for name, (below, _) in CACHES.items() if name not in taken}


def reason_of(variable: str) -> str:
    """Return the reason of a cache's variable; empty for any other."""
    _, kept = CACHES.get(variable, ("", ""))
    return f"{kept}, kept for this wheel, recipe and card" if kept else ""


def caches_of(store: Store) -> Path:
    """Return the folder of all servers' caches."""
    return store.home / "serve" / "caches"


def new_run_folder(store: Store, recipe: str) -> Path:
    """Make and return the folder of a run: its log, events and evidence. Only its owner can read it.

    The newest runs are kept, and older ones that have ended are removed.
    """
    runs = store.home / "serve" / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    # Named by time, so that names sort by age; a run that goes on holds its name by its process.
    for old in sorted(runs.iterdir())[: -_KEPT + 1]:
        if not _runs(old.name):
            remove_tree(old)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder = runs / f"{stamp}-{recipe}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder


def _runs(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return psutil.pid_exists(int(name.rpartition("-")[2]))
    return False
