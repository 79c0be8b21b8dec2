"""Sources of servers: an address, a recipe that starts vLLM, or the simulator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkwright.engine.client.endpoint import Endpoint, EndpointFacts, open_session
from sparkwright.engine.metrics.scrape import fetch_snapshot
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server.bootlog import error_lines, facts_from_metrics, read_boot_log


class MeasuredServer(Protocol):
    """A running server."""

    @property
    def endpoint(self) -> Endpoint:
        """Its address."""
        ...

    @property
    def facts(self) -> BootFacts:
        """Facts that it reported when it started."""
        ...

    @property
    def restartable(self) -> bool:
        """True if it can be started again, as another process."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process, if it runs on this machine."""
        ...

    @property
    def died(self) -> int | None:
        """Its exit status, once it has ended; `None` before, and if unknown."""
        ...

    @property
    def mark(self) -> int:
        """A place in its log, for `errors_since`."""
        ...

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Return the error lines of its log after *mark*."""
        ...


@dataclass(frozen=True)
class Arms:
    """The servers of a run, with one start function per arm.

    Attributes:
        by_name: given the number of the start, starts that server.
    """

    by_name: Mapping[str, Callable[[int], contextlib.AbstractAsyncContextManager[MeasuredServer]]]

    @property
    def names(self) -> frozenset[str]:
        """Names of the servers that can be started."""
        return frozenset(self.by_name)

    def start(self, arm: str, boot: int) -> contextlib.AbstractAsyncContextManager[MeasuredServer]:
        """Return one start of a server, ended with the block.

        Raises:
            ServerError: it does not come up, or ends by itself while it is in use.
            EndpointError: what answers cannot be verified.
        """
        return self.by_name[arm](boot)


@dataclass(frozen=True)
class StandingServer:
    """A server that was started elsewhere and is left running (see `measure.MeasuredServer`).

    Attributes:
        facts: from its counters, and from its log if that can be read.
        log: its log, if that can be read.
    """

    endpoint: Endpoint
    facts: BootFacts
    log: Path | None = None

    restartable = False
    pid: int | None = None
    died: int | None = None

    @property
    def mark(self) -> int:
        """Length of its log now, for `errors_since`."""
        return self.log.stat().st_size if self.log is not None and self.log.exists() else 0

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Return the error lines of its log after *mark*."""
        if self.log is None or not self.log.exists():
            return ()
        with self.log.open("rb") as stream:
            stream.seek(mark)
            return error_lines(stream.read().decode(errors="replace"))


@contextlib.asynccontextmanager
async def standing(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None = None
) -> AsyncIterator[StandingServer]:
    """Yield the server at *endpoint*, which is left running.

    Args:
        endpoint: its address.
        known: facts from the preflight.
        log: its log, if that can be read.
    """
    read = await asyncio.to_thread(read_log, log)
    async with open_session(endpoint) as session:
        read = facts_from_metrics(await fetch_snapshot(session, endpoint), read)
    yield StandingServer(endpoint, _with_known(read, known), log)


def read_log(log: Path | None) -> BootFacts:
    """Return the facts in *log*; none without it."""
    return BootFacts() if log is None else read_boot_log(log.read_text(encoding="utf-8", errors="replace"))


def _with_known(facts: BootFacts, known: EndpointFacts) -> BootFacts:
    import msgspec

    return msgspec.structs.replace(
        facts,
        version=facts.version or known.version,
        max_model_len=facts.max_model_len if facts.max_model_len > 0 else known.max_model_len,
    )
