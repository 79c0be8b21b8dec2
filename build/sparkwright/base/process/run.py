"""Run a program to its end, and log its result; make environments of Python with uv.

Arguments are always a list and never pass through a shell. Each run is logged as an event with
only the *difference* of its environment, which is enough to repeat it by hand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess  # noqa: TID251
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sparkwright.base.errors import ProcessError, ToolError
from sparkwright.base.events import emit

TAIL = 4000
_PIECE = 1 << 20


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    Attributes:
        status: its exit status; negative is the signal that ended it.
    """

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """Standard output, decoded and stripped."""
        return self.stdout.decode(errors="replace").strip()


def which(program: str, *, hint: str = "") -> str:
    """Return the absolute path of *program*."""
    found = shutil.which(program)
    if found is None:
        raise ToolError(f"the program {program!r} was not found", because="it is not on PATH", next_step=hint)
    return found


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    accept: Sequence[int] = (0,),
) -> Completed:
    """Run a program to its end and capture its output.

    Without *env* it inherits this process's environment; *accept* are exit statuses that are no errors.

    Raises:
        ToolError: the program does not exist, or may not be run.
        ProcessError: it ended with another status, or ran out of time.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise not_started(command, error) from error
    except subprocess.TimeoutExpired as error:
        raise ProcessError(
            f"{_title(command)} … did not end", because=f"it ran for more than {timeout:g} s"
        ) from error
    result = Completed(
        command,
        done.returncode,
        done.stdout,
        done.stderr.decode(errors="replace"),
        time.monotonic() - started,
    )
    log_end(result, env)
    _require(result, accept)
    return result


def stream(argv: Sequence[str | Path]) -> Iterator[bytes]:
    """Run a program and yield its standard output in pieces of at most a MiB, while it runs.

    For output that does not fit in memory. A caller that stops reading ends the program.

    Raises:
        ToolError: the program does not exist, or may not be run.
        ProcessError: it ended with a status other than 0.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise not_started(command, error) from error
        with child:
            try:
                while child.stdout is not None and (piece := child.stdout.read(_PIECE)):
                    yield piece
            except BaseException:
                child.kill()
                raise
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    result = Completed(command, child.returncode, b"", text, time.monotonic() - started)
    log_end(result, None)
    _require(result, (0,))


def _require(result: Completed, accept: Sequence[int]) -> None:
    if result.status not in accept:
        raise ProcessError(
            f"{_title(result.argv)} … failed with status {result.status}",
            because=(result.stderr.strip() or result.text)[-TAIL:] or "it printed nothing",
        )


def _title(command: tuple[str, ...]) -> str:
    """Return the first words of *command*, without configuration: ``git --git-dir X fetch``."""
    pairs = zip(command, ("", *command), strict=False)
    return shlex.join([word for word, before in pairs if "-c" not in {word, before}][:4])


def not_started(command: tuple[str, ...], error: OSError) -> ToolError:
    """Return the error to raise for a *command* that the system could not start."""
    what = "was not found" if isinstance(error, FileNotFoundError) else "could not be started"
    return ToolError(
        f"the program {command[0]!r} {what}", because=str(error), next_step="install it, or correct PATH"
    )


def log_end(result: Completed, env: Mapping[str, str] | None) -> None:
    """Emit the result of a program, with the difference of its environment *env* from this process's."""
    changed: dict[str, str | None] = {}
    if env is not None:
        changed |= {name: None for name in os.environ if name not in env}
        new = {name: value for name, value in env.items() if os.environ.get(name) != value}
        changed |= {name: "***" if name.endswith(("_KEY", "_TOKEN")) else new[name] for name in new}
    emit(
        "process.ended",
        argv=shlex.join(result.argv),
        env=changed,
        status=result.status,
        seconds=round(result.seconds, 4),
    )


UnguardedProcess: TypeAlias = subprocess.Popen[bytes]


def start_unguarded(argv: Sequence[str | Path]) -> UnguardedProcess:
    """Start a program in this process's group, without a guard.

    It reads from a pipe that closes when this process ends, and its output is discarded. For a server that
    manages its own processes; to end a program with this process, use `start`.
    """
    command = tuple(str(part) for part in argv)
    silent = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
    except OSError as error:
        raise not_started(command, error) from error


# Environments of Python and their packages, by uv -------------------------------------------------

# It downloads in parallel, links files from its cache, and compiles no bytecode of modules that are never
# imported.

_LIMIT_S = 3600.0


def uv_program() -> str:
    """Return the path of uv: the one beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name("uv")
    if found := str(beside) if beside.exists() else shutil.which("uv"):
        return found
    raise ToolError(
        "uv was not found",
        because="it makes environments, and is neither beside this interpreter nor on PATH",
        next_step="pip install uv",
    )


def make_venv(folder: Path, *, offline: bool = False) -> None:
    """Make an environment of this interpreter in *folder*, which may hold other files."""
    words = ("venv", "--quiet", "--allow-existing", *_network(offline), "--python", sys.executable)
    run([uv_program(), *words, folder], timeout=_LIMIT_S)


def install_packages(python: Path, words: Sequence[str | Path], *, offline: bool = False) -> None:
    """Install packages into the environment of *python*.

    *words* are arguments of ``uv pip install``; *offline* takes packages from uv's cache alone.
    """
    place = ("--python", python)
    run([uv_program(), "pip", "install", "--quiet", *_network(offline), *place, *words], timeout=_LIMIT_S)


def _network(offline: bool) -> tuple[str, ...]:  # noqa: FBT001 - the only argument
    return ("--offline",) if offline else ()
