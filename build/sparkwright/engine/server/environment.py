"""The environment of vLLM: an existing one, or one created for a wheel."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import NotInStoreError, ProcessError, ServerError, ToolError

_BEGUN = ".sparkwright-environment"
_DONE = ".sparkwright-wheel.json"
_INSTALL_S = 3600.0
# Outcomes as wheels' records name them; the last one is what earlier wheels have for the second.
_MERGED = {"applied", "conflict-in-tests-or-docs", "conflict-in-texts"}
# Of uv and pip, where something is neither installed nor cached.
_NOT_CACHED = re.compile("network was disabled|not found in the cache|No matching distribution found")
_ADDRESS = re.compile(r" @ file://\S+")
_ASK = """
import json
from importlib.metadata import distribution
found = distribution("vllm")
print(json.dumps({"version": found.version, "carries": found.read_text("sparkwright/carries.json")}))
"""


def vllm_command(python: Path) -> tuple[str, ...]:
    """Return the command ``vllm`` of the interpreter *python*, independent of its scripts' first lines."""
    return (str(python), "-m", "vllm.entrypoints.cli.main")


@dataclass(frozen=True)
class Installed:
    """An installed vLLM.

    Attributes:
        version: local part included.
        carries: names of the carries merged into it; none in a wheel that this project did not build.
    """

    version: str
    carries: frozenset[str] = frozenset()


def find_installed(python: Path) -> Installed:
    """Return the vLLM of the interpreter *python*, from its metadata alone: nothing of it is imported.

    Raises:
        ServerError: there is none, *python* cannot be run, or the wheel's record of carries is broken.
    """
    from sparkwright.base.process import run

    try:
        found = json.loads(run([python, "-c", _ASK], timeout=60).text)
        carries = json.loads(found["carries"] or '{"carries": []}')["carries"]
        merged = frozenset(str(one["name"]) for one in carries if one["outcome"] in _MERGED)
        return Installed(str(found["version"]), merged)
    except (ProcessError, ToolError) as error:
        raise ServerError(
            f"{python} has no vLLM",
            because=error.because.strip().rpartition("\n")[2],
            next_step="name the interpreter of an environment that has it, or a wheel",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"the record of carries in vLLM's wheel at {python} cannot be read",
            because=repr(error),
            next_step="install the wheel again; `sparkwright audit` checks it",
        ) from error


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
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if requirements:
            digest += "-" + content_of(requirements)
        python = folder / "bin" / "python"
        if python.exists() and _made_for(folder) == digest:
            return python
        _clear(folder)
        try:
            _make(folder, python, _wanted(folder, wheel, requirements), overrides, offline=offline)
        except (ProcessError, ToolError) as error:
            if offline and _NOT_CACHED.search(error.because):
                raise NotInStoreError(
                    f"no environment can be made for {wheel.name} without a network",
                    because=error.because,
                    next_step="run once without --offline, or give --python of an environment that has vLLM",
                ) from error
            raise ServerError(
                f"no environment could be made for {wheel.name}",
                because=f"{error.what}: {error.because}",
                next_step="the wheel must be for this machine and Python, and what it requires reachable",
            ) from error
        (folder / _DONE).write_text(json.dumps({"wheel": wheel.name, "sha256": digest}), encoding="utf-8")
    return python


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
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        digest, python = hashlib.sha256(requirement.encode()).hexdigest(), folder / "bin" / "python"
        if python.exists() and _made_for(folder) == digest:
            return python
        _clear(folder)
        try:
            _make(folder, python, [requirement], (), offline=offline)
        except (ProcessError, ToolError) as error:
            kind = NotInStoreError if offline and _NOT_CACHED.search(error.because) else ServerError
            raise kind(
                f"no environment could be made with {requirement}",
                because=f"{error.what}: {error.because}",
                next_step="let it be fetched once, or name the interpreter of an environment that has it",
            ) from error
        (folder / _DONE).write_text(
            json.dumps({"requirement": requirement, "sha256": digest}), encoding="utf-8"
        )
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
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / _BEGUN).touch()


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
    """Create the environment and install *wanted*: by uv where it is installed, else by venv and pip."""
    from sparkwright.base.process import run, uv_program

    if uv := uv_program():
        cached = ["--offline"] if offline else []
        run(
            [uv, "venv", "--quiet", "--allow-existing", *cached, "--python", sys.executable, folder],
            timeout=_INSTALL_S,
        )
        if overrides:
            listed = folder / "overrides.txt"
            listed.write_text("\n".join(overrides) + "\n", encoding="utf-8")
            wanted = ["--override", listed, *wanted]
        run(
            [uv, "pip", "install", "--quiet", *cached, "--python", python, *wanted],
            timeout=_INSTALL_S,
        )
    else:
        run([sys.executable, "-m", "venv", folder], timeout=_INSTALL_S)
        cached = ["--no-index"] if offline else []  # pip reads its cache only after it has asked an index
        # The list is whole. pip knows no overrides, and takes `name[extra]` for another package than `name`.
        cached += ["--no-deps"] if "--require-hashes" in wanted else []
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *cached, *wanted], timeout=_INSTALL_S)
