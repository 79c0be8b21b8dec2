"""Change the wheel of a service; the old environment is kept until the new one has answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sparkwright.base.errors import ServerEndedError, SparkwrightError, UnknownNameError
from sparkwright.base.events import emit, task, warn
from sparkwright.serve.service.manager import ServiceManager
from sparkwright.serve.service.model import ServiceRecord
from sparkwright.serve.service.slots import Slots


def upgrade(
    slots: Slots,
    record: ServiceRecord,
    name: str,
    manager: ServiceManager,
    *,
    wheel: str,
    preflight: Callable[[Path], None],
) -> ServiceRecord:
    """Serve with the environment *name*; where it does not answer, start the old one again.

    One card holds one model, so that the old server is stopped before the new one is started.

    Args:
        slots: the environments.
        record: the service's record.
        name: the environment.
        manager: starts and stops the service.
        wheel: file name of its wheel.
        preflight: raises if the environment's interpreter is not to be served with; nothing changes then.

    Returns:
        The record after the change.

    Raises:
        ServerEndedError: the new one did not answer; the message says whether the old one serves again.
    """
    preflight(slots.python(name))
    old = slots.current
    if name == old and not manager.answers():
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


def roll_back(slots: Slots, record: ServiceRecord, manager: ServiceManager) -> ServiceRecord:
    """Serve with the previous environment; where it does not answer, start the present one again.

    Raises:
        UnknownNameError: there is none.
        ServerEndedError: it did not answer; the message says whether the present one serves again.
    """
    name = record.previous
    if not name or not slots.python(name).exists():
        raise UnknownNameError(
            f"the service {record.name} has nothing to go back to",
            because="no environment before the present one is kept",
            next_step="sparkwright service upgrade --wheel OLDER",
        )
    if failure := _switch(slots, name, manager):
        raise _put_back(slots, record.current, manager, failure, record.wheels.get(name, name))
    emit(
        "service.rolled-back", wheel=record.wheels.get(name, ""), before=record.wheels.get(record.current, "")
    )
    return msgspec.structs.replace(record, current=name, previous=record.current)


def _switch(slots: Slots, name: str, manager: ServiceManager) -> str:
    """Stop the service, point it to the environment *name* and start it; return the failure, or empty."""
    manager.stop()  # before the link moves: a server reads modules of its environment as it needs them
    slots.point(name)
    try:
        with task("start the service"):
            manager.start()
        return manager.answers()
    except SparkwrightError as error:
        return str(error)


def _put_back(slots: Slots, old: str, manager: ServiceManager, failure: str, wheel: str) -> ServerEndedError:
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
