"""Change the wheel of a service: its environments, the systemd that runs it, and the way back.

The old environment is kept until the new one has answered.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.errors import ProcessError, ServerEndedError, SparkwrightError, UnknownNameError
from sparkwright.base.events import emit, task, warn
from sparkwright.base.process.run import run
from sparkwright.serve.service.model import Scope, ServiceRecord

_STOP_S = 300.0  # more than the unit's own limit


@dataclass(frozen=True)
class Slots:
    """The environments of a service, one for each wheel, in its *folder*, and a link to the one in use."""

    folder: Path

    @property
    def link(self) -> Path:
        """Return the link to the environment that serves."""
        return self.folder / "current"

    @property
    def current(self) -> str:
        """Return the name of the environment that serves; empty before the first."""
        return self.link.readlink().name if self.link.is_symlink() else ""

    def place(self, name: str) -> Path:
        """Return the folder of the environment *name*."""
        return self.folder / "environments" / name

    def python(self, name: str) -> Path:
        """Return the interpreter of the environment *name*."""
        return self.place(name) / "bin" / "python"

    def point(self, name: str) -> None:
        """Point the link to the environment *name*, in one step."""
        part = self.link.with_name("current.part")
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(self.place(name), self.folder), target_is_directory=True)
        part.replace(self.link)

    def prune(self, kept: Iterable[str]) -> tuple[str, ...]:
        """Remove the environments that are not *kept*; return their names."""
        keep, folder = {*kept, self.current}, self.place("")
        gone = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in keep]
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        return tuple(path.name for path in gone)


@dataclass(frozen=True)
class SystemdManager:
    """A unit of systemd; as one of type notify it has started once a request got tokens."""

    unit: str
    scope: Scope

    def _call(self, *words: str, accept: tuple[int, ...] = (0,)) -> None:
        """Run ``systemctl``.

        Raises:
            ProcessError: it failed with a status that is not in *accept*.
            ToolError: there is no systemctl.
        """
        scope = ("--user",) if self.scope == "user" else ()
        # A start has the unit's limit, which grows while a model is fetched.
        limit = None if words[0] == "start" else _STOP_S
        run(["systemctl", *scope, *words], timeout=limit, accept=accept)

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            ServerEndedError: it did not become ready.
        """
        try:
            self._call("reset-failed", self.unit, accept=tuple(range(256)))
            self._call("start", self.unit)
        except ProcessError as error:
            flag = " --user" if self.scope == "user" else ""
            raise ServerEndedError(
                f"{self.unit} did not become ready",
                because=error.because,
                next_step=f"journalctl{flag} -u {self.unit} -e",
            ) from error

    def stop(self) -> None:
        """Stop it and wait until it has ended."""
        self._call("stop", self.unit)

    def state(self) -> tuple[bool, str]:
        """Return whether it brings tokens, and a line that says so: the watchdog's, as systemd has it."""
        scope = ("--user",) if self.scope == "user" else ()
        if not has_systemd(self.scope):
            return False, "systemd does not run here"
        asked = ["systemctl", *scope, "show", self.unit, "--property=ActiveState", "--property=StatusText"]
        shown = dict(line.partition("=")[::2] for line in run(asked, timeout=_STOP_S).text.splitlines())
        active, line = shown.get("ActiveState", ""), shown.get("StatusText", "")
        if active != "active":
            return False, active or "it is not there"
        return line == "healthy", line


def has_systemd(scope: Scope) -> bool:
    """Tell if systemd runs this machine, and for *scope* ``user`` the user's session."""
    if scope == "system":
        return os.path.isdir("/run/systemd/system")  # noqa: PTH112 - sd_booted(3) defines it so
    return bool(os.environ.get("XDG_RUNTIME_DIR")) and os.path.isdir("/run/systemd/system")  # noqa: PTH112


def upgrade(
    slots: Slots,
    record: ServiceRecord,
    name: str,
    manager: SystemdManager,
    *,
    wheel: str,
    preflight: Callable[[Path], None],
) -> ServiceRecord:
    """Serve with the environment *name*; where it does not answer, start the old one again.

    One card holds one model, so that the old server is stopped before the new one is started. Nothing changes
    where *preflight* raises over the environment's interpreter.

    Returns:
        The record after the change.

    Raises:
        ServerEndedError: the new one did not answer; the message says whether the old one serves again.
    """
    preflight(slots.python(name))
    old = slots.current
    if name == old and manager.state()[0]:
        emit("service.unchanged", wheel=wheel)
        return record
    failure = _switch(slots, name, manager)
    if failure:
        raise _put_back(slots, old, manager, failure, wheel)
    emit("service.upgraded", wheel=wheel, before=record.wheels.get(old, ""))
    return _recorded(record, name, old, wheel)


def _recorded(record: ServiceRecord, name: str, old: str, wheel: str) -> ServiceRecord:
    """Return the record after a change from the environment *old* to *name*."""
    previous = old if old != name else record.previous
    wheels = {**record.wheels, name: wheel}
    kept = {name, previous} & wheels.keys()
    return msgspec.structs.replace(
        record, current=name, previous=previous, wheels={slot: wheels[slot] for slot in sorted(kept)}
    )


def roll_back(slots: Slots, record: ServiceRecord, manager: SystemdManager) -> ServiceRecord:
    """Serve with the previous environment; where it does not answer, start the present one again.

    Raises:
        UnknownNameError: there is none.
        ServerEndedError: it did not answer; the message says whether the present one serves again.
    """
    name = record.previous
    if not name or not slots.python(name).exists():
        raise UnknownNameError(
            f"the service {record.options.name} has nothing to go back to",
            because="no environment before the present one is kept",
            next_step="sparkwright service upgrade --wheel OLDER",
        )
    if failure := _switch(slots, name, manager):
        raise _put_back(slots, record.current, manager, failure, record.wheels.get(name, name))
    emit(
        "service.rolled-back", wheel=record.wheels.get(name, ""), before=record.wheels.get(record.current, "")
    )
    return msgspec.structs.replace(record, current=name, previous=record.current)


def _switch(slots: Slots, name: str, manager: SystemdManager) -> str:
    """Stop the service, point it to the environment *name* and start it; return the failure, or empty."""
    manager.stop()  # before the link moves: a server reads modules of its environment as it needs them
    slots.point(name)
    try:
        with task("start the service"):
            manager.start()
    except SparkwrightError as error:
        return str(error)
    return ""


def _put_back(slots: Slots, old: str, manager: SystemdManager, failure: str, wheel: str) -> ServerEndedError:
    """Start the environment *old* again and return the error to raise."""
    what = f"{wheel} did not answer"
    if not old:
        manager.stop()
        return ServerEndedError(what, because=failure, next_step="no wheel served before; see its log")
    warn(f"{what}; the environment before it is started again")
    again = _switch(slots, old, manager)
    if again:
        return ServerEndedError(
            f"{what}, and the environment before it did not answer either",
            because=f"{failure}; then: {again}",
            next_step="sparkwright service status; look at the host: memory, driver, disk",
        )
    return ServerEndedError(
        f"{what}; the environment before it serves again",
        because=failure,
        next_step="see the log of its start; nothing else was changed",
    )
