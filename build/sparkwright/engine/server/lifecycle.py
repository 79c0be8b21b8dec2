"""The lifecycle of a server: started, ready after its first response, watched, ended with all processes.

Ready means that a request was answered with tokens: ``/health`` returns 200 while an engine is dead
(vllm#39863), and a server that listens may still hang. Ended means that none of its processes runs: its
process group is killed, and also processes that left the group, which a variable in their environment marks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from sparkwright.base.errors import EndpointError, ServerError, SparkwrightError
from sparkwright.base.events import emit, warn
from sparkwright.base.process.session import Running, start
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, open_session, reachable, read_body
from sparkwright.engine.client.request import first_tokens
from sparkwright.engine.metrics.scrape import fetch_snapshot
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server.bootlog import BootStages, error_lines, facts_from_metrics, read_boot_log
from sparkwright.engine.server.compiling import FlashInferBuild
from sparkwright.engine.server.failures import (
    Cause,
    ServerFailedError,
    diagnose,
    excerpt,
    keep_evidence,
    tail,
)
from sparkwright.engine.server.processes import MARK, is_owned, marked, other_listener, runs, sweep

if TYPE_CHECKING:
    import aiohttp


BOOT_S = 1800.0
"""For a boot: on GB10 tens of gigabytes are read, graphs captured and kernels tuned.

It begins when the models are here, grows with their size, and each file that FlashInfer compiles starts it
again.
"""
_READ_BYTES_PER_S = 200e6  # by a slow disk
_POLL_S = 0.25
_METRICS_S = 10.0  # between two looks at the counters that evidence of a death would hold
_ANSWER_S = 5.0
_KEY_REFUSED = frozenset({401, 403})
_OWN_S = 30.0  # an interpreter starts no faster because its clock does
_CANARIES = 3  # kernels may be compiled at their first use, so that the first canary may be late
_DYING_S = 3.0
_LINES = 12
_FREE_PORT = "end it, or let a free port be chosen"
_GIVE_KEY = (
    "give one key: by --api-key-file, or by VLLM_API_KEY in this shell; no other key in the recipe's "
    "[environment]"
)


@dataclass(frozen=True)
class Launch:
    """The command and limits of a server, as `start_server` explains them.

    Attributes:
        folder: for ``server.log`` and evidence; its working folder.
        boot_s: limit to the first response, in the server's seconds, from the start or from the last file
            that FlashInfer's compilers left; by default `BOOT_S`, and more for large models.
        facts: known beforehand; its log may lack them.
        models: fetches the models before the start, and returns their bytes on the disk.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    host: str
    port: int
    model: str
    api_key: str
    speed: float
    deadlines: Deadlines
    boot_s: float | None
    end_s: float
    facts: BootFacts
    card: str = ""
    models: Callable[[], Awaitable[int]] | None = None


class ServerProcess:
    """A server that runs as long as the block of ``async with`` does.

    Attributes:
        launch: its command and limits.
        model: served model name.
        orphans: processes that outlived it, in its group or out of it, and were killed at its end.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.log = launch.folder / "server.log"
        self.facts = launch.facts
        self.model = launch.model
        self.orphans = 0
        self._marker = secrets.token_hex(8)
        self._running: Running | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._died: int | None = None
        self._ending = False
        self._kept: Path | None = None
        self._keeping = asyncio.Lock()
        self._metrics = ""
        self._boot_s = launch.boot_s or BOOT_S
        self._build = FlashInferBuild(launch.environment)

    # Properties ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the server's root, as this machine reaches it."""
        return reachable(self.launch.host, self.launch.port)

    @property
    def endpoint(self) -> Endpoint:
        """Return the endpoint for requests."""
        return Endpoint(self.url, self.model, self.launch.api_key, card=self.launch.card)

    @property
    def restartable(self) -> bool:
        """Tell that another start of it is another process."""
        return True

    @property
    def pid(self) -> int | None:
        """Return the first of its processes, for `sample_host`; `None` before it is started."""
        return None if self._running is None else self._running.pid

    @property
    def died(self) -> int | None:
        """Return its exit status if it ended by itself, negative for a signal; `None` while it runs."""
        if self._died is None and self._running is not None and not self._ending:
            ended = self._running.poll()
            self._died = None if ended is None else ended.status
        return self._died

    @property
    def mark(self) -> int:
        """Return the present end of the log."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Return the lines of the log that report an error, from *mark* on."""
        return error_lines(self._read_log(mark))

    def _read_log(self, since: int = 0) -> str:
        try:
            with self.log.open("rb") as stream:
                stream.seek(since)
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    # Lifecycle --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the server and wait for its first response.

        Raises:
            ServerFailedError: it did not start.
            ServerError: its port is in use.
            FetchError: a model cannot be fetched.
            ToolError: its program does not exist.
        """
        launch = self.launch
        launch.folder.mkdir(parents=True, exist_ok=True)
        if accepting := await self._listens():
            by = await asyncio.to_thread(other_listener, accepting, launch.port) or "something else"
            raise ServerError(
                f"no server can be started at {self.url} (port-in-use)",
                because=f"port {launch.port} is already in use by {by}, which would answer in its place",
                next_step=_FREE_PORT,
            )
        if launch.models is not None:
            stored = await launch.models()
            self._boot_s = launch.boot_s or BOOT_S + stored / _READ_BYTES_PER_S
        emit("server.started", url=self.url, log=str(self.log))
        environment = {**launch.environment, MARK: self._marker}
        self._running = start(launch.argv, cwd=launch.folder, env=environment, log=self.log)
        try:
            await self._boot()
        except BaseException:
            await self._end()
            raise
        emit("server.ready", url=self.url, model=self.model, seconds=round(self.facts.seconds, 3))
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server with all its processes; keep evidence if it had ended by itself."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        try:
            if self.died is not None:
                await self.keep_evidence("it ended by itself")
        finally:
            await self._end()

    async def keep_evidence(self, reason: str) -> Path:
        """Keep evidence of a server that died or stopped responding; once, in one folder."""
        async with self._keeping:  # the watch and the end of the block may both find it dead
            if self._kept is None:
                running = self._running
                self._kept = await asyncio.to_thread(
                    keep_evidence,
                    self.launch.folder,
                    reason,
                    status=self.died,
                    log=self._read_log(),
                    metrics=self._metrics,
                    argv=self.launch.argv,
                    seconds=0.0 if running is None else time.monotonic() - running.started,
                )
                emit("server.evidence", folder=str(self._kept), reason=reason)
            return self._kept

    async def _boot(self) -> None:
        async with open_session(self.endpoint) as session:
            await self._until_ready(session)
            took = self._age * self.launch.speed
            facts = _merged(read_boot_log(self._read_log()), self.launch.facts)
            with contextlib.suppress(SparkwrightError):  # the checks report what is missing
                facts = facts_from_metrics(await fetch_snapshot(session, self.endpoint), facts)
            await self._fetch_metrics(session)
        self.facts = msgspec.structs.replace(facts, seconds=took)

    @property
    def _age(self) -> float:
        assert self._running is not None  # noqa: S101 - it was started
        return time.monotonic() - self._running.started

    async def _until_ready(self, session: aiohttp.ClientSession) -> None:
        """Wait for the first correct response, and report the stages that the log tells of.

        Raises:
            ServerFailedError: it ended, or time is up.
        """
        launch, why = self.launch, "nothing listens at its port"
        end = self._within(self._boot_s)
        with BootStages(self.log) as stages:
            while self._age < end:
                stages.read()
                if self._build.look(self._age):
                    end = max(end, self._age + self._within(self._boot_s))
                if self.died is not None:
                    raise await self._failure("the server ended while it started")
                if accepting := await self._listens():
                    owns = partial(is_owned, self.pid, self._marker)
                    if other := await asyncio.to_thread(other_listener, accepting, launch.port, owns):
                        because = (
                            f"port {launch.port} was taken by {other} meanwhile, which answers in its place"
                        )
                        what = f"the server cannot listen at {self.url}"
                        raise await self._refused(what, Cause("port-in-use", because, _FREE_PORT))
                    # It listens, so that its engine is up: from here on a few canaries are enough.
                    end = min(end, self._age + self._within(_CANARIES * launch.deadlines.canary_s))
                    why = await self._first_answer(session, end)
                    if not why:
                        return
                await asyncio.sleep(max(_POLL_S / launch.speed, 0.02))
        # In the server's seconds, without the allowance for this machine's delays.
        waited = min(self._age * launch.speed, self._boot_s)
        raise await self._failure(f"the server gave no answer within {waited:.0f} s", why)

    def _within(self, seconds: float) -> float:
        """Return the real seconds to wait for *seconds* of the server's clock."""
        speed = self.launch.speed
        return seconds if speed == 1 else seconds / speed + _OWN_S

    async def _first_answer(self, session: aiohttp.ClientSession, end: float) -> str:
        """Send canaries until one succeeds, the server ends or is *end* seconds old; returns the failure."""
        why = "it accepts connections and does not answer"
        while self._age < end and self.died is None:
            attempt = asyncio.create_task(self._canary(session))
            while not attempt.done() and self._age < end and self.died is None:
                await asyncio.wait({attempt}, timeout=_POLL_S)
            if not attempt.done():
                attempt.cancel()
                await asyncio.wait({attempt})
                return why
            if not (why := attempt.result()):
                return ""
            await asyncio.sleep(_POLL_S)
        return why

    async def _canary(self, session: aiohttp.ClientSession) -> str:
        if not self.model:
            self.model = await self._served(session)
            if not self.model:
                return "it does not list the model that it serves"
        failure = await first_tokens(session, self.endpoint, self.launch.deadlines, self.launch.speed)
        if failure is not None and failure.status in _KEY_REFUSED:
            raise await self._key_refused(failure.status)
        return str(failure or "")

    async def _served(self, session: aiohttp.ClientSession) -> str:
        """Return the first model that the server lists, or empty."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        try:
            async with session.get(f"{self.url}/v1/models", timeout=timeout) as response:
                if response.status in _KEY_REFUSED:
                    raise await self._key_refused(response.status)
                return str(json.loads(await read_body(response))["data"][0]["id"])
        except (EndpointError, aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return ""

    async def _listens(self) -> str:
        """Return the address that accepts connections at its port; empty if none does."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection(self.launch.host, self.launch.port)
        except OSError:  # TimeoutError among them
            return ""
        address = str((writer.get_extra_info("peername") or [self.launch.host])[0])
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return address

    async def _failure(self, what: str, why: str = "") -> ServerFailedError:
        log, status = self._read_log(), self.died
        cause, shown = diagnose(log, status), excerpt(log)
        if status is None and cause.name == "unknown":
            next_step = "see the end of the log; allow more time if it was still starting"
            # It runs, so an error in the log did not end it: its last lines tell how far it came.
            cause, shown = Cause("boot-timeout", why, next_step), tail(log, lines=_LINES)
        evidence = await self.keep_evidence(f"{what}: {why}" if why else what)
        return ServerFailedError(what, cause, status, shown, evidence)

    async def _key_refused(self, status: int) -> ServerFailedError:
        sent = "the key of its requests is not the server's"
        because = sent if self.launch.api_key else "it asks for a key, and its requests have none"
        cause = Cause("key-refused", f"{because} (status {status})", _GIVE_KEY)
        return await self._refused("the server refuses the first request", cause)

    async def _refused(self, what: str, cause: Cause) -> ServerFailedError:
        """Return the error of a server that runs, where waiting changes nothing."""
        evidence = await self.keep_evidence(f"{what}: {cause.because}")
        return ServerFailedError(what, cause, None, tail(self._read_log(), lines=_LINES), evidence)

    async def _watch(self) -> None:
        """Fetch the counters regularly, and keep evidence as soon as the server ends by itself."""
        async with open_session(self.endpoint) as session:
            fetched = time.monotonic()
            while self.died is None:
                await asyncio.sleep(_POLL_S)
                if time.monotonic() - fetched > _METRICS_S:
                    await self._fetch_metrics(session)
                    fetched = time.monotonic()
        warn(f"the server at {self.url} ended by itself with status {self._died}")
        await self.keep_evidence("it ended by itself")

    async def _fetch_metrics(self, session: aiohttp.ClientSession) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        with contextlib.suppress(SparkwrightError, aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
            async with session.get(f"{self.url}/metrics", timeout=timeout) as response:
                text = (await read_body(response)).decode()
                self._metrics = text if response.ok else self._metrics

    async def _end(self) -> None:
        """Send SIGTERM, kill the server if it has not ended in time, and kill what left its group."""
        running = self._running
        if running is None:
            return
        _ = self.died  # if it ended by itself, that is how it ended
        self._ending = True
        try:
            if running.poll() is None:
                running.terminate()
                await _while(lambda: runs(running.pid), self.launch.end_s)
                if not runs(running.pid):
                    # Some are on their way out yet: none that is still there after a while is.
                    await _while(lambda: bool(marked(self._marker, running.pid)), _DYING_S)
                    self.orphans = len(marked(self._marker, running.pid))
        finally:  # also when interrupted
            running.kill()
            self.orphans = max(self.orphans, sweep(self._marker, _DYING_S))
        if self.orphans:
            warn(f"{self.orphans} processes outlived the server and were killed")
        emit("server.ended", url=self.url, orphans=self.orphans)


def _merged(read: BootFacts, known: BootFacts) -> BootFacts:
    """Return the facts of the log, completed by those *known* beforehand."""
    unsaid = BootFacts()
    fields = {
        name: getattr(known, name)
        for name in BootFacts.__struct_fields__
        if getattr(read, name) == getattr(unsaid, name)
    }
    return msgspec.structs.replace(read, **fields)


async def _while(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until *condition* is false, or time is up."""
    until = time.monotonic() + seconds
    while condition() and time.monotonic() < until:  # noqa: ASYNC110 - processes' ends raise no event
        await asyncio.sleep(0.05)
