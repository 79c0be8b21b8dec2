"""The request of a preflight, and the facts that all of its checks share, read once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.installed import EngineFacts, read_installed, read_wheel
from sparkwright.engine.models import cache_folder, is_offline, is_repository
from sparkwright.engine.release import ReleaseAnswer
from sparkwright.engine.tiny import write_tiny_models
from sparkwright.recipes.recipe import TINY, Recipe
from sparkwright.recipes.release_options import Question
from sparkwright.serve.preflight.checkpoint import Checkpoint, find_folder, read_checkpoint
from sparkwright.serve.preflight.finding import Finding, finding
from sparkwright.serve.preflight.hub import Hub, RemoteModel
from sparkwright.serve.preflight.kv_plan import KvOptions, kv_options
from sparkwright.serve.preflight.machine import HostFacts, read_host

AskOptions = Callable[[Path | None, EngineFacts, Sequence[Question]], ReleaseAnswer | None]


@dataclass(frozen=True)
class PreflightRequest:
    """A start that is asked for.

    Attributes:
        python: interpreter of the environment that has vLLM; `None` where there is none yet.
        wheel: the wheel that will be installed; read where `python` is `None`.
        engine: facts about vLLM; read from `python` or `wheel` where `None`.
        environment: variables of the server under the recipe's; this process's by default.
        sidecars_gib: memory that other programs will take beside the server.
        ask: asks the release for its options; `None` leaves flags and variables to the engine.
        nodes: machines that serve together; 0 takes the recipe's.
        lacks: kernels of FlashInfer that a wheel will be installed without.
        hub: where models that are not on this machine are read; `None` reads none.
    """

    recipe: Recipe
    python: Path | None = None
    wheel: Path | None = None
    host: HostFacts | None = None
    engine: EngineFacts | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    sidecars_gib: float = 0.0
    address: str = "127.0.0.1"
    port: int = 0
    ask: AskOptions | None = None
    nodes: int = 0
    lacks: tuple[str, ...] = ()
    hub: Hub | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the server will see."""
        return {**self.environment, **self.recipe.environment}


@dataclass(frozen=True)
class StartFacts:
    """The facts that all checks share; a model is `None` where it could not be read.

    Attributes:
        engine: facts about vLLM; `None` where it is not known.
        target: the model, here or on the hub.
        remote: the models that are not on this machine, by name; what the hub says of them, if it was asked.
    """

    request: PreflightRequest
    host: HostFacts
    engine: EngineFacts | None
    problems: tuple[Finding, ...]
    target: Checkpoint | None
    drafter: Checkpoint | None
    options: KvOptions
    remote: Mapping[str, RemoteModel]

    @property
    def recipe(self) -> Recipe:
        """The recipe that is to be served."""
        return self.request.recipe

    def here(self, model: str) -> bool:
        """Tell if the *model* is on this machine, or made up there."""
        return model not in self.remote


def read_facts(request: PreflightRequest) -> StartFacts:
    """Return the facts about the start *request*; of models nothing but headers is fetched."""
    recipe, variables = request.recipe, request.variables
    host = request.host or read_host(
        variables, models=cache_folder(variables), ports=(request.port,), address=request.address
    )
    engine, problems = read_engine(request)
    remote: dict[str, RemoteModel] = {}
    target = _checkpoint(request, recipe.model, remote, str(recipe.flags.get("revision") or ""))
    drafter = _checkpoint(request, recipe.drafter, remote)
    options = kv_options(recipe, target, host, engine)
    return StartFacts(request, host, engine, problems, target, drafter, options, remote)


def read_engine(request: PreflightRequest) -> tuple[EngineFacts | None, tuple[Finding, ...]]:
    """Return the facts about the vLLM of *request*, if they are known, and what is wrong with it."""
    try:
        if request.engine is None and request.python is not None:
            return read_installed(request.python), ()
        if request.engine is None and request.wheel is not None:
            return read_wheel(request.wheel), ()
    except SparkwrightError as error:
        texts = {"what": error.what, "because": error.because, "next_step": error.next_step}
        return None, (finding("engine", **texts),)
    return request.engine, ()


def _checkpoint(
    request: PreflightRequest, name: str, remote: dict[str, RemoteModel], revision: str = ""
) -> Checkpoint | None:
    """Return the model *name*; *remote* gets what the hub says of it if it is not on this machine."""
    if not name:
        return None
    if name.startswith(TINY):
        return _generated(name)
    folder = find_folder(name, request.variables, revision)
    if folder is not None:
        return read_checkpoint(name, folder)
    asks = request.hub is not None and is_repository(name) and not is_offline(request.variables)
    remote[name] = request.hub.read(name, revision) if request.hub and asks else RemoteModel()
    return remote[name].checkpoint


def _generated(name: str) -> Checkpoint:
    """Return the checkpoint that a generated model will have: a configuration and a tokenizer, no weights."""
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = write_tiny_models(Path(folder))
        return read_checkpoint(name, target if name == f"{TINY}target" else drafter)
