"""The plan of a server: its command and variables, with the reason of each; nothing is started."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.digests import sha256_file
from sparkwright.recipes import serve_arguments
from sparkwright.serve.explain import Reason, explain_flags, explain_variables
from sparkwright.serve.model import Installation
from sparkwright.serve.places import caches_of
from sparkwright.serve.run import server_variables
from sparkwright.verify.server.environment import vllm_command

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.recipes import Recipe
    from sparkwright.serve.model import ServeOptions
    from sparkwright.store import Store


@dataclass(frozen=True)
class Plan:
    """A server that would be started.

    Attributes:
        command: program and arguments, for a shell.
        flags: each flag with its reason.
        variables: each variable with its reason; a key's value is not among them.
        wheel: the wheel's name; empty without one.
        made: true if the environment is there already.
        notes: the recipe's known limits.
    """

    command: str
    flags: tuple[Reason, ...]
    variables: tuple[Reason, ...]
    wheel: str
    made: bool
    notes: tuple[str, ...]


def planned(
    recipe: Recipe,
    options: ServeOptions,
    store: Store,
    *,
    python: Path | None,
    wheel: Path | None = None,
) -> Plan:
    """Return the plan of a server.

    Args:
        recipe: the recipe, with its use and settings applied.
        options: the user's choices.
        store: holds environments and caches.
        python: the interpreter; `None` if it is known only once it is made.
        wheel: the wheel, if there is one.
    """
    interpreter = str(python) if python is not None else "PYTHON"
    identity = sha256_file(wheel) if wheel is not None else interpreter
    installed = Installation(python or store.environments, identity, recipe, "")
    variables = {**recipe.environment, **server_variables(installed, options, caches_of(store))}
    if options.api_key:
        variables["VLLM_API_KEY"] = ""
    vllm = vllm_command(store.environments)[1:]
    words = [interpreter, *vllm, *serve_arguments(recipe, host=options.host, port=options.port)]
    return Plan(
        command=shlex.join(words),
        flags=explain_flags(recipe, host=options.host, port=options.port),
        variables=explain_variables(recipe, variables),
        wheel=wheel.name if wheel is not None else "",
        made=python is not None and python.exists(),
        notes=recipe.notes,
    )
