"""Examine a remote tier: can it be reached, read and written, and does it give back what it was given."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sparkwright.base.digests import sha256_bytes
from sparkwright.store.remote.backend import RemoteFailure, TransferProgress
from sparkwright.store.remote.outbox import Outbox
from sparkwright.store.remote.watch import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.store.paths import Store
    from sparkwright.store.remote.tier import RemoteTier

_OBJECT = b"sparkwright store status\n"


@dataclass(frozen=True)
class RemoteHealth:
    """The state of a remote tier.

    Attributes:
        remote: its address, without credentials.
        read: ``yes``, or why it cannot be read.
        write: ``yes``, ``off`` by the settings, or why it cannot be written.
        milliseconds: time of one request.
        trust: ``signed`` or ``unsigned`` records count.
        writers: names and ids of the writers that are believed.
        waiting: files and records that are still to be written there.
    """

    remote: str
    read: str
    write: str
    milliseconds: float
    trust: str
    writers: list[str]
    waiting: int

    @property
    def fault(self) -> str:
        """Return why it cannot be used as the settings say; empty if it can."""
        return next((state for state in (self.read, self.write) if state not in {"yes", "off"}), "")

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON-ready values."""
        return asdict(self)


def examine(remote: RemoteTier, store: Store) -> RemoteHealth:
    """Return the state of *remote*; a small object is looked for, written where that is allowed, and read."""
    settings = remote.settings
    place = f"cas/{sha256_bytes(_OBJECT)}"
    began = time.monotonic()
    there, read = _tried(remote, lambda transfer: _held(remote, place, transfer))
    milliseconds = round(1000 * (time.monotonic() - began), 1)
    write = "off"
    if settings.write and read == "yes":
        _, write = _tried(remote, lambda transfer: remote.backend.put(place, _OBJECT, transfer))
        if write == "yes":
            there, read = _tried(remote, lambda transfer: _held(remote, place, transfer))
            if read == "yes" and there != _OBJECT:
                read = "it does not give back what was written"
    elif settings.write:
        write = read
    names = {text: name for name, text in settings.writers.items()}
    return RemoteHealth(
        remote=settings.url,
        read=read,
        write=write,
        milliseconds=milliseconds,
        trust="signed" if settings.signed else "unsigned",
        writers=[
            f"{names.get(key.text, 'this machine')} {key.id}"
            for key in (remote.believed.writers or {}).values()
        ],
        waiting=sum(1 for _ in Outbox.of(store.home, settings.url).items()),
    )


def _held(remote: RemoteTier, place: str, transfer: TransferProgress) -> bytes | None:
    """Return the first bytes of what is at *place*, or `None`."""
    pieces: list[bytes] = []
    found = remote.backend.get(place, lambda data: pieces.append(data[: len(_OBJECT) + 1]), transfer)
    return b"".join(pieces)[: len(_OBJECT) + 1] if found else None


def _tried(remote: RemoteTier, call: Callable[[TransferProgress], bytes | None]) -> tuple[bytes | None, str]:
    """Return the result of *call* and ``yes``, or the cause of its failure."""
    try:
        return watched(call, remote.settings.limits), "yes"
    except RemoteFailure as failure:
        return None, str(failure)
