"""Make an environment in a folder, once: of a wheel of vLLM, or of another package."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import NotInStoreError, ProcessError, ServerError, ToolError
from sparkwright.base.process import install_packages, make_venv

_BEGUN = ".sparkwright-environment"
_DONE = ".sparkwright-wheel.json"
# Of uv and pip, where something is neither installed nor cached.
_NOT_CACHED = re.compile("network was disabled|not found in the cache|No matching distribution found")
_ADDRESS = re.compile(r" @ file://\S+")


def vllm_command(python: Path) -> tuple[str, ...]:
    """Return the command ``vllm`` of the interpreter *python*, independent of its scripts' first lines."""
    return (str(python), "-m", "vllm.entrypoints.cli.main")


def prepare_wheel(
    wheel: Path,
    folder: Path,
    *,
    offline: bool = False,
    requirements: str = "",
    overrides: Sequence[str] = (),
) -> Path:
    """Create an environment with *wheel* and its requirements; return its interpreter.

    A folder that was created for the same wheel, byte by byte, is reused, and one that was begun and not
    finished is created again. Two calls at once wait for each other.

    Args:
        wheel: a wheel of vLLM.
        folder: destination; it must not exist, be empty, or be such an environment.
        offline: install from the installer's cache alone.
        requirements: exact requirements with digests, in pip's format, which name the wheel too; a file with
            another digest is refused, and so is a package that they lack. Empty: what the index has today.
        overrides: requirements that count instead of those of the same project that packages state.

    Raises:
        ServerError: it cannot be created, or *folder* holds something else.
        NotInStoreError: a requirement would have to be fetched, and the network is off.
    """
    digest = sha256_file(wheel)
    if requirements:
        digest += "-" + content_of(requirements)
    return _make_once(
        wheel.name,
        folder,
        digest,
        lambda: _wanted(folder, wheel, requirements),
        overrides,
        offline=offline,
        next_step="the wheel must be for this machine and Python, and what it requires reachable",
    )


def content_of(requirements: str) -> str:
    """Return the digest of what exact *requirements* install, wherever the files that they name lie."""
    return hashlib.sha256(_ADDRESS.sub("", requirements).encode()).hexdigest()


def prepare_requirement(requirement: str, folder: Path, *, offline: bool = False) -> Path:
    """Create an environment with the package *requirement*, and return its interpreter; reuse a finished one.

    Args:
        requirement: in pip's format, with an exact version.
        folder: destination; it must not exist, be empty, or be such an environment.
        offline: install from the installer's cache alone.

    Raises:
        ServerError: it cannot be created, or *folder* holds something else.
        NotInStoreError: the package would have to be fetched, and the network is off.
    """
    return _make_once(
        requirement,
        folder,
        sha256_bytes(requirement.encode()),
        lambda: [requirement],
        (),
        offline=offline,
        next_step="let it be fetched once, or name the interpreter of an environment that has it",
    )


def _make_once(
    what: str,
    folder: Path,
    digest: str,
    wanted: Callable[[], list[str | Path]],
    overrides: Sequence[str],
    *,
    offline: bool,
    next_step: str,
) -> Path:
    """Return the interpreter of the environment of *digest* in *folder*; make it unless it is finished."""
    from filelock import FileLock

    python = folder / "bin" / "python"
    if python.exists() and _made_for(folder) == digest:  # without the lock, which a read-only disk refuses
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if python.exists() and _made_for(folder) == digest:
            return python
        _clear(folder)
        try:
            _make(folder, python, wanted(), overrides, offline=offline)
        except (ProcessError, ToolError) as error:
            because = f"{error.what}: {error.because}"
            if offline and _NOT_CACHED.search(error.because):
                raise NotInStoreError(
                    f"no environment can be made for {what} without a network",
                    because=because,
                    next_step="run once without --offline, or give --python of an environment that has it",
                ) from error
            raise ServerError(
                f"no environment could be made for {what}", because=because, next_step=next_step
            ) from error
        (folder / _DONE).write_text(json.dumps({"for": what, "sha256": digest}), encoding="utf-8")
    return python


def _made_for(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / _DONE).read_text(encoding="utf-8"))["sha256"])
    return ""


def _clear(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / _BEGUN).exists():
        raise ServerError(
            f"no environment can be made in {folder}",
            because="it holds something else",
            next_step="name another folder",
        )
    folder.mkdir(exist_ok=True)
    (folder / _BEGUN).touch()
    # Killed meanwhile, it is still known as begun, and no more as finished.
    (folder / _DONE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _BEGUN:
            path.unlink()


def _wanted(folder: Path, wheel: Path, requirements: str) -> list[str | Path]:
    """Return the arguments of an installer: the wheel, or a file with exact requirements."""
    if not requirements:
        return [wheel.resolve()]
    listed = folder / "requirements.txt"
    listed.write_text(requirements, encoding="utf-8")
    return ["--require-hashes", "--requirement", listed]


def _make(
    folder: Path, python: Path, wanted: list[str | Path], overrides: Sequence[str], *, offline: bool
) -> None:
    """Create the environment and install *wanted*."""
    make_venv(folder, offline=offline)
    if overrides:
        listed = folder / "overrides.txt"
        listed.write_text("\n".join(overrides) + "\n", encoding="utf-8")
        wanted = ["--override", listed, *wanted]
    install_packages(python, wanted, offline=offline)
