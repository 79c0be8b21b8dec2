"""The plan of a server: its command and variables, with the reason of each; nothing is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.card import card_capability
from sparkwright.engine.server.environment import vllm_command
from sparkwright.recipes import Recipe, serve_arguments
from sparkwright.serve.caches import cache_key
from sparkwright.serve.model import ServeOptions
from sparkwright.serve.paths import caches_of
from sparkwright.serve.reasons import Reason, explain_flags, explain_variables
from sparkwright.serve.run import server_variables
from sparkwright.serve.settings import KEY_VARIABLE
from sparkwright.store import Store

_UNKNOWN_PYTHON, _UNKNOWN_KEY = "PYTHON", "KEY"


@dataclass(frozen=True)
class Plan:
    """A server that would be started.

    Attributes:
        command: program and arguments, for a shell.
        variables: each variable with its reason; a key's value is not among them.
        wheel: the wheel's name; empty without one.
        made: true if the environment is there already.
        notes: the recipe's known limits.
        companion: file name of the companion that is installed with it; empty without one.
        compiled: kernels that FlashInfer would compile while the engine starts or serves.
        next_step: what would spare that; empty where nothing is compiled.
        chosen: the reason why that wheel was taken; empty where it was named.
        key_file: the file with the key that clients must send; empty where it is in no file.
    """

    command: str
    flags: tuple[Reason, ...]
    variables: tuple[Reason, ...]
    wheel: str
    made: bool
    notes: tuple[str, ...]
    companion: str = ""
    compiled: tuple[str, ...] = ()
    next_step: str = ""
    chosen: str = ""
    key_file: str = ""


def planned(
    recipe: Recipe,
    options: ServeOptions,
    store: Store,
    *,
    python: Path | None = None,
    identity: str = "",
    wheel: str = "",
    installed: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a server.

    Args:
        recipe: the recipe, with its use and settings applied.
        options: the user's choices.
        store: holds environments and caches.
        python: the interpreter; `None` if it is known only once it is made.
        identity: digest of the wheel; empty if it is known only once that is made.
        wheel: the wheel's name, if there is one.
        installed: variables that follow from what is installed.
    """
    key = cache_key(identity, recipe, card_capability()) if identity else _UNKNOWN_KEY
    own = server_variables(recipe, options, caches_of(store) / key, python=python, installed=installed)
    variables = {**recipe.environment, **own}
    if options.api_key:
        variables[KEY_VARIABLE] = ""
    interpreter = str(python) if python is not None else _UNKNOWN_PYTHON
    program = (interpreter, *vllm_command(store.home)[1:])
    return Plan(
        command=shlex.join([*program, *serve_arguments(recipe, host=options.host, port=options.port)]),
        flags=explain_flags(recipe, host=options.host, port=options.port),
        variables=explain_variables(recipe, variables),
        wheel=wheel,
        made=python is not None and python.exists(),
        notes=recipe.limits,
        key_file=str(options.key_file or ""),
    )
