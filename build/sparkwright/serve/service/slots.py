"""The environments of a service: one for each wheel, and a link to the one that serves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slots:
    """The folder of a service's environments.

    Attributes:
        folder: the service's state.
    """

    folder: Path

    @property
    def link(self) -> Path:
        """Return the link to the environment that serves."""
        return self.folder / "current"

    @property
    def current(self) -> str:
        """Return the name of the environment that serves; empty before the first."""
        return self.link.readlink().name if self.link.is_symlink() else ""

    def place(self, name: str) -> Path:
        """Return the folder of the environment *name*."""
        return self.folder / "environments" / name

    def python(self, name: str) -> Path:
        """Return the interpreter of the environment *name*."""
        return self.place(name) / "bin" / "python"

    def point(self, name: str) -> None:
        """Point the link to the environment *name*, in one step."""
        part = self.link.with_name("current.part")
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(self.place(name), self.folder), target_is_directory=True)
        part.replace(self.link)

    def prune(self, kept: Iterable[str]) -> tuple[str, ...]:
        """Remove the environments that are not *kept*; return their names."""
        keep, folder = {*kept, self.current}, self.place("")
        gone = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in keep]
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        return tuple(path.name for path in gone)
