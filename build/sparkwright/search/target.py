"""Machines that judge wheels on a card: this one, or another one over ssh.

`parse_target` reads an address, and `Target.judge` has a wheel served and verified there by the agent (see
`agent`). A connection that is lost says nothing of the wheel.
"""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Never, Self
from urllib.parse import unquote, urlsplit

import msgspec

from sparkwright import __version__
from sparkwright.base import errors
from sparkwright.base.errors import ConfigError, SparkwrightError, TargetError, ToolError
from sparkwright.base.events import emit, task
from sparkwright.base.process import Dialogue
from sparkwright.base.ssh import parse_host
from sparkwright.search.messages import (
    ALIVE_S,
    Failed,
    Hello,
    Judged,
    Sending,
    Told,
    Wanted,
    line_of,
    read_reply,
)
from sparkwright.search.metric import UntestableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.search.messages import Reply, Request

LOCAL = "local"
FOLDER = "~/.cache/sparkwright/target"
"""Folder on another machine, if its address names none."""

_FORM = "local, or ssh://[USER@]HOST[:PORT][/FOLDER]"
# The folder is an argument of this program, and no part of it. PATH is short where no login shell set it.
_START = (
    'case $1 in "~/"*) set -- "$HOME/${1#??}";; esac; PATH="$1/bin:$PATH:$HOME/.local/bin"; '
    'command -v sparkwright >/dev/null || exit 127; exec sparkwright agent "$1"'
)
_HELLO_S = 60.0
_POLL_S = 0.25
_PIECE = 1 << 20
_NOT_FOUND, _OF_SSH = 127, 255
_TRIES = 3
# Errors that a wheel or its recipe causes, and no network, disk or machine.
_OF_THE_WHEEL = frozenset({"EnvironmentSetupError", "IncompatibleOptionsError"})


class ConnectionLostError(TargetError):
    """The agent ended, or the connection to it, before it had answered."""


@dataclass(frozen=True)
class Target:
    """A machine that judges wheels.

    Attributes:
        name: the address, as it is shown.
        argv: the command that starts the agent and speaks with it.
        stop: set when the user interrupts.
        pause_s: pause before an evaluation is tried again after the connection was lost.
        patience_s: how long to wait for an agent to end its servers.
    """

    name: str
    argv: tuple[str, ...]
    stop: threading.Event = field(default_factory=threading.Event)
    pause_s: float = 5.0
    patience_s: float = 60.0
    _met: threading.Event = field(default_factory=threading.Event, repr=False)

    def require_once(self) -> None:
        """Do what `require` does, but only until the machine has answered once."""
        if not self._met.is_set():
            self.require()

    def require(self) -> None:
        """Do nothing if the machine can be reached and has this version of the program.

        Raises:
            TargetError: it cannot be reached.
            ToolError: it lacks the program, or has another version.
        """
        with Dialogue(self.argv, patience_s=self.patience_s) as dialogue:
            self._greet(dialogue)

    def judge(self, wheel: Path, request: Request) -> Judged:
        """Have *wheel* judged as *request* says; what was measured before a lost connection is kept.

        Raises:
            UntestableError: this wheel cannot be judged there; the text is the reason.
            TargetError: the machine cannot be reached.
            SparkwrightError: the agent's own error, such as a full disk.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._judged(wheel, request)
            except ConnectionLostError as error:
                emit("bisect.retry", what=[wheel.name], error=str(error), wait_s=self.pause_s)
            self._pause()
            self.require()  # a machine that is gone says nothing of the wheel: the search stops
        try:
            return self._judged(wheel, request)
        except ConnectionLostError as error:
            self.require()
            lost = f"{self.name} was lost {_TRIES} times while it judged this wheel: {error}"
            raise UntestableError(lost) from error

    def _pause(self) -> None:
        if self.stop.wait(self.pause_s):
            raise KeyboardInterrupt

    def _judged(self, wheel: Path, request: Request) -> Judged:
        with Dialogue(self.argv, patience_s=self.patience_s) as dialogue, _Retold() as retold:
            self._greet(dialogue)
            self._send(dialogue, line_of(request))
            for reply in self._replies(dialogue):
                match reply:
                    case Told():
                        retold.emit(reply)
                    case Wanted():
                        self._send_wheel(dialogue, wheel)
                    case Failed():
                        self._fail(reply)
                    case Judged():
                        return reply
                    case Hello():
                        pass
        raise AssertionError  # pragma: no cover - the replies end with one of these

    def _greet(self, dialogue: Dialogue) -> None:
        for reply in self._replies(dialogue, limit_s=_HELLO_S, greeted=False):
            if not isinstance(reply, Hello):
                continue
            if reply.version != __version__:
                raise ToolError(
                    f"{self.name} cannot judge wheels for this program",
                    because=f"sparkwright is {reply.version} there, and {__version__} here",
                    next_step=f"install the same there: pip install 'sparkwright[verify]=={__version__}'",
                )
            self._met.set()
            return

    def _replies(self, dialogue: Dialogue, *, limit_s: float = 0.0, greeted: bool = True) -> Iterator[Reply]:
        """Yield replies as they come, and give signs of life; other lines, such as a login's, are left out.

        Raises:
            TargetError: the dialogue ended, or nothing came for *limit_s* seconds.
            ToolError: the program is not there.
        """
        began = signed = time.monotonic()
        while True:
            try:
                line = dialogue.line(_POLL_S)
            except EOFError:
                raise self._ended(dialogue, greeted=greeted) from None
            if self.stop.is_set():
                raise KeyboardInterrupt
            now = time.monotonic()
            if greeted and now - signed > ALIVE_S:
                signed = now
                self._send(dialogue, b"\n")
            if line is not None and (reply := _reply(line)) is not None:
                yield reply
            elif limit_s and now - began > limit_s:
                raise TargetError(
                    f"{self.name} does not answer",
                    because=f"nothing came within {limit_s:g} s",
                    next_step="check the machine, and what its shell does at a login",
                )

    def _send(self, dialogue: Dialogue, data: bytes) -> None:
        if not dialogue.send(data):
            raise self._ended(dialogue, greeted=True)

    def _send_wheel(self, dialogue: Dialogue, wheel: Path) -> None:
        self._send(dialogue, line_of(Sending()))
        size = wheel.stat().st_size
        with task(f"send {wheel.name}", total=size >> 20, unit="MiB") as sending, wheel.open("rb") as stream:
            while piece := stream.read(_PIECE):
                self._send(dialogue, piece)
                sending.advance()
                if self.stop.is_set():
                    raise KeyboardInterrupt

    def _ended(self, dialogue: Dialogue, *, greeted: bool) -> SparkwrightError:
        """Return the error to raise for a dialogue that ended too early."""
        done = dialogue.end()
        last = done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.status}"
        if greeted:
            return ConnectionLostError(
                f"the connection to {self.name} was lost",
                because=last,
                next_step="run the same command again: it resumes the search",
            )
        if done.status == _NOT_FOUND:
            return ToolError(
                f"{self.name} has no sparkwright",
                because="it is neither on PATH there, nor in ~/.local/bin or the bin of the folder",
                next_step=f"install it there: pip install 'sparkwright[verify]=={__version__}'",
            )
        if done.status == _OF_SSH:
            by_hand = shlex.join((*self.argv[: self.argv.index("--") + 2], "true"))
            return TargetError(
                f"{self.name} cannot be reached", because=last, next_step=f"try it by hand: {by_hand}"
            )
        return ToolError(
            f"the sparkwright of {self.name} cannot judge wheels for this program",
            because=last,
            next_step=f"install the same there: pip install 'sparkwright[verify]=={__version__}'",
        )

    def _fail(self, reply: Failed) -> Never:
        """Raise the agent's error, as one of the wheel or of the machine."""
        because = f"{reply.what}, because {reply.because}" if reply.because else reply.what
        if reply.error in _OF_THE_WHEEL:
            raise UntestableError(because)
        kind = getattr(errors, reply.error, None)  # the name comes from another machine
        if not (isinstance(kind, type) and issubclass(kind, SparkwrightError)):
            kind = TargetError
        raise kind(f"{self.name}: {reply.what}", because=reply.because, next_step=reply.next_step)


class _Retold:
    """Emits events of the agent here; tasks that it left open fail with the connection."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        for name, began in self._open.items():
            seconds = round(time.monotonic() - began, 3)
            emit("task.failed", name=name, seconds=seconds, error="the agent ended")

    def emit(self, told: Told) -> None:
        """Emit an event of the agent."""
        name = str(told.data.get("name"))
        if told.event == "task.started":
            self._open[name] = time.monotonic()
        elif told.event in {"task.finished", "task.failed"}:
            self._open.pop(name, None)
        emit(told.event, **told.data)


def _reply(line: bytes) -> Reply | None:
    try:
        reply: Reply = read_reply(line)
    except msgspec.MsgspecError:
        return None
    return reply


def parse_target(text: str, *, home: Path, stop: threading.Event | None = None) -> Target:
    """Return the machine at an address: ``local``, or ``ssh://[user@]host[:port][/folder]``.

    Args:
        text: the address.
        home: folder for the agent of this machine.
        stop: set when the user interrupts.

    Raises:
        ConfigError: it is no address, or holds a password.
    """
    stop = stop or threading.Event()
    if text == LOCAL:
        return Target(LOCAL, (sys.executable, "-m", "sparkwright", "agent", str(home)), stop)
    parts = urlsplit(text)
    if "@" in parts.netloc and ":" in parts.netloc.rpartition("@")[0]:
        raise _no_target("ssh://…", "it holds a password; ssh takes keys")
    if parts.scheme != "ssh" or parts.query or parts.fragment:
        raise _no_target(text, "it is neither 'local' nor an address of ssh")
    try:
        host = parse_host(parts.netloc)
    except ValueError as error:
        raise _no_target(text, str(error)) from error
    folder = unquote(parts.path)
    if not folder.isprintable():
        raise _no_target(text, "its folder has characters that cannot be shown")
    if folder in {"", "/"}:
        folder = FOLDER
    elif folder.startswith("/~/"):
        folder = folder[1:]
    return Target(text, host.argv(_START, folder), stop)


def _no_target(text: str, because: str) -> ConfigError:
    return ConfigError(f"{text!r} is no target", because=because, next_step=f"give {_FORM}")


def caller() -> str:
    """Return who asks for a card: user and machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
