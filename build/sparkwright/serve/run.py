"""Start a server, warm it up, announce it, report its state, and stop it with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import EndpointError, ServerEndedError
from sparkwright.base.events import emit, task, warn
from sparkwright.base.machine import card_capability, free_port
from sparkwright.engine.client.endpoint import open_session
from sparkwright.engine.environment import Environment
from sparkwright.engine.flashinfer import jobs_variable
from sparkwright.engine.metrics.scrape import fetch_snapshot
from sparkwright.engine.observations import MetricsSnapshot
from sparkwright.engine.server.failures import diagnose, excerpt
from sparkwright.engine.server.host import sample_host
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.engine.slow_kernels import warn_of_fallbacks
from sparkwright.recipes.recipe import PORT, Recipe
from sparkwright.serve.caches import cache_key, cache_variables
from sparkwright.serve.engine import ServedEngine, state_between
from sparkwright.serve.supervise import WatchOptions, pulsing, watch
from sparkwright.serve.warmup import Limits, WarmUp, warm_up

if TYPE_CHECKING:
    import aiohttp

    from sparkwright.serve.peer import Peer


_OFFLINE = {"HF_HUB_OFFLINE": "1"}
_POLL_S = 0.25
# No parser of reasoning, or one whose template knows no switch named enable_thinking.
_ALWAYS_TEXT = {"", "mistral", "openai_gptoss"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class ServeOptions:
    """The user's choices of a server.

    Attributes:
        port: port to listen at; 0 chooses a free one.
        key_file: the file of the key, if it is in one.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    api_key: str = field(default="", repr=False)
    key_file: Path | None = None
    warm_up: bool = True
    offline: bool = False
    interval_s: float = 10.0
    boot_s: float | None = None


@dataclass(frozen=True)
class Serving:
    """A recipe to serve, with its environment and the user's choices.

    Attributes:
        folder: folder for logs and evidence.
        caches: the folder of all servers' caches.
        peer: the machine of its worker; `None` where it is served by this one alone.
    """

    recipe: Recipe
    environment: Environment
    options: ServeOptions
    folder: Path
    caches: Path
    peer: Peer | None = None


def server_variables(
    recipe: Recipe, options: ServeOptions, caches: Path, environment: Environment | None = None
) -> dict[str, str]:
    """Return the variables of the server on top of the recipe's and this process's, but for the key."""
    taken = {**os.environ, **recipe.environment}
    installed = environment.server_variables(recipe) if environment else {}
    found = {**installed, **jobs_variable(recipe, taken)}
    offline = _OFFLINE if options.offline else {}
    return {**cache_variables(caches, taken), **found, **offline}


def make_server(serving: Serving) -> ServerProcess:
    """Return the server, which starts when its block of ``async with`` begins.

    Raises:
        IncompatibleOptionsError: the recipe's options are known not to work together.
        ServerError: the interpreter has no vLLM.
    """
    recipe, environment, options = serving.recipe, serving.environment, serving.options
    kept = serving.caches / cache_key(environment.identity, recipe, card_capability())
    kept.mkdir(parents=True, exist_ok=True)
    os.utime(kept)  # so that what is pruned for its age is not in use
    return start_server(
        recipe,
        folder=serving.folder,
        python=environment.python,
        environment=server_variables(recipe, options, kept, environment),
        host=options.host,
        port=options.port,
        api_key=options.api_key,
        boot_s=options.boot_s,
    )


async def serve(serving: Serving, watching: WatchOptions | None = None) -> None:
    """Serve until a signal or an error ends it; afterwards none of the server's processes runs.

    The first SIGINT, SIGTERM or SIGHUP asks the server to end and waits for it; another one kills it at once.

    Raises:
        ServerFailedError: it did not start.
        ServerError: its port is in use, or the warm-up failed.
        ServerEndedError: it ended by itself; with *watching*, also where it is wedged.
    """
    began = time.monotonic()
    options = serving.options
    # Before the server: the worker of two machines and the ready line have to know it.
    serving = replace(serving, options=replace(options, port=options.port or free_port(options.host)))
    server = make_server(serving)
    with _stopped_by_signals() as asked:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with pulsing("starting"):
                    session = await stack.enter_async_context(_ready(server, serving))
                work = [_report(server, session, serving.options)]
                if watching is not None:
                    work.append(watch(ServedEngine(server, session), watching))
                await _until_first(work)
        except asyncio.CancelledError:
            if not asked:
                raise
    emit("serve.stopped", signal=asked[0], seconds=round(time.monotonic() - began, 1), orphans=server.orphans)


async def _until_first(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run *work* together until the first of it ends, with its error; the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[list[str]]:
    """Cancel this task at each signal that ends programs; yield the names of those that came.

    A cancelled block of ``async with`` ends its server; cancelled again meanwhile, it kills it.
    """
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None  # noqa: S101 - called by a coroutine
    asked: list[str] = []

    def stop(number: signal.Signals) -> None:
        asked.append(number.name)
        emit("serve.stopping", signal=number.name, at_once=len(asked) > 1)
        this.cancel()

    # nohup has SIGHUP ignored, and it stays so.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, stop, number)
    try:
        yield asked
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _ready(server: ServerProcess, serving: Serving) -> AsyncIterator[aiohttp.ClientSession]:
    """Start *server*, warm it up, announce it and yield a session to it; it ends with the block."""
    recipe, environment, options = serving.recipe, serving.environment, serving.options
    emit(
        "serve.starting", recipe=recipe.name, title=recipe.title,
        vllm=environment.described, log=str(server.log), python=str(environment.python),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        with task("start the engine"):
            await stack.enter_async_context(_started(server, serving))
        warn_of_fallbacks(server.facts)
        session = await stack.enter_async_context(open_session(server.endpoint))
        warmed = await _warmed(server, session, recipe) if options.warm_up else None
        emit(
            "serve.ready",
            url=f"{server.url}/v1",
            model=server.model,
            thinks=recipe.flags.get("reasoning-parser", "") not in _ALWAYS_TEXT,
            boot_s=round(server.facts.seconds, 1),
            warm_up_s=round(warmed.seconds, 1) if warmed else None,
            warm_up_requests=warmed.requests if warmed else None,
            slowest_first_token_s=round(warmed.slowest_s, 2) if warmed else None,
            log=str(server.log),
        )
        yield session


def _started(server: ServerProcess, serving: Serving) -> AbstractAsyncContextManager[object]:
    """Return the block in which *server* runs, with its worker where two machines serve."""
    if serving.peer is None:
        return server
    from sparkwright.serve.peer_worker import with_worker

    return with_worker(server, serving.peer, serving.recipe, serving.environment, serving.caches)


async def _warmed(server: ServerProcess, session: aiohttp.ClientSession, recipe: Recipe) -> WarmUp:
    """Warm the server up; an engine that ends meanwhile is reported as such.

    Raises:
        ServerError: a request failed.
        ServerEndedError: the server ended by itself.
    """
    limits = Limits.of(recipe, server.facts)
    warming = asyncio.create_task(warm_up(session, server.endpoint, limits, server.launch.deadlines))
    try:
        while not warming.done():
            await asyncio.wait({warming}, timeout=_POLL_S)
            if server.died is not None:
                raise await _ended(server)
        return warming.result()
    finally:
        warming.cancel()
        await asyncio.wait({warming})


async def _report(server: ServerProcess, session: aiohttp.ClientSession, options: ServeOptions) -> None:
    """Emit the server's state regularly, for as long as it runs.

    Raises:
        ServerEndedError: it ended by itself.
    """
    before: MetricsSnapshot | None = None
    due = time.monotonic()
    while server.died is None:
        if time.monotonic() >= due:
            due = time.monotonic() + options.interval_s
            before = await _look(server, session, before)
        await asyncio.sleep(_POLL_S)
    raise await _ended(server)


async def _look(
    server: ServerProcess, session: aiohttp.ClientSession, before: MetricsSnapshot | None
) -> MetricsSnapshot | None:
    """Emit the state since *before* and return the counters; those before it, if they cannot be read."""
    try:
        after = await fetch_snapshot(session, server.endpoint)
    except EndpointError as error:
        if server.died is None:
            warn(f"the server's counters cannot be read: {error.because}")
        return before
    emit("serve.status", **state_between(before or after, after, await sample_host()))
    return after


async def _ended(server: ServerProcess) -> ServerEndedError:
    """Return the error of a server that ended by itself, with evidence kept."""
    evidence = await server.keep_evidence("it ended by itself")
    log = server.log.read_text(encoding="utf-8", errors="replace")
    cause = diagnose(log, server.died)
    return ServerEndedError(
        f"the server at {server.url} ended by itself with status {server.died} ({cause.name})",
        because=f"{cause.because}; its log says:\n{excerpt(log)}",
        next_step=f"{cause.next_step}; see {evidence} and {server.log}",
    )
