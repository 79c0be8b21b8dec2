"""One writer of a target at a time: a lease, which is a small file at the target.

A writer holds it while it moves a pointer, or removes what nothing names, and writes it again while it works.
Others take it over once they saw it unchanged for `LASTS_S` by their own clock, so that one that was killed
holds them up for that time, whatever the clocks of machines say. One that was stopped for as long writes no
more: `Lease.require` and the conditional write of every pointer see to that.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from sparkwright.base.errors import LostRaceError
from sparkwright.base.events import emit
from sparkwright.publish.target import Target

PATH = "lease.txt"
LASTS_S = 60.0
_POLL_S = 0.2


def clock() -> float:
    """Return the seconds since boot, suspended time included; unlike the time of day, nobody sets them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Lease:
    """The lease of *target*, held for the length of a ``with`` block.

    Attributes:
        patience_s: longest wait for others, in seconds.
    """

    target: Target
    patience_s: float
    _holder: str = field(default_factory=lambda: f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
    _tag: str | None = None
    _since: float = 0.0

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            LostRaceError: other writers held it for longer than the patience.
        """
        begun, seen, told = clock(), clock(), False
        while True:
            stored = self.target.read(PATH)
            holder, tag = (stored.data.decode(errors="replace"), stored.tag) if stored else ("", None)
            if tag != self._tag:
                self._tag, seen = tag, clock()
            if not holder or clock() - seen >= LASTS_S:
                with contextlib.suppress(LostRaceError):
                    self._write(self._holder)
                    return self
            if clock() - begun >= self.patience_s:
                raise LostRaceError(
                    f"{self.target.url(PATH)} is held by another writer",
                    because=f"{holder or 'another one'} writes there",
                    next_step=f"run the same command again; one that was killed holds it for {LASTS_S:.0f} s",
                )
            if not told:
                emit("lock.waiting", what=f"the lease of {holder}", path=self.target.url(PATH))
            told = True
            time.sleep(_POLL_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back, if it is still this writer's."""
        del kind, error, trace
        with contextlib.suppress(LostRaceError):
            self._write("")

    def require(self) -> None:
        """Make sure that the lease lasts: half of its time is left after that.

        Raises:
            LostRaceError: this writer was stopped for so long that another one has it.
        """
        if clock() - self._since > LASTS_S / 2:
            self._write(self._holder)

    def _write(self, holder: str) -> None:
        since = clock()
        self._tag = self.target.replace(PATH, holder.encode(), expected=self._tag)
        self._since = since
