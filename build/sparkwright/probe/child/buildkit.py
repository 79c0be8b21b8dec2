"""What a probe of how things are compiled may import: CMake on the tree under test, and what it says.

`configure` lays out a folder as a build would find it, runs CMake there and reads the compiler
calls. Nothing is compiled. Standard library only.

What it needs is in a file that the environment names (see `sparkwright.probe.facility`)::

    {"facilities": {"toolchain": {
         "arch":        what ``TORCH_CUDA_ARCH_LIST`` is set to, such as "12.1a",
         "argv":        CMake and its arguments,
         "environment": its whole environment,
         "files":       {"build/toolchain.cmake": text, …},
         "links":       {"cuda": folder, "deps/cutlass": folder, …}}},
     "trees": {"source":                 {"here": folder, "pristine": folder},
               "deps/vllm-flash-attn":   {"here": folder, "pristine": folder}}}

In argv, environment and files ``{work}`` stands for the folder that is laid out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Unit", "configure", "differences", "facility"]

_FILE = "SPARKWRIGHT_FACILITIES"
_WORK = "{work}"
_SHOWN = 2000
_CODE = re.compile(r"code=\[?([\w,]+)\]?")
_ARCH_LIST = "TORCH_CUDA_ARCH_LIST"


@dataclass(frozen=True)
class Unit:
    """One compiler call.

    Attributes:
        target: the extension that it belongs to.
        source: what it compiles, such as ``source/csrc/cache.cu`` or ``deps/qutlass/gemm.cu``.
        argv: the command, with ``{work}`` for the folder that it was made for.
    """

    target: str
    source: str
    argv: tuple[str, ...]

    @property
    def is_cuda(self) -> bool:
        """Whether it compiles device code."""
        return PurePosixPath(self.source).suffix == ".cu"

    @property
    def code(self) -> frozenset[str]:
        """The device code that it asks for: ``sm_121a`` is machine code, ``compute_89`` is PTX."""
        found = (_CODE.search(word) for word in self.argv)
        return frozenset(code for match in found if match for code in match[1].split(","))

    @property
    def rest(self) -> tuple[str, ...]:
        """The command without what it says of architectures."""
        return tuple(word for word in self.argv if not word.startswith(("-gencode", "arch=")))


def _described() -> dict[str, Any]:
    described: dict[str, Any] = json.loads(Path(os.environ[_FILE]).read_text(encoding="utf-8"))
    return described


def facility(name: str) -> dict[str, Any]:
    """What the facility called *name* says of itself; the probe's `needs` has to list it."""
    found: dict[str, Any] = _described()["facilities"][name]
    return found


@functools.cache
def configure(arch: str, *, pristine: bool = False) -> tuple[Unit, ...]:
    """Configure the tree under test for *arch* and return its compiler calls; once for the same wish.

    Args:
        arch: what ``TORCH_CUDA_ARCH_LIST`` is set to, such as ``12.1a`` or ``8.0;12.0``.
        pristine: configure the tree without the carry instead.

    Raises:
        RuntimeError: CMake failed; the end of what it said is in the message.
    """
    chain = facility("toolchain")
    with _laid_out(chain, "pristine" if pristine else "here") as work:
        environment = {name: value.replace(_WORK, str(work)) for name, value in chain["environment"].items()}
        done = subprocess.run(
            [word.replace(_WORK, str(work)) for word in chain["argv"]],
            cwd=work / "build",
            env={**environment, _ARCH_LIST: arch},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            told = done.stdout.decode(errors="replace").replace(str(work), _WORK)[-_SHOWN:]
            message = f"configuring for {arch} ended with status {done.returncode}: {told}"
            raise RuntimeError(message)
        return tuple(_units(work))


@contextlib.contextmanager
def _laid_out(chain: dict[str, Any], which: str) -> Iterator[Path]:
    """A folder as a build finds it; trees are copied, since configuring writes beside the sources."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        trees = _described()["trees"]
        for place, found in trees.items():
            shutil.copytree(found[which], work / place, symlinks=True)
            _make_writable(work / place)
        for place, target in chain["links"].items():
            if place not in trees:
                (work / place).parent.mkdir(parents=True, exist_ok=True)
                (work / place).symlink_to(target)
        for place, text in chain["files"].items():
            (work / place).parent.mkdir(parents=True, exist_ok=True)
            (work / place).write_text(text.replace(_WORK, str(work)), encoding="utf-8")
        (work / "build").mkdir(exist_ok=True)
        yield work


def _make_writable(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        Path(parent).chmod(0o755)
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)


def _units(work: Path) -> Iterator[Unit]:
    commands = json.loads((work / "build" / "compile_commands.json").read_text(encoding="utf-8"))
    for command in commands:
        folders = PurePosixPath(command["output"]).parts
        yield Unit(
            target=next(part.removesuffix(".dir") for part in folders if part.endswith(".dir")),
            source=os.path.relpath(work / "build" / command["file"], work),
            argv=tuple(word.replace(str(work), _WORK) for word in shlex.split(command["command"])),
        )


def differences(left: tuple[Unit, ...], right: tuple[Unit, ...]) -> list[str]:
    """What is compiled otherwise in *right* than in *left*; empty if they are the same calls."""
    before, after = Counter(left), Counter(right)
    return sorted({f"{unit.target}: {unit.source}" for unit in [*(before - after), *(after - before)]})
