"""One writer of a target at a time: a lease, which is a small file at the target.

A writer holds it while it moves a pointer, or removes what nothing names. It ends by itself, so one that was
killed holds up the others for a short time. One that was stopped for so long that its lease may have ended
writes no more: `Lease.require` and the conditional write of every pointer see to that.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import LostRaceError, PublishError
from sparkwright.base.events import emit
from sparkwright.publish.target import Target

PATH = "lease.json"
LASTS_S = 120.0
_POLL_S = 0.2


class LeaseRecord(Model, frozen=True):
    """The file.

    Attributes:
        holder: host, process and a random name of who has it; empty if nobody does.
        until: when it ends, in seconds since 1970.
    """

    holder: str = ""
    until: float = 0.0


@dataclass
class Lease:
    """The lease of *target*, held for the length of a ``with`` block.

    Attributes:
        patience_s: longest wait for others, in seconds.
    """

    target: Target
    patience_s: float
    _holder: str = field(default_factory=lambda: f"{_host()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
    _tag: str | None = None
    _since: float = 0.0

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            LostRaceError: another writer held it for longer than the patience.
            PublishError: the file is damaged.
        """
        end, told = time.monotonic() + self.patience_s, False
        while True:
            record, self._tag = self._read()
            if not _is_held(record):
                with contextlib.suppress(LostRaceError):
                    self._write(self._holder)
                    return self
            if time.monotonic() >= end:
                raise LostRaceError(
                    f"{self.target.url(PATH)} is held by another writer",
                    because=f"{record.holder or 'another one'} writes there",
                    next_step="run the same command again; one that was killed has it for another "
                    f"{record.until - time.time():.0f} s: if that is far more than {LASTS_S:.0f}, a clock is "
                    "wrong, and you may remove the file if nothing is being published there",
                )
            if not told:
                emit("lock.waiting", what=f"the lease of {record.holder}", path=self.target.url(PATH))
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
            LostRaceError: this writer was stopped for so long that another one may have it.
        """
        # The clock of the day counts while a machine sleeps; the monotonic one does not.
        if abs(time.time() - self._since) > LASTS_S / 2:
            self._write(self._holder)

    def _read(self) -> tuple[LeaseRecord, str | None]:
        stored = self.target.read(PATH)
        if stored is None:
            return LeaseRecord(), None
        try:
            return decode_json(stored.data, LeaseRecord), stored.tag
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PublishError(
                f"{self.target.url(PATH)} cannot be read", because=str(error),
                next_step="if nothing is being published there, remove that file",
            ) from error  # fmt: skip

    def _write(self, holder: str) -> None:
        self._since = time.time()
        record = LeaseRecord(holder=holder, until=self._since + LASTS_S if holder else 0.0)
        self._tag = self.target.replace(PATH, to_json(to_builtins(record)), expected=self._tag)


def _host() -> str:
    """Return a name of this machine; a container with numbers of processes of its own has another one."""
    try:
        return f"{platform.node()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node()


def _is_held(record: LeaseRecord) -> bool:
    """Tell if a writer has the lease: its time has not ended, nor its process where that can be seen."""
    host, _, rest = record.holder.partition(":")
    number = rest.partition(":")[0]
    if host == _host() and number.isdecimal() and int(number) != os.getpid():
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
    return bool(record.holder) and record.until > time.time()
