"""A model's download, as huggingface_hub's cache shows it: the time in which files grow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparkwright.recipes import Recipe

_LOOK_S = 2.0
_LEAST_BYTES_PER_S = 100_000  # at less, a model of 20 GB takes days
_GAP_S = 300.0  # bytes may arrive in bursts: of chunks that are put together, or by a file system's writes
_BLOCK = 512  # the unit of st_blocks; a file's length may be set before its bytes arrive


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's cache, by its variables."""
    if hub := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(hub).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    root = environment.get("XDG_CACHE_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(root).expanduser() / "huggingface" / "hub"


def download_folders(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that vLLM fetches the models of *recipe* into; none for models in folders."""
    named = recipe.flags.get("download-dir")
    cache = Path(named) if isinstance(named, str) else cache_folder(environment)
    models = [
        name for name in (recipe.model, recipe.drafter) if name and not Path(name).expanduser().exists()
    ]
    return tuple(cache / f"models--{name.replace('/', '--')}" for name in models)


class Download:
    """Finds out for how long files in *folders* have grown.

    Attributes:
        bytes: those on the disk at the last look.
        seconds: the time in which they grew fast enough, short pauses between two growths included.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._at = self._counted = 0.0
        self.bytes = self._before = self._stored()
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """Return the seconds since files grew last, at most `_GAP_S`, if they grew enough for that; else 0.

        Args:
            now: seconds since the start; looks that follow each other closely are one.
        """
        if not self._folders or now - self._at < _LOOK_S:
            return 0.0
        self._at = now
        self.bytes = self._stored()
        self._before = min(self._before, self.bytes)
        passed = min(now - self._counted, _GAP_S)
        if self.bytes - self._before < passed * _LEAST_BYTES_PER_S:
            return 0.0
        self._before, self._counted = self.bytes, now
        self.seconds += passed
        return passed

    def _stored(self) -> int:
        total = 0
        for folder in self._folders:
            for parent, _, names in os.walk(folder):
                for name in names:
                    try:
                        total += os.lstat(os.path.join(parent, name)).st_blocks * _BLOCK  # noqa: PTH118
                    except OSError:  # renamed when it was complete
                        continue
        return total
