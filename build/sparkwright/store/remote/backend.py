"""The protocol that the remote tier speaks with a server, and its failures."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RemoteFailure(Exception):  # noqa: N818 - never reaches a user as an error
    """A request to the remote tier failed; the message names no credentials.

    Attributes:
        final: true where no further request of this kind can succeed.
        object_only: true where it concerns this object alone, such as one that is too large.
    """

    def __init__(self, message: str, *, final: bool = False, object_only: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.object_only = object_only


@dataclass
class TransferProgress:
    """The progress of one request, seen by another thread.

    Attributes:
        count: bytes that came so far.
        cancelled: set when the result is not wanted any more.
    """

    count: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def advance(self, amount: int) -> None:
        """Count *amount* more bytes.

        Raises:
            RemoteFailure: the transfer was given up.
        """
        self.count += amount
        if self.cancelled.is_set():
            raise RemoteFailure("the transfer was given up")


class RemoteBackend(Protocol):
    """A server of objects by place, such as ``cas/<sha256>``. Every method may be called from any thread."""

    def get(self, place: str, sink: Callable[[bytes], object], transfer: TransferProgress) -> bool:
        """Hand the object at *place* to *sink* piece by piece; return false where there is none.

        Raises:
            RemoteFailure: the server cannot be asked, or did not send the whole object.
        """

    def has(self, place: str) -> bool:
        """Tell if there is an object at *place*; raise as `get`."""

    def put(self, place: str, content: bytes | Path, transfer: TransferProgress) -> None:
        """Write *content*, or the file of that path, to *place*; raise as `get`."""
