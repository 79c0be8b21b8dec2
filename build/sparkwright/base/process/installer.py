"""Environments of Python and their packages: by uv where it is installed, else by venv and pip.

uv downloads in parallel, links files from its cache, and compiles no bytecode of modules that are never
imported, which is most of pip's work.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkwright.base.process.run import run

_LIMIT_S = 3600.0


def uv_program() -> str:
    """Return the path of uv, the one beside this interpreter or on PATH; empty where it is not installed."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or ""


def make_venv(folder: Path, *, pip: bool) -> None:
    """Make an empty environment of this interpreter in *folder*.

    Args:
        folder: the folder.
        pip: it needs pip where uv is not installed.

    Raises:
        ProcessError: it cannot be made.
    """
    if uv := uv_program():
        run([uv, "venv", "--quiet", "--python", sys.executable, folder], timeout=_LIMIT_S)
    else:
        run([sys.executable, "-m", "venv", *([] if pip else ["--without-pip"]), folder], timeout=_LIMIT_S)


def install_packages(python: Path, words: Sequence[str | Path]) -> None:
    """Install packages into the environment of *python*, which `make_venv` made.

    Args:
        python: its interpreter.
        words: arguments of ``pip install``.

    Raises:
        ProcessError: something cannot be installed.
    """
    if uv := uv_program():
        run([uv, "pip", "install", "--quiet", "--python", python, *words], timeout=_LIMIT_S)
    else:
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *words], timeout=_LIMIT_S)
