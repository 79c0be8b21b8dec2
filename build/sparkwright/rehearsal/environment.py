"""The Python environment of a rehearsal: what upstream's wheel for the CPU requires, and readers of GGUF.

Where the wheel wants the torch that probes have, the environment lies over theirs and holds only what
differs. It does not hold vLLM itself: see `tree`.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ProcessError, RehearsalError
from sparkwright.base.events import task
from sparkwright.base.process.run import install_packages, make_venv, run, uv_program
from sparkwright.probe.environment import prepare_environment as prepare_probes
from sparkwright.probe.environment import requirements as probes_requirements
from sparkwright.store import Store, remove_tree

# For pictures and sound. Their packages are compiled for one torch each, and a model of text wants none.
_LEFT_OUT = frozenset({"torchaudio", "torchvision", "torchcodec"})
_READERS = ("accelerate", "gguf")
_READY = "ready.json"
_LIMIT_S = 3600.0
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Requirements:
    """The packages of an environment.

    Attributes:
        lines: requirements in pip's format, sorted; torch is among them.
        torch: the exact version of torch, without a local part.
    """

    lines: tuple[str, ...]
    torch: str

    @property
    def shares(self) -> bool:
        """True if the environment for probes has that torch."""
        return f"torch=={self.torch}" in probes_requirements().splitlines()


def read_requirements(metadata: bytes) -> Requirements:
    """Return the requirements that a wheel's ``METADATA`` states for this machine.

    A local part such as ``+cpu`` is dropped: the package index has the release alone.

    Raises:
        RehearsalError: no exact version of torch is required.
    """
    lines, torch = set(_READERS), ""
    for text in message_from_bytes(metadata).get_all("Requires-Dist") or ():
        requirement = Requirement(text)
        if requirement.name in _LEFT_OUT:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        line = str(requirement)
        if requirement.name == "torch":
            line = line.partition("+")[0]
            torch = line.partition("==")[2]
        lines.add(line)
    if not torch:
        raise RehearsalError(
            "the wheel for the CPU cannot be installed",
            because="it requires no exact version of torch",
            next_step="rehearse on another release",
        )
    return Requirements(tuple(sorted(lines)), torch)


def environment_key(wanted: Requirements) -> str:
    """Return the name of the environment's folder: digest of its contents, machine and interpreter."""
    below = probes_requirements() if wanted.shares else ""
    return digest_of([wanted.lines, below, sys.version, sysconfig.get_platform()])[:16]


def prepare_environment(store: Store, wanted: Requirements, *, offline: bool = False) -> Path:
    """Return the environment's interpreter; the environment is made when it is not there yet.

    Raises:
        RehearsalError: it is not there and the network is off, or a package could not be installed.
        EnvironmentSetupError: the environment for probes, which it lies over, could not be made.
        NotInStoreError: the same, with the network off.
    """
    key = environment_key(wanted)
    folder = store.environments / key
    python = folder / "bin" / "python"
    below = prepare_probes(store, offline=offline) if wanted.shares else None
    if (folder / _READY).is_file() and store.claim(folder):
        return python
    if offline:
        raise RehearsalError(
            "the environment for rehearsals has not been made",
            because="the network is off",
            next_step="run 'sparkwright rehearse' once without --offline",
        )
    with store.lock(f"environment-{key}", "the environment for rehearsals"):
        if not (folder / _READY).is_file():
            _make(folder, python, wanted, below)
    return python


def site_packages(python: Path) -> Path:
    """Return the folder of packages of the environment that *python* is in."""
    return python.parents[1] / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def add_below(folder: Path, below: Path) -> None:
    """Let the packages in *below* be found after those in *folder*, with their own ``.pth`` files."""
    (folder / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n", encoding="utf-8")


def _make(folder: Path, python: Path, wanted: Requirements, below: Path | None) -> None:
    remove_tree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    listed = folder.with_name(f"{folder.name}.txt")
    listed.write_text("\n".join(wanted.lines) + "\n", encoding="utf-8")
    over = "over that of the probes" if below is not None else f"with torch {wanted.torch}"
    try:
        with task(f"make the environment for rehearsals, {over} (minutes, once)"):
            make_venv(folder)
            if below is not None:
                add_below(site_packages(python), site_packages(below))
            words: list[str | Path] = ["--requirement", listed]
            if below is not None:
                words = _without_those_below(listed)
            install_packages(python, words)
    except ProcessError as error:
        raise RehearsalError(
            "the environment for rehearsals could not be made",
            because=error.because,
            next_step="check the package index and the disk, then run again",
        ) from error
    (folder / _READY).touch()


def _without_those_below(listed: Path) -> list[str | Path]:
    """Return the arguments of an installer for what *listed* requires and the environment for probes lacks.

    uv looks at an environment's own folder alone.
    """
    resolved = listed.with_suffix(".resolved.txt")
    below = probes_requirements()
    resolved.write_text(below, encoding="utf-8")  # uv prefers the versions of an earlier answer
    words = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", _PYTHON]
    run([uv_program(), *words, "--output-file", resolved, listed], timeout=_LIMIT_S)
    known = {_pinned(line) for line in below.splitlines()}
    lines = resolved.read_text(encoding="utf-8").splitlines()
    resolved.write_text(
        "".join(f"{line}\n" for line in lines if _pinned(line) not in known), encoding="utf-8"
    )
    return ["--no-deps", "--requirement", resolved]


def _pinned(line: str) -> tuple[str, str]:
    """Return the normalized name and the version that a line of exact requirements states."""
    name, _, version = line.partition(";")[0].strip().partition("==")
    return canonicalize_name(name.partition("[")[0]), version.strip()
