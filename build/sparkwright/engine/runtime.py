"""Locked runtimes: resolved by uv, found for a wheel, and installed with every digest checked.

An environment in a folder is made once: of a wheel of vLLM, or of another package.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory

from sparkwright.base.digests import digest_of, sha256_bytes, sha256_file
from sparkwright.base.errors import (
    ConfigError,
    LockMismatchError,
    NotInStoreError,
    ProcessError,
    ServerError,
    ToolError,
)
from sparkwright.base.events import task
from sparkwright.base.process.run import install_packages, make_venv, run, uv_program
from sparkwright.lock.model import series_of
from sparkwright.lock.runtime import (
    OLDEST_PYTHON,
    LockedRuntime,
    beside,
    plain_requirements,
    read_runtime,
    runtime_name,
    runtime_of,
)
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.names import parse_name

_RESOLVE_S = 1800.0
_PROJECT = """\
[tool.uv]
environments = [
  "sys_platform == 'linux' and platform_machine == '{machine}' and implementation_name == 'cpython'",
]
"""


def requirements_of(wheel: Path) -> tuple[str, ...]:
    """Return what *wheel* requires without its extras.

    Raises:
        ArchiveError: it cannot be read.
        WheelError: it is not named as a wheel is.
    """
    name = parse_name(wheel.name)
    with open_archive(wheel) as archive:
        metadata = archive.read(f"{name.dist_info}/METADATA")
    return plain_requirements(message_from_bytes(metadata).get_all("Requires-Dist") or ())


def resolve_runtime(
    requirements: Sequence[str],
    machine: str,
    *,
    offline: bool = False,
    overrides: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> LockedRuntime:
    """Resolve *requirements* for *machine*, on every Python from 3.11 on, by the user's package index.

    The machine need not be this one. *offline* asks no index: uv's cache has to do.

    Raises:
        LockMismatchError: they cannot be met together, or a package has no file for the machine.
        NotInStoreError: the network is off, and uv's cache lacks a package's metadata.
        ToolError: uv is not installed.
    """
    words = ["pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON, "--no-header"]
    words += ["--format", "pylock.toml", *(["--offline"] if offline else [])]
    words += ["--override", "overrides.txt"] if overrides else []
    with TemporaryDirectory() as name, task(f"resolve the runtime for {machine}"):
        folder = Path(name)
        (folder / "pyproject.toml").write_text(_PROJECT.format(machine=machine), encoding="utf-8")
        (folder / "requirements.in").write_text("\n".join([*requirements, *extras]) + "\n", encoding="utf-8")
        (folder / "overrides.txt").write_text("\n".join(overrides) + "\n", encoding="utf-8")
        try:
            run(
                [uv_program(), *words, "--output-file", "pylock.toml", "requirements.in"],
                cwd=folder, timeout=_RESOLVE_S,
            )  # fmt: skip
        except ProcessError as error:
            raise _unresolved(machine, error, offline=offline) from error
        locked = runtime_of((folder / "pylock.toml").read_text(encoding="utf-8"), machine)
    return replace(locked, overrides=tuple(overrides), extras=tuple(extras))


def _unresolved(machine: str, error: ProcessError, *, offline: bool) -> LockMismatchError | NotInStoreError:
    what = f"the runtime for {machine} cannot be resolved"
    if offline:
        return NotInStoreError(what, because=error.because, next_step="run once without --offline")
    return LockMismatchError(
        what, because=error.because, next_step="see which requirement of the wheel is in the way"
    )


def find_runtime(wheel: Path, patchsets: Path | None = None) -> Path:
    """Return the file with the locked runtime of *wheel*: beside the wheel, or beside the series' patchset.

    Raises:
        ConfigError: there is none.
        WheelError: it is not named as a wheel is.
    """
    name = parse_name(wheel.name)
    places = [beside(wheel)]
    if patchsets is not None:
        places.append(patchsets / runtime_name(series_of(name.version), name.machine))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"{wheel.name} has no locked runtime",
            because=f"there is no {' and no '.join(map(str, places))}",
            next_step=f"sparkwright lock runtime --series {series_of(name.version)}, or --unlocked",
        )
    return found


@dataclass(frozen=True)
class ExactRequirements:
    """The requirements by which an installer makes an environment.

    Attributes:
        text: exact requirements with digests, in pip's format; empty for what the index has today.
        overrides: requirements that count instead of those of the same project, as exact as `text`.
        runtime: the digest of the locked runtime, see `LockedRuntime.digest`; empty without one.
    """

    text: str = ""
    overrides: tuple[str, ...] = ()
    runtime: str = ""

    @property
    def content(self) -> str:
        """The digest of what is installed by them, wherever files that they name lie."""
        return digest_of([sha256_bytes(_ADDRESS.sub("", self.text).encode()), self.overrides])


def locked_requirements(wheel: Path, runtime: Path) -> ExactRequirements:
    """Return the requirements by which *wheel* is installed with its *runtime*, every file by its digest.

    Raises:
        ConfigError: the runtime's file does not follow its format.
        LockMismatchError: it lacks something that the wheel requires, or is of another wheel.
        ArchiveError: the wheel cannot be read.
        WheelError: it is not named as a wheel is.
    """
    from packaging.markers import default_environment
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    sha256 = sha256_file(wheel)
    locked = read_runtime(runtime)
    own = [package for package in locked.packages if package.name == "vllm"]
    if own and own[0].hashes != (sha256,):
        raise LockMismatchError(
            f"{runtime.name} is not of {wheel.name}",
            because=f"it names SHA-256 {own[0].hashes[0]}, and the wheel has {sha256}",
            next_step="fetch both again from where they were published",
        )
    environment = {**default_environment(), "platform_machine": parse_name(wheel.name).machine}
    rest = locked.dependencies
    if missing := rest.missing(requirements_of(wheel), environment):  # type: ignore[arg-type] # a TypedDict
        series = series_of(parse_name(wheel.name).version)
        raise LockMismatchError(
            f"{runtime.name} does not fit {wheel.name}",
            because=f"it lacks {', '.join(missing[:5])}",
            next_step=f"make it again: sparkwright lock runtime --series {series}",
        )
    own_line = f"vllm @ {wheel.absolute().as_uri()} --hash=sha256:{sha256}\n"
    # uv takes no override that is not exact where every file has a digest.
    instead = {canonicalize_name(Requirement(one).name) for one in rest.overrides}
    overrides = tuple(package.line for package in rest.packages if package.name in instead)
    return ExactRequirements(own_line + rest.text, overrides, locked.digest)


_DONE = ".sparkwright-environment"
# Of uv and pip, where something is neither installed nor cached.
_NOT_CACHED = re.compile("network was disabled|not found in the cache|No matching distribution found")
_ADDRESS = re.compile(r" @ file://\S+")


def vllm_command(python: Path) -> tuple[str, ...]:
    """Return the command ``vllm`` of the interpreter *python*, independent of its scripts' first lines."""
    return (str(python), "-m", "vllm.entrypoints.cli.main")


def make_environment(
    what: str,
    folder: Path,
    words: Sequence[str | Path],
    requirements: ExactRequirements | None = None,
    *,
    offline: bool = False,
) -> Path:
    """Make an environment once and return its interpreter; one that was not finished is made again.

    Two calls at once wait for each other.

    Args:
        what: its content, for errors.
        folder: destination, named after the content.
        words: what is installed without exact *requirements*: wheels, or requirements in pip's format.
        requirements: what is installed; a file with another digest is refused, and a package that they lack.
        offline: install from the installer's cache alone.

    Raises:
        ServerError: it cannot be made.
        NotInStoreError: something would have to be fetched, and the network is off.
    """
    from filelock import FileLock

    python, done = folder / "bin" / "python", folder / _DONE
    if python.exists() and done.exists():  # without the lock, which a read-only disk refuses
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if python.exists() and done.exists():
            return python
        done.unlink(missing_ok=True)  # first: what is removed by half is not finished
        if folder.exists():
            shutil.rmtree(folder)
        try:
            make_venv(folder, offline=offline)
            if requirements is not None and requirements.text:
                words = _exact_words(folder, requirements)
            install_packages(python, words, offline=offline)
        except (ProcessError, ToolError) as error:
            because = f"{error.what}: {error.because}"
            if offline and _NOT_CACHED.search(error.because):
                raise NotInStoreError(
                    f"no environment can be made for {what} without a network",
                    because=because,
                    next_step="run once without --offline, or give --python of an environment that has it",
                ) from error
            raise ServerError(
                f"no environment could be made for {what}",
                because=because,
                next_step="it must be for this machine and Python, and what it requires reachable",
            ) from error
        done.touch()
    return python


def _exact_words(folder: Path, requirements: ExactRequirements) -> list[str | Path]:
    """Return the arguments of an installer that takes *requirements* and nothing else."""
    listed, overrides = folder / "requirements.txt", folder / "overrides.txt"
    listed.write_text(requirements.text, encoding="utf-8")
    overrides.write_text("\n".join(requirements.overrides) + "\n", encoding="utf-8")
    instead = ("--override", overrides) if requirements.overrides else ()
    return [*instead, "--require-hashes", "--requirement", listed]
