"""Run tasks on other machines: start a worker on each over ssh, send tasks, and take results.

A worker is a program at the other end of a connection of ssh: it reads tasks as lines, and writes replies as
lines. Nothing listens on a port, and a machine can do no more here than to answer.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError, SparkwrightError, ToolError, error_class
from sparkwright.base.events import emit, task, warn
from sparkwright.base.process.run import Completed
from sparkwright.base.process.session import Dialogue
from sparkwright.base.ssh import SshHost
from sparkwright.distributed.tasks import (
    GB10,
    GPU,
    Done,
    Failed,
    Offer,
    Task,
    TaskLostError,
    WorkerMessage,
    WorkerSettings,
    own_code,
)
from sparkwright.distributed.worker import ALIVE_S
from sparkwright.store.paths import Store

_START = (
    'PATH="$PATH:$HOME/.local/bin"; command -v sparkwright >/dev/null || exit 127; exec sparkwright worker'
)
_NOT_FOUND, _OF_SSH = 127, 255
_READY_S = 90.0  # in which a worker has to be ready
_ENDS_S = 15.0
_POLL_S = 0.05
_ATTEMPTS = 3
_SHOWN = 500


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Other machines, and the store that is shared with them.

    Attributes:
        hosts: the machines, on each of which a worker is started for the length of a command.
        silent_s: how long a machine may send no sign of life before its tasks go to others; workers send one
            every `ALIVE_S`.
    """

    hosts: tuple[SshHost, ...]
    store: Store
    silent_s: float = 60.0

    @property
    def name(self) -> str:
        """The machines as messages name them."""
        return ", ".join(host.shown for host in self.hosts)

    def run(
        self, tasks: Sequence[Task], take: Callable[[Done], bool], *, title: str = "", unit: str = "tasks"
    ) -> None:
        """Run *tasks*, at least one, on workers that are started for them.

        *take* takes a result, which may be anything, and returns false for one that is not what was asked
        for, and has to be made again. Progress is shown where there is a *title* for it.

        Raises:
            SparkwrightError: the error of the first task that failed, or what *take* raises.
            ClusterError: no machine can be had, none has what a task needs, or a result did not arrive.
            TaskLostError: a task was lost several times.
            ToolError: no machine has this program.
        """
        with contextlib.ExitStack() as stack:
            machines = self._started(stack)
            shown = stack.enter_context(task(title, total=len(tasks), unit=unit)) if title else None
            work = Work(self.name, machines, tasks)
            while work.left:
                work.hand_out()
                for done in self._replies(work):
                    taken = _taken(take, done)
                    work.end(done, taken=taken)
                    if taken and shown is not None:
                        shown.advance(1)
                if shown is not None:
                    shown.advance(0, running=work.running())

    def _started(self, stack: contextlib.ExitStack) -> list[Machine]:
        """Start a worker on each machine for the length of *stack*; return those that are ready."""
        store_url = "" if self.store.remote is None else self.store.remote.settings.url
        machines = []
        with task(f"start workers on {len(self.hosts)} machines"):
            for host in self.hosts:
                there = stack.enter_context(Dialogue(host.argv(_START), patience_s=_ENDS_S))
                settings = WorkerSettings(code=own_code(), store_url=store_url, name=host.shown)
                there.send(msgspec.json.encode(settings) + b"\n")
                machines.append(Machine(host, there))
            refused = {one.name: why for one in machines if (why := _refused(one)) is not None}
        for why in refused.values():
            warn(f"{why.what}: {why.because}; {why.next_step}")
        if len(refused) == len(machines):
            raise next(iter(refused.values()))
        ready = [one for one in machines if one.name not in refused]
        slots = sum(one.offer.slots for one in ready)
        emit("cluster.opened", name=self.name, slots=slots, machines=len(ready))
        return ready

    def _replies(self, work: Work) -> Iterator[Done]:
        """Yield the results that have come; wait a little where none has. Lost machines lose their tasks."""
        quiet = True
        for machine in [one for one in work.machines if one.alive]:
            now = time.monotonic()
            if now - machine.written > ALIVE_S:
                machine.there.send(b"\n")
                machine.written = now
            try:
                while (line := machine.there.line(0.0)) is not None:
                    machine.heard, quiet = now, False
                    message = decode_json(line, WorkerMessage)
                    if isinstance(message, Done) and message.name in machine.running:
                        yield message
                    elif isinstance(message, Failed) and message.name in machine.running:
                        work.fail(machine, message)
            except (EOFError, msgspec.MsgspecError):
                work.lose(machine)
                continue
            if now - machine.heard > self.silent_s:
                work.lose(machine)
        if quiet:
            time.sleep(_POLL_S)


@dataclass
class Machine:
    """A machine with a worker.

    Attributes:
        running: its tasks, with the time of their start.
        fit: it gets tasks.
        alive: it is connected.
        heard: when it gave the last sign of life.
        written: when a line was last sent to it.
    """

    host: SshHost
    there: Dialogue
    offer: Offer = field(default_factory=lambda: Offer(slots=0, mib=0, has=()))
    running: dict[str, tuple[Task, float]] = field(default_factory=dict)
    refused: int = 0
    fit: bool = True
    alive: bool = True
    heard: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """The machine as messages and results name it."""
        return self.host.shown

    def can(self, needs: Collection[str]) -> bool:
        """Tell if it gets tasks, and has all of *needs*."""
        return self.fit and set(needs) <= set(self.offer.has)

    def has_room(self, asked: Task) -> bool:
        """Tell if it can begin *asked* now: a card serves one task, and one that is too large runs alone."""
        tasks = [one for one, _ in self.running.values()]
        card = {GPU, GB10}
        busy = card & set(asked.needs) and any(card & set(one.needs) for one in tasks)
        fits = not tasks or sum(one.mib for one in tasks) + asked.mib <= self.offer.mib
        return len(tasks) < self.offer.slots and fits and not busy


class Work:
    """The tasks of one run, and who has which.

    Attributes:
        left: tasks without a result, by name.
    """

    def __init__(self, name: str, machines: Sequence[Machine], tasks: Sequence[Task]) -> None:
        """Begin with *tasks* on *machines*, which messages call *name*."""
        self.name, self.machines = name, machines
        self.left = {one.name: one for one in tasks}
        self._waiting = sorted(tasks, key=lambda one: (-one.seconds, one.name))
        self._attempts: Counter[str] = Counter()
        self._avoided: dict[str, str] = {}
        for one in tasks:
            self._require(one.needs)

    def _require(self, needs: Collection[str]) -> None:
        if any(one.can(needs) for one in self.machines):
            return
        fit = [one for one in self.machines if one.fit]
        if not fit:
            raise ClusterError(
                f"no machine of {self.name} is left",
                because="all were lost",
                next_step="check the machines, or do without --cluster; what is finished is kept",
            )
        offered = sorted({name for one in fit for name in one.offer.has})
        raise ClusterError(
            f"no machine of {self.name} can do this",
            because=f"it needs {', '.join(needs)}, and they offer {', '.join(offered) or 'nothing'}",
            next_step="name a machine that has it, or do without --cluster",
        )

    def hand_out(self) -> None:
        """Send each waiting task to a machine with room for it, the longest first.

        Raises:
            ClusterError: no machine is left that has what one needs.
        """
        for asked in list(self._waiting):
            self._require(asked.needs)
            able = [one for one in self.machines if one.can(asked.needs)]
            # Not the one that gave no good result, if there are others.
            others = [one for one in able if one.name != self._avoided.get(asked.name)] or able
            free = [one for one in others if one.has_room(asked)]
            if free:
                chosen = max(free, key=lambda one: one.offer.slots - len(one.running))
                self._waiting.remove(asked)
                chosen.running[asked.name] = asked, time.monotonic()
                chosen.there.send(msgspec.json.encode(asked) + b"\n")

    def end(self, done: Done, *, taken: bool) -> None:
        """Take note of a result, which is made again where it was not *taken*."""
        machine = next(one for one in self.machines if done.name in one.running)
        if taken:
            del machine.running[done.name], self.left[done.name]
        else:
            self._refuse(machine, done.name, "it was not what was asked for")

    def fail(self, machine: Machine, failed: Failed) -> None:
        """Raise the error of a task that fails everywhere; have another one made again.

        Raises:
            SparkwrightError: the task's, or that of the last machine.
            TaskLostError: it was the last try.
        """
        emit("cluster.task-failed", task=failed.name, machine=machine.name, because=failed.because)
        if failed.fault == "task":
            raise _error(failed, machine.name)
        if failed.fault != "machine":
            self._refuse(machine, failed.name, failed.because)
            return
        if machine.fit:
            warn(f"{machine.name} is left out: {failed.what}: {failed.because}; {failed.next_step}")
            machine.fit = False
        if not any(one.fit for one in self.machines):
            raise _error(failed, machine.name)
        self._again(machine, failed.name)

    def lose(self, machine: Machine) -> None:
        """Give the tasks of a machine that is lost to others."""
        machine.fit = machine.alive = False
        machine.there.kill()
        emit("cluster.lost", machine=machine.name, tasks=list(machine.running))
        for name in list(machine.running):
            self._attempts[name] += 1
            if self._attempts[name] >= _ATTEMPTS:
                raise TaskLostError(
                    f"{name} was not finished",
                    because="every machine that tried it was lost",
                    next_step="check the machines and their memory; what is finished stays",
                )
            self._again(machine, name)

    def _again(self, machine: Machine, name: str) -> None:
        asked, _ = machine.running.pop(name)
        self._waiting.insert(0, asked)

    def _refuse(self, machine: Machine, name: str, because: str) -> None:
        """Have a task run again of which *machine* gave no good result.

        A machine that did so several times is left out, if others have delivered all of theirs.
        """
        self._attempts[name] += 1
        if self._attempts[name] >= _ATTEMPTS:
            raise TaskLostError(
                f"the result of {name} did not arrive",
                because=f"on {machine.name}, as before on others, {because}",
                next_step="check the machines, and the store that they share: sparkwright store status",
            )
        emit("cluster.result-refused", task=name, machine=machine.name)
        if not machine.refused:
            warn(
                f"a result of {machine.name} did not arrive, and is made again; after {_ATTEMPTS} the "
                "machine is left out: check there that it reaches the store (sparkwright store status)"
            )
        machine.refused += 1
        if machine.refused >= _ATTEMPTS and any(one.fit and not one.refused for one in self.machines):
            emit("cluster.left-out", machine=machine.name, refused=machine.refused)
            machine.fit = False
        self._avoided[name] = machine.name
        self._again(machine, name)

    def running(self) -> list[dict[str, Any]]:
        """Return the tasks that run, as progress takes them."""
        now = time.monotonic()
        return [
            {
                "name": asked.name,
                "machine": machine.name,
                "elapsed": now - begun,
                "expected": asked.seconds,
                "mib": asked.mib,
            }
            for machine in self.machines
            for asked, begun in machine.running.values()
        ]


def _taken(take: Callable[[Done], bool], done: Done) -> bool:
    try:
        return take(done)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def _error(failed: Failed, machine: str) -> SparkwrightError:
    """Return the error of a task, with the machine's name."""
    kind = error_class(failed.kind, ClusterError)
    return kind(failed.what, because=f"on {machine}: {failed.because}", next_step=failed.next_step)


def _refused(machine: Machine) -> ClusterError | ToolError | None:
    """Wait until *machine* says what it offers; return why it cannot be used if it does not."""
    end = machine.written + _READY_S
    while True:
        try:
            line = machine.there.line(max(0.0, end - time.monotonic()))
        except EOFError:
            return _refusal(machine.host.host, machine.there.end())
        if line is None:
            break
        # What the shell of a login says comes before.
        with contextlib.suppress(msgspec.MsgspecError):
            if isinstance(offer := decode_json(line, WorkerMessage), Offer):
                machine.offer, machine.heard = offer, time.monotonic()
                return None
    machine.there.kill()
    return ClusterError(
        f"{machine.host.host} does not answer",
        because=f"its worker was not ready within {_READY_S:g} s",
        next_step="check the machine, and what its shell does at a login",
    )


def _refusal(name: str, ended: Completed) -> ClusterError | ToolError:
    """Return why a connection that has *ended* gave no worker."""
    because = " ".join(ended.stderr.split())[-_SHOWN:] or f"it ended with status {ended.status}"
    if ended.status == _NOT_FOUND:
        return ToolError(
            f"{name} has no sparkwright",
            because="it is neither on PATH there nor in ~/.local/bin",
            next_step="install the same commit there",
        )
    if ended.status == _OF_SSH:
        return ClusterError(
            f"{name} cannot be reached", because=because, next_step=f"try it by hand: ssh {name} true"
        )
    kind = ToolError if ended.status == ToolError.exit_code else ClusterError
    return kind(f"{name} cannot be used", because=because, next_step="install the same commit there")
