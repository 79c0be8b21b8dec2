"""The agent of bisections on the machine with the card: takes a wheel, serves it, verifies it, and answers.

It reads a `Request` from standard input and ends with that input, however the connection ended: servers and
installers that it started end with it. One agent at a time judges in a folder; others wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import select
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from sparkwright import __version__
from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import (
    ConfigError,
    DigestError,
    EnvironmentSetupError,
    FetchError,
    ServerError,
    SparkwrightError,
    StorageError,
)
from sparkwright.base.events import subscribe, task
from sparkwright.engine.server import ServerFailedError, prepare_wheel
from sparkwright.engine.verifier import CheckRequest
from sparkwright.rehearsal.outcome import broken_server, outcomes_of
from sparkwright.search.messages import (
    SILENT_S,
    Failed,
    Hello,
    Judged,
    Request,
    Told,
    Wanted,
    line_of,
    read_order,
)
from sparkwright.store import hold, remove_tree, storing
from sparkwright.verify.verifier import run_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sparkwright.base.events import Event
    from sparkwright.engine.findings import Finding

_INTERRUPTED = 130
_ELSEWHERE = "name another folder in the target's address"
_PIECE = 1 << 20
_ENVIRONMENTS = 4  # that are kept
_LEAST_FREE = 256 << 20
_HURRY_S = 45.0  # from one interrupt to the next, where the first did not end the work
_INTERRUPTS = 3
_FORWARDED = frozenset(
    {"warning", "lock.waiting", "task.started", "task.progress", "task.finished", "task.failed"}
)
_NAMES = {"wheel": r"[\w.+-]+\.whl", "sha256": r"[0-9a-f]{64}", "run": r"[0-9a-f]{16}"}
_FULL = re.compile("No space left on device|Disk quota exceeded|os error 28", re.IGNORECASE)
_UNREACHABLE = re.compile(
    "error sending request|dns error|connection|timed? ?out|temporary failure|network is unreachable",
    re.IGNORECASE,
)


def serve(folder: Path, say: Callable[[bytes], None], source: int = 0) -> int:
    """Answer the one request that comes from the file descriptor *source*; return the exit status.

    Args:
        folder: keeps wheels, environments and runs.
        say: sends a line back.
        source: a pipe; its end ends everything.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    answers = _Answers(say)
    answers(Hello(version=__version__))
    caller = _Caller(source)
    try:
        with contextlib.suppress(BrokenPipeError), subscribe(answers.tell):
            request = caller.next()
            if not isinstance(request, Request):
                return 0
            try:
                result: Judged | Failed = _Agent(folder.expanduser().absolute(), caller, answers).judge(
                    request
                )
            except SparkwrightError as error:
                result = Failed(
                    error=type(error).__name__,
                    what=error.what,
                    because=error.because,
                    next_step=error.next_step,
                )
            caller.done = True
            answers(result)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


class _Answers:
    """Sends replies, from any thread."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say, self._one_at_a_time = say, threading.Lock()

    def __call__(self, message: Hello | Wanted | Told | Judged | Failed) -> None:
        with self._one_at_a_time:
            self._say(line_of(message))

    def tell(self, event: Event) -> None:
        """Send an event that is worth showing."""
        if event.kind in _FORWARDED:
            data = msgspec.to_builtins(event.data, enc_hook=str)
            with contextlib.suppress(BrokenPipeError):
                self(Told(event=event.kind, data=data))


class _Caller(threading.Thread):
    """Reads orders in a thread of its own, and interrupts the main thread when they end.

    Attributes:
        done: the work is done, so that the end of orders interrupts nothing.
        into: file that takes the bytes of a wheel, and the number of these.
    """

    def __init__(self, source: int) -> None:
        super().__init__(daemon=True)
        self.done = False
        self.into: tuple[Path, int] | None = None
        self._source, self._rest = source, b""
        self._orders: queue.Queue[Request | str | SparkwrightError | None] = queue.Queue()
        self.start()

    def next(self) -> Request | str | None:
        """Return the next request, the digest of the bytes that were received, or `None` at the end.

        Raises:
            SparkwrightError: the bytes could not be written, or an order is none.
        """
        found = self._orders.get()
        if isinstance(found, SparkwrightError):
            raise found
        return found

    def run(self) -> None:
        """Read orders to their end."""
        begun = False
        with contextlib.suppress(EOFError, OSError):
            while True:
                try:
                    if line := self._line():
                        begun = True
                        self._take(line)
                except SparkwrightError as error:
                    self._orders.put(error)
        self._orders.put(None)
        if begun:
            self._interrupt()

    def _take(self, line: bytes) -> None:
        try:
            order = read_order(line)
        except msgspec.MsgspecError as error:
            raise ConfigError("an order cannot be read", because=str(error)) from error
        if isinstance(order, Request):
            self._orders.put(order)
        elif self.into is not None:
            self._orders.put(self._receive(*self.into))

    def _interrupt(self) -> None:
        """Interrupt the main thread; again where it is busy, and at last end this process."""
        for _ in range(_INTERRUPTS):
            if self.done:
                return
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(_HURRY_S)
        os._exit(_INTERRUPTED)  # what it started ends with it

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            self._rest += self._piece()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _receive(self, path: Path, size: int) -> str:
        """Write *size* bytes to *path* and return their digest."""
        digest = hashlib.sha256()
        with storing(f"writing {path}", instead=_ELSEWHERE), path.open("wb", buffering=0) as stream:
            while size:
                data = self._rest or self._piece()
                data, self._rest = data[:size], data[size:]
                stream.write(data)
                digest.update(data)
                size -= len(data)
            os.fsync(stream.fileno())
        return digest.hexdigest()

    def _piece(self) -> bytes:
        """Return what comes next.

        Raises:
            EOFError: nothing more comes, or nothing came for too long.
        """
        ready, _, _ = select.select([self._source], [], [], SILENT_S)
        piece = os.read(self._source, _PIECE) if ready else b""
        if not piece:
            raise EOFError
        return piece


@dataclass(frozen=True)
class _Agent:
    """Judges in one folder."""

    folder: Path
    caller: _Caller
    answers: _Answers

    def judge(self, request: Request) -> Judged:
        """Serve and verify the wheel of *request*.

        Raises:
            SparkwrightError: there is no verdict.
        """
        for name, pattern in _NAMES.items():
            if not re.fullmatch(pattern, getattr(request, name)):
                raise ConfigError(f"{getattr(request, name)!r} cannot be the {name} of a request")
        run = self.folder / "runs" / request.run
        with self._storing():
            for place in (run, self.folder / "wheels" / request.sha256, self.folder / "environments"):
                place.mkdir(parents=True, exist_ok=True)
        with self._held(request):
            self._require_room(request.size)
            wheel = self._wheel(request)
            python = self._environment(request, wheel)
            return self._verified(request, python, run)

    def _storing(self) -> contextlib.AbstractContextManager[None]:
        return storing(f"writing to {self.folder}", instead=_ELSEWHERE)

    @contextlib.contextmanager
    def _held(self, request: Request) -> Iterator[None]:
        """Hold the card of this machine for the block; others are told who holds it."""
        holder = self.folder / "holder"
        by = f", {found}" if (found := _text(holder)) else ""
        with hold(self.folder / "lock", f"the card{by}", patience_s=request.patience_s):
            since = datetime.now(UTC).isoformat(timespec="seconds")
            with self._storing():
                holder.write_text(f"judging for {request.who} since {since}", encoding="utf-8")
            try:
                yield
            finally:
                holder.unlink(missing_ok=True)

    def _require_room(self, size: int) -> None:
        if shutil.disk_usage(self.folder).free < size + _LEAST_FREE:
            raise StorageError(
                f"{self.folder} has no room for a wheel",
                because="the disk is full",
                next_step=f"free some space there, or {_ELSEWHERE}",
            )

    def _wheel(self, request: Request) -> Path:
        """Return the wheel, which is sent if it was not before.

        Raises:
            DigestError: other bytes were sent.
        """
        wheel = self.folder / "wheels" / request.sha256 / request.wheel
        if wheel.is_file() and wheel.stat().st_size == request.size and sha256_file(wheel) == request.sha256:
            return wheel
        part = wheel.with_name(f"{wheel.name}.part")
        self.caller.into = part, request.size
        self.answers(Wanted())
        digest = self.caller.next()
        if digest != request.sha256:
            part.unlink(missing_ok=True)
            raise DigestError(
                f"{request.wheel} arrived with other contents",
                because=f"its SHA-256 is {digest} here, and {request.sha256} where it came from",
                next_step="run again; if the error stays, check the memory and disks of both machines",
            )
        part.replace(wheel)
        return wheel

    def _environment(self, request: Request, wheel: Path) -> Path:
        """Return the interpreter of the wheel's environment; the last few of them are kept.

        Raises:
            StorageError: the disk is full.
            FetchError: a requirement could not be fetched.
            EnvironmentSetupError: this wheel cannot be installed here.
        """
        root = self.folder / "environments"
        place = root / request.sha256[:16]
        with self._storing():
            others = sorted((path for path in root.iterdir() if path.is_dir() and path != place), key=_used)
            for path in others[: max(0, len(others) - _ENVIRONMENTS + 1)]:
                remove_tree(path)
        try:
            with task(f"install {wheel.name}"):
                python = prepare_wheel(wheel, place, offline=request.offline)
        except ServerError as error:
            kind: type[SparkwrightError] = EnvironmentSetupError
            if _FULL.search(error.because):
                kind = StorageError
            elif _UNREACHABLE.search(error.because):
                kind = FetchError
            raise kind(error.what, because=error.because, next_step=error.next_step) from error
        os.utime(place)
        return python

    def _verified(self, request: Request, python: Path, run: Path) -> Judged:
        started = time.monotonic()
        recipe = request.recipe
        if request.recipe_text:
            path = run / "recipe.toml"
            with self._storing():
                path.write_text(request.recipe_text, encoding="utf-8")
            recipe = str(path)
        asked = CheckRequest(
            recipe=recipe,
            python=python,
            profile=request.profile,
            checks=request.checks,
            levels=request.levels,
            offline=request.offline,
        )
        findings: tuple[Finding, ...] = ()
        try:
            with self._storing():
                findings = run_checks(asked, run)
            outcomes, up = outcomes_of(findings, request.checks, lenient=False), True
        except ServerFailedError as error:
            outcomes, up = broken_server(error, ("boot", *request.checks)), False
        if any(one.verdict != "passed" for one in outcomes):
            self._require_room(0)  # a server whose disk is full fails in ways that say nothing of it
        return Judged(
            started=up,
            outcomes=tuple(outcomes),
            findings=findings,
            folder=str(run),
            seconds=round(time.monotonic() - started, 3),
        )


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _used(path: Path) -> float:
    return path.stat().st_mtime
