"""The request of a preflight, and the facts that all of its checks share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.host import HostFacts
from sparkwright.serve.preflight.hub import Hub, RemoteModel
from sparkwright.serve.preflight.kv_plan import KvOptions
from sparkwright.serve.preflight.link import LinkFacts
from sparkwright.serve.preflight.options import AskOptions


@dataclass(frozen=True)
class PreflightRequest:
    """A start that is asked for.

    Attributes:
        recipe: the recipe, with the variant that was chosen.
        python: interpreter of the environment that has vLLM; `None` where there is none yet.
        wheel: the wheel that will be installed; read where `python` is `None`.
        host: facts about the machine; read here where `None`.
        engine: facts about vLLM; read from `python` or `wheel` where `None`.
        environment: variables of the server under the recipe's; this process's by default.
        sidecars_gib: memory that other programs will take beside the server.
        port: port to listen at; 0 for any.
        force: start in spite of predictions; nothing here depends on it but `require_clear`.
        ask: asks the release for its options; `None` leaves flags and variables to the engine.
        nodes: machines that serve together; 0 takes the recipe's.
        link: facts of this end of the link between two machines; read here where `None`.
        peer: facts of the other end; `None` where they are not known.
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
    force: bool = False
    ask: AskOptions | None = None
    nodes: int = 0
    link: LinkFacts | None = None
    peer: LinkFacts | None = None
    lacks: tuple[str, ...] = ()
    hub: Hub | None = None

    @property
    def machines(self) -> int:
        """The machines that serve together."""
        return self.nodes or self.recipe.nodes

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the server will see."""
        return {**self.environment, **self.recipe.environment}


@dataclass(frozen=True)
class StartFacts:
    """The facts that all checks share; a model is `None` where it could not be read.

    Attributes:
        host: facts about the machine.
        engine: facts about vLLM, if it is known.
        target: the model, here or on the hub.
        options: of the KV cache.
        remote: the models that are not on this machine, by name; what the hub says of them, if it was asked.
    """

    request: PreflightRequest
    host: HostFacts
    engine: EngineFacts | None
    target: Checkpoint | None
    drafter: Checkpoint | None
    options: KvOptions
    remote: Mapping[str, RemoteModel] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """The recipe that is to be served."""
        return self.request.recipe
