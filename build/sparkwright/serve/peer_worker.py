"""The worker on the second of two machines, beside the server on this one: its copies, start and end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.errors import ConfigError, ServerEndedError
from sparkwright.base.events import emit
from sparkwright.base.process.run import Completed
from sparkwright.base.process.session import Dialogue
from sparkwright.engine.environment import Environment
from sparkwright.engine.models import cache_folder
from sparkwright.engine.runtime import vllm_command
from sparkwright.engine.server.bootlog import BootStages
from sparkwright.engine.server.failures import diagnose, excerpt
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.recipes.recipe import Recipe, serve_arguments
from sparkwright.serve.caches import caches_of
from sparkwright.serve.peer import Peer, refusal
from sparkwright.serve.peer_copy import copy, list_model, list_tree
from sparkwright.serve.preflight.checkpoint import find_folder
from sparkwright.serve.settings import KEY_VARIABLE
from sparkwright.store.paths import Store

if TYPE_CHECKING:
    from sparkwright.serve.plan import Plan
    from sparkwright.serve.run import ServeOptions

_PASSED = ("GLOO_", "NCCL_", "TORCH_", "VLLM_")  # variables of this shell that count on both machines
_BEAT_S, _POLL_S, _PATIENCE_S = 5.0, 0.25, 40.0
_OF_SSH = 255


@dataclass(frozen=True)
class PeerPlaces:
    """The folders of this machine that have copies on the other one.

    Attributes:
        environment: the server's.
        caches: of what is compiled.
    """

    peer: Peer
    environment: Path
    caches: Path

    @classmethod
    def of(cls, peer: Peer, python: Path, caches: Path) -> PeerPlaces:
        """Return the places of the environment of the interpreter *python*.

        Raises:
            ConfigError: it is of no virtual environment, which alone can be copied.
        """
        folder = python.parents[1]
        if python.exists() and not (folder / "pyvenv.cfg").is_file():
            raise ConfigError(
                f"the environment of {python} cannot be copied to {peer.host.shown}",
                because=f"{folder} is no virtual environment",
                next_step="leave out --python, or name the interpreter of an environment by venv or uv",
            )
        return cls(peer, folder, caches)

    @property
    def there(self) -> dict[Path, str]:
        """The paths of the copies."""
        home = self.peer.facts.home
        return {
            self.environment: f"{home}/environments/{self.environment.name}",
            self.caches: f"{home}/caches",
        }

    def moved(self, text: str) -> str:
        """Return *text* with the paths of the other machine."""
        for own, other in self.there.items():
            text = text.replace(str(own), other)
        return text


@dataclass(frozen=True)
class WorkerOrder:
    """The worker's program and variables, and the folders that it finds."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    folders: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The command for a shell there."""
        assigned = " ".join(
            f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())
        )
        return f"env {assigned} \\\n  {shlex.join(self.argv)}"


def order_worker(
    places: PeerPlaces, recipe: Recipe, variables: Mapping[str, str], python: Path, *, host: str, port: int
) -> WorkerOrder:
    """Return the worker of a server of *recipe*."""
    peer, own = places.peer, places.peer.worker(recipe)
    for name in ("model", "drafter"):
        if (folder := _folder(getattr(recipe, name))) is not None:
            own = msgspec.structs.replace(own, **{name: _place_of(peer, folder)})
    left = {"PATH", KEY_VARIABLE, *peer.here.variables}
    passed = {name: places.moved(value) for name, value in variables.items() if name not in left}
    hub = {"HF_HUB_CACHE": peer.facts.hub, "HF_HUB_OFFLINE": "1"}
    argv = (*vllm_command(Path(places.moved(str(python)))), *serve_arguments(own, host=host, port=port))
    run = f"{peer.facts.home}/run"
    caches = tuple(value for value in passed.values() if value.startswith(places.there[places.caches]))
    return WorkerOrder(argv, {**passed, **peer.there.variables, **hub}, (run, *caches))


def plan_worker(peer: Peer, recipe: Recipe, plan: Plan, store: Store, options: ServeOptions) -> WorkerOrder:
    """Return the worker of a server that is planned."""
    python = Path(shlex.split(plan.command)[0])
    if not python.is_absolute():  # it is known once the wheel is made
        python = store.environments / "KEY" / "bin" / "python"
    variables = {one.name: one.value for one in plan.variables if one.value != "***"}
    places = PeerPlaces.of(peer, python, caches_of(store))
    return order_worker(places, recipe, variables, python, host=options.host, port=options.port)


def _folder(model: str) -> Path | None:
    """Return the folder of a model that is named by its path."""
    place = Path(model).expanduser()
    return place.absolute() if model and place.is_dir() else None


def _place_of(peer: Peer, folder: Path) -> str:
    return f"{peer.facts.home}/models/{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}-{folder.name}"


@contextlib.asynccontextmanager
async def with_worker(
    server: ServerProcess, peer: Peer, recipe: Recipe, environment: Environment, caches: Path
) -> AsyncIterator[None]:
    """Start *server* with its worker on *peer*; both end with the block, and the block where the worker ends.

    Raises:
        ServerEndedError: the worker ended by itself, or the connection to it was lost.
        ClusterError: the worker's files could not be copied.
        Exception: what the start of *server* raises.
    """
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - called by a coroutine
    worker = _Worker(
        server, PeerPlaces.of(peer, environment.python, caches), recipe, environment, this.cancel
    )
    ending: asyncio.Task[None] | None = None
    try:
        async with server:
            try:
                yield
            finally:
                ending = worker.end()
    except asyncio.CancelledError:
        if worker.lost is None:
            raise
        this.uncancel()
        raise worker.lost from None
    finally:
        if this.cancelling() > 1:
            worker.kill()
        try:
            await (worker.end() if ending is None else ending)
        except asyncio.CancelledError:
            worker.kill()
            raise


class _Worker:
    """The worker beside *server*, behind a connection of ssh, with its log on this machine.

    Attributes:
        lost: the reason why it ended; `None` while it runs, or was asked to end.
    """

    def __init__(
        self,
        server: ServerProcess,
        places: PeerPlaces,
        recipe: Recipe,
        environment: Environment,
        on_loss: Callable[[], object],
    ) -> None:
        """Have *server* bring and start the worker once its own models are here."""
        self.lost: ServerEndedError | None = None
        self._launch, self._places, self._peer = server.launch, places, places.peer
        self._recipe, self._environment, self._on_loss = recipe, environment, on_loss
        self._log = server.launch.folder / "worker.log"
        self._there: Dialogue | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closing = threading.Lock()
        server.launch = replace(server.launch, models=self._bring)

    async def _bring(self) -> int:
        """Bring what the worker needs, fetch the models, bring these too, and start it."""
        launch, places = self._launch, self._places
        await _copied(self._peer, "the environment", places.environment, places.there[places.environment])
        if not self._peer.facts.python:  # at its own path, as not every Python works at another one
            base = self._peer.python.parents[1]
            await _copied(self._peer, "Python", base, str(base))
        stored = await launch.models() if launch.models is not None else 0
        recipe = self._recipe
        models = {
            recipe.model: recipe.flags.get("revision"),
            recipe.drafter: recipe.speculative.get("revision"),
        }
        for name, revision in models.items():
            await _copied_model(self._peer, name, str(revision or ""), recipe, launch.environment)
        variables = {
            name: value
            for name, value in launch.environment.items()
            if os.environ.get(name) != value or name.startswith(_PASSED)
        }
        order = order_worker(
            places, self._recipe, variables, self._environment.python, host=launch.host, port=launch.port
        )
        self._start(order)
        return stored

    def _start(self, order: WorkerOrder) -> None:
        with self._log.open("wb") as log:
            there = Dialogue(self._peer.argv("run"), patience_s=_PATIENCE_S, output=log)
        there.send(json.dumps({**order.__dict__, "mark": secrets.token_hex(8)}).encode() + b"\n")
        emit("serve.worker", host=self._peer.host.shown, log=str(self._log))
        self._there = there
        self._watching = asyncio.create_task(self._watch(there))

    async def _watch(self, there: Dialogue) -> None:
        """Report the stages of its start, and its end; a byte now and then keeps it running."""
        beat = 0.0
        with BootStages(self._log, where=f"{self._peer.host.shown}: ") as stages:
            while there.poll() is None:
                stages.read()
                if time.monotonic() - beat > _BEAT_S:
                    beat = time.monotonic()
                    there.send(b"\n")
                await asyncio.sleep(_POLL_S)
        self.lost = self._reason(await asyncio.to_thread(self._close, there))
        self._on_loss()

    def _reason(self, ended: Completed) -> ServerEndedError:
        name = self._peer.host.shown
        if ended.status == _OF_SSH:
            return ServerEndedError(
                f"the connection to the worker on {name} was lost",
                because=refusal(self._peer.host, ended.status, ended.stderr).because,
                next_step=f"see that {name} runs and is connected; its worker ends without the connection",
            )
        text = self._log.read_text(encoding="utf-8", errors="replace")
        cause = diagnose(text, ended.status)
        return ServerEndedError(
            f"the worker on {name} ended by itself with status {ended.status} ({cause.name})",
            because=f"{cause.because}; its log says:\n{excerpt(text)}",
            next_step=f"{cause.next_step}; see {self._log}",
        )

    def end(self) -> asyncio.Task[None]:
        """Ask it to end, which counts as no loss; return the task that waits for that."""
        if self._watching is not None:
            self._watching.cancel()

        def close() -> None:
            if self._there is not None:
                self._close(self._there)

        return asyncio.create_task(asyncio.to_thread(close))

    def kill(self) -> None:
        """End the connection at once, and the worker with it."""
        if self._there is not None:
            self._there.kill()

    def _close(self, there: Dialogue) -> Completed:
        with self._closing:  # the watch and the end of the block may both find it ended
            return there.end()


async def _copied(peer: Peer, what: str, folder: Path, there: str) -> None:
    await _stoppable(lambda stop: copy(peer, what, there, list_tree(folder), stop))


async def _copied_model(
    peer: Peer, name: str, revision: str, recipe: Recipe, environment: Mapping[str, str]
) -> None:
    """Copy a model into the cache of the hub there, or one that is named by its folder."""
    own = _folder(name)
    named = recipe.flags.get("download-dir")
    hub = {**environment, "HF_HUB_CACHE": str(named)} if named else environment
    folder = own or (find_folder(name, hub, revision) if name else None)
    if folder is None:
        return  # the engine makes it up, or knows better
    root = folder if own else folder.parents[1]
    there = f"{cache_folder(hub) if named else peer.facts.hub}/{root.name}"
    if own:
        there = _place_of(peer, own)
    await _stoppable(lambda stop: copy(peer, name, there, list_model(folder, root), stop))


async def _stoppable(work: Callable[[threading.Event], None]) -> None:
    """Run *work* in a thread, which sees by its event that this was cancelled."""
    stop = threading.Event()
    try:
        await asyncio.to_thread(work, stop)
    finally:
        stop.set()
