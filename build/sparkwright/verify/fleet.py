"""Where servers come from: an address, a recipe that starts vLLM, or the simulator."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.client import open_session
from sparkwright.verify.metrics import fetch_snapshot
from sparkwright.verify.model import BootFacts
from sparkwright.verify.server import error_lines, facts_from_metrics, read_boot_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from sparkwright.verify.client import Endpoint, EndpointFacts
    from sparkwright.verify.measure import MeasuredServer


@dataclass(frozen=True)
class Starters:
    """A fleet (see `suite.Fleet`): one way to start each server.

    Attributes:
        by_arm: given the number of the start, starts that server.
    """

    by_arm: Mapping[str, Callable[[int], contextlib.AbstractAsyncContextManager[MeasuredServer]]]

    @property
    def arms(self) -> frozenset[str]:
        """The servers that it knows."""
        return frozenset(self.by_arm)

    def start(self, arm: str, boot: int) -> contextlib.AbstractAsyncContextManager[MeasuredServer]:
        """One start of a server."""
        return self.by_arm[arm](boot)


@dataclass(frozen=True)
class StandingServer:
    """A server that others started, and that goes on when we are done (see `measure.Server`).

    Attributes:
        endpoint: where it answers.
        facts: what its counters say of it, and its log if that can be read.
        log: its log, if that can be read.
    """

    endpoint: Endpoint
    facts: BootFacts
    log: Path | None = None

    restartable = False
    pid: int | None = None
    died: int | None = None

    @property
    def log_seen(self) -> bool:
        """Whether its log can be read."""
        return self.log is not None

    @property
    def mark(self) -> int:
        """Where its log ends now."""
        return self.log.stat().st_size if self.log is not None and self.log.exists() else 0

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Lines of its log after *mark* that tell of an error."""
        if self.log is None or not self.log.exists():
            return ()
        with self.log.open("rb") as stream:
            stream.seek(mark)
            return error_lines(stream.read().decode(errors="replace"))


@contextlib.asynccontextmanager
async def standing(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None = None
) -> AsyncIterator[StandingServer]:
    """The server at *endpoint*, which is left as it is.

    Args:
        endpoint: where it answers.
        known: what it said when it was checked.
        log: its log, if that can be read.
    """
    read = await asyncio.to_thread(_read_log, log)
    async with open_session(endpoint) as session:
        snapshot = await fetch_snapshot(session, endpoint)
    facts = facts_from_metrics(snapshot, read)
    yield StandingServer(endpoint, _with_known(facts, known), log)


def _read_log(log: Path | None) -> BootFacts:
    return BootFacts() if log is None else read_boot_log(log.read_text(encoding="utf-8", errors="replace"))


def _with_known(facts: BootFacts, known: EndpointFacts) -> BootFacts:
    import msgspec

    return msgspec.structs.replace(
        facts,
        version=facts.version or known.version,
        max_model_len=facts.max_model_len if facts.max_model_len > 0 else known.max_model_len,
    )
