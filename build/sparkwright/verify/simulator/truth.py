"""What really happened: a line about each request, to hold a client's figures against."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Witness:
    """One request. Moments are those of `time.perf_counter_ns`, which processes of one machine share.

    Attributes:
        id: the request's.
        number: from 1, in the order of arrival.
        head: how its prompt begins.
        category: that the simulator took it for.
        received_ns: when its last byte had come to the socket, however busy the simulator was then.
        accepted_ns: when the simulator took it up.
        first_token_written_ns: just before its first token's bytes were given to the kernel; 0 if never.
        last_token_written_ns: the same of its last.
        tokens: generated tokens that were written.
        chunks: events with tokens that were written.
        prompt_tokens: of its prompt.
        cached_tokens: of those, found in the cache.
        drafts: steps with drafted tokens.
        accepted: drafted tokens that were accepted.
        finish: the finish reason, or empty.
        fault: the fault that befell it, or empty.
    """

    id: str
    number: int
    head: str
    category: str
    received_ns: int
    accepted_ns: int
    first_token_written_ns: int = 0
    last_token_written_ns: int = 0
    tokens: int = 0
    chunks: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    finish: str = ""
    fault: str = ""


class RequestTruth:
    """Writes witnesses to a file; to none if there is no *path*."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", encoding="utf-8") if path else None

    def tell(self, witness: Witness) -> None:
        """Write one line, at once."""
        if self._file and not self._file.closed:
            self._file.write(json.dumps(asdict(witness), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Write no more."""
        if self._file:
            self._file.close()
