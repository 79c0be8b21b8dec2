"""Between the steps of a decode, a reader of the shared-memory queue sleeps.

A real `MessageQueue` with its writer, its reader and their sockets runs in one process, on a simulated clock:
a yield of the reader takes 50 microseconds, and a wait for a notification takes until the next message is
due. The writer then writes it and notifies, as upstream does. So spinning is counted, not timed.

Healthy: of the 20 ms between two messages a reader spins for less than half, and sleeps for the rest; and
as it sleeps in every step, a notification that never arrives delays a message and does not lose it.
Controls, true of every tree: messages come in order; a reader that gets none for a minute sleeps; one that
gets them every three milliseconds does not, as libzmq drops a notification so soon after another.
"""

# ruff: noqa: SLF001 - the condition that a queue waits by has no public name
from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from probekit import expect
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

YIELD_S = 50e-6
NOTICE_MS = 10_000  # an idle reader looks at the buffer at least this often


class World:
    """A writer, its messages with their times, and the one reader that waits for them."""

    def __init__(self, writer: MessageQueue, reader: MessageQueue) -> None:
        self.writer, self.reader = writer, reader
        self.poller = reader._spin_condition.poller
        self.now = self.spun = 0.0
        self.sleeps = 0
        self.waits: list[int | None] = []  # milliseconds that the reader would sleep for at most
        self.due: list[float] = []
        self.written = 0
        self.notifies = True

    def write_due(self) -> None:
        """Write the messages whose time has come."""
        silent = mock.patch.object(self.writer._spin_condition, "notify")
        while self.due and self.due[0] <= self.now:
            self.due.pop(0)
            with ExitStack() as stack:
                if not self.notifies:
                    stack.enter_context(silent)
                self.writer.enqueue(self.written)
            self.written += 1

    def sched_yield(self) -> None:
        """Let a moment pass, which the reader's core was busy for."""
        self.now += YIELD_S
        self.spun += YIELD_S
        self.write_due()

    def poll(self, timeout: int | None) -> Any:
        """Let the reader sleep until the next message, or until its notification is lost."""
        if early := self.poller.poll(timeout=0):
            return early  # about a message that it has read already
        self.waits.append(timeout)
        limited = timeout is not None and timeout <= NOTICE_MS
        expect(self.notifies or limited, "an idle reader depends on a notification that may be lost")
        self.sleeps += 1
        self.now = self.due[0]
        self.write_due()
        while not (events := self.poller.poll(timeout=5)) and self.notifies:
            self.writer._spin_condition.notify()  # libzmq drops one that in real time follows too soon
        return events

    def wait(self, timeout_ms: int) -> None:
        """Let an idle reader wait for so long at most, and read the message that comes then."""
        self.now += 60.0
        self.due = [self.now + 60.0]
        self.waits.clear()
        self.reader._spin_condition.wait(timeout_ms=timeout_ms)
        longest = max((NOTICE_MS if wait is None else wait for wait in self.waits), default=0)
        expect(longest <= timeout_ms, f"a reader that is to wait {timeout_ms} ms waits {longest}")
        self.reader.dequeue(indefinite=True)

    def read(self, count: int, gap: float) -> None:
        """Read *count* messages that are written every *gap* seconds, in order."""
        self.spun, self.sleeps, first = 0.0, 0, self.written
        self.due = [self.now + gap * index for index in range(1, count + 1)]
        found = [self.reader.dequeue(indefinite=True) for _ in range(count)]
        if found != list(range(first, first + count)):
            raise ValueError(f"read {found}")


@contextmanager
def world() -> Iterator[World]:
    """Connect a reader with its writer, and put the clock where upstream looks for it."""
    writer = MessageQueue(1, 1, max_chunk_bytes=1 << 12, max_chunks=4)
    reader = MessageQueue.create_from_handle(writer.export_handle(), rank=0)
    writer.wait_until_ready()
    reader.wait_until_ready()
    found = World(writer, reader)
    waiting = reader._spin_condition
    for _ in range(1000):  # until the subscription has arrived
        writer._spin_condition.notify()
        if found.poller.poll(timeout=10):
            break
    with ExitStack() as stack:
        clock = SimpleNamespace(monotonic=lambda: found.now)
        stack.enter_context(mock.patch.object(shm_broadcast, "time", clock))
        stack.enter_context(mock.patch.object(shm_broadcast, "sched_yield", found.sched_yield))
        stack.enter_context(mock.patch.object(waiting, "poller", SimpleNamespace(poll=found.poll)))
        stack.enter_context(mock.patch.object(waiting, "last_read", 0.0))
        if hasattr(waiting, "last_notify_poll"):
            stack.enter_context(mock.patch.object(waiting, "last_notify_poll", 0.0))
        yield found


def probe() -> None:
    """Check the controls first: quick messages, and none at all."""
    with world() as queue:
        queue.read(40, gap=3e-3)
        expect(not queue.sleeps, "a reader sleeps though a notification may be dropped")
        queue.read(2, gap=60.0)
        expect(queue.sleeps == 2, "a reader spins for a minute")
        queue.read(10, gap=20e-3)
        expect(
            queue.spun < 10 * 10e-3,
            f"of 200 ms between ten steps, a reader spins for {queue.spun * 1e3:.0f} ms",
        )
        for timeout_ms in (1, 200):
            queue.wait(timeout_ms)
        queue.notifies = False
        queue.read(2, gap=60.0)
        queue.read(2, gap=20e-3)
