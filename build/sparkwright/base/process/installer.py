"""Environments of Python and their packages, by uv.

It downloads in parallel, links files from its cache, and compiles no bytecode of modules that are never
imported.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkwright.base.errors import ToolError
from sparkwright.base.process.run import run

_LIMIT_S = 3600.0


def uv_program() -> str:
    """Return the path of uv: the one beside this interpreter, or on PATH.

    Raises:
        ToolError: it is not installed.
    """
    beside = Path(sys.executable).with_name("uv")
    if found := str(beside) if beside.exists() else shutil.which("uv"):
        return found
    raise ToolError(
        "uv was not found",
        because="it makes environments, and is neither beside this interpreter nor on PATH",
        next_step="pip install uv",
    )


def make_venv(folder: Path, *, offline: bool = False) -> None:
    """Make an environment of this interpreter in *folder*, which may hold other files.

    Raises:
        ProcessError: it cannot be made.
        ToolError: uv is not installed.
    """
    words = ("venv", "--quiet", "--allow-existing", *_network(offline), "--python", sys.executable)
    run([uv_program(), *words, folder], timeout=_LIMIT_S)


def install_packages(python: Path, words: Sequence[str | Path], *, offline: bool = False) -> None:
    """Install packages into the environment of *python*.

    Args:
        python: its interpreter.
        words: arguments of ``uv pip install``.
        offline: take packages from uv's cache alone.

    Raises:
        ProcessError: something cannot be installed.
        ToolError: uv is not installed.
    """
    place = ("--python", python)
    run([uv_program(), "pip", "install", "--quiet", *_network(offline), *place, *words], timeout=_LIMIT_S)


def _network(offline: bool) -> tuple[str, ...]:  # noqa: FBT001 - the only argument
    return ("--offline",) if offline else ()
