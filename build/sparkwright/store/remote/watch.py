"""Requests that are given up when they stall, and a switch that leaves a bad server alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sparkwright.base.events import emit, warn
from sparkwright.store.remote.backend import RemoteFailure, TransferProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.store.remote.settings import RemoteLimits

T = TypeVar("T")


def watched(call: Callable[[TransferProgress], T], limits: RemoteLimits) -> T:
    """Return the result of *call*, made in a thread of its own, unless it stalls.

    Sockets have time-outs, but a server may send a byte a second, or headers without end, and looking up a
    name has none. So the caller waits no longer than the limits say, whatever the thread is waiting for.

    Raises:
        RemoteFailure: nothing came for so long, or too little on the average.
    """
    transfer, result = TransferProgress(), Future[T]()

    def work() -> None:
        try:
            result.set_result(call(transfer))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            result.set_exception(error)

    threading.Thread(target=work, daemon=True, name="remote store").start()
    began = changed = time.monotonic()
    count = 0
    try:
        while True:
            try:
                return result.result(timeout=limits.stall_s / 8)
            except TimeoutError:
                if result.done():
                    raise
            now = time.monotonic()
            if transfer.count > count:
                count, changed = transfer.count, now
            expected = (now - began - limits.stall_s) * limits.least_rate
            if now - changed > limits.stall_s or (expected > 0 and count < expected):
                raise RemoteFailure(f"it sent {count:,} bytes in {now - began:.1f} s")
    finally:
        transfer.cancelled.set()


@dataclass
class Breaker:
    """A switch that opens after failures in a row, or when too much time was spent for nothing.

    Attributes:
        what: what stops then, for the message.
        failures: failures in a row that open it.
        patience_s: seconds of misses and failures that open it.
        reason: why it is open; empty while it is closed.
    """

    what: str
    failures: int
    patience_s: float
    reason: str = ""
    _in_row: int = 0
    _spent: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def closed(self) -> bool:
        """Tell if requests may be made."""
        return not self.reason

    def succeeded(self) -> None:
        """Forget the failures so far."""
        self._in_row = 0

    def spend(self, seconds: float) -> None:
        """Count *seconds* that brought nothing."""
        with self._lock:
            self._spent += seconds
            spent = self._spent
        if spent > self.patience_s:
            self.open(f"its answers took {spent:.0f} s in vain")

    def fail(self, failure: RemoteFailure) -> None:
        """Count *failure*."""
        emit("store.remote.failure", what=self.what, because=str(failure))
        with self._lock:
            self._in_row += not failure.object_only
        if failure.final or self._in_row >= self.failures:
            self.open(str(failure))

    def open(self, reason: str) -> None:
        """Let nothing through for the rest of the command, and say so once."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
        warn(f"{self.what} stops for the rest of this command: {reason}", because=reason)
