"""A checkout of this project, with the lock, the patchsets and the carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError
from sparkwright.carries.patchset import BuildSpec, make_build_spec
from sparkwright.lock import Lock, read_lock

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = "upstream.lock"


@dataclass(frozen=True)
class Checkout:
    """The folder that holds ``upstream.lock``, ``patchsets/`` and ``carries/``."""

    root: Path
    lock: Lock

    @property
    def carries(self) -> Path:
        """The folder of the carries."""
        return self.root / "carries"

    def build_spec(self, patchset: str, *, arch: str | None = None) -> BuildSpec:
        """Return the build spec of the lock and *patchset*, by name; see `make_build_spec`."""
        return make_build_spec(self.root, self.lock, patchset, arch=arch)


def open_checkout(start: Path) -> Checkout:
    """Return the checkout that contains *start*.

    Raises:
        ConfigError: neither it nor a folder above it holds an ``upstream.lock``.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / LOCK_NAME).is_file():
            return Checkout(folder, read_lock(folder / LOCK_NAME))
    raise ConfigError(
        f"{start} is not in a checkout",
        because=f"no folder from there up holds {LOCK_NAME}",
        next_step="change into a clone of the project, or name one with --root",
    )
