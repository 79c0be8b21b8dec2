"""The plan of a server: its command and variables, with the reason of each; nothing is started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.base.machine import card_capability
from sparkwright.engine.environment import Environment
from sparkwright.engine.flashinfer import REASONS
from sparkwright.engine.runtime import vllm_command
from sparkwright.recipes.recipe import SERVED_NAMES, Recipe, serve_arguments
from sparkwright.recipes.shared import shared_reason
from sparkwright.serve.caches import cache_key, caches_of, reason_of
from sparkwright.serve.run import ServeOptions, server_variables
from sparkwright.serve.settings import KEY_VARIABLE
from sparkwright.store.paths import Store

_UNKNOWN_PYTHON, _UNKNOWN_KEY = "PYTHON", "KEY"
_UNSAID = "the recipe has it"
RECIPE_KEY = "stated in the recipe: its author knows it"
"""The reason of a key that a recipe states."""
_OWN = {**REASONS, KEY_VARIABLE: "the key that clients must send, out of --api-key-file or this shell"}


@dataclass(frozen=True)
class Reason:
    """A flag with its dashes, or a variable; its value as text, empty for a switch; and the reason for it."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Plan:
    """A server that would be started.

    Attributes:
        variables: each variable with its reason; a key's value is not among them.
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
    environment: Environment | None = None,
    *,
    wheel: str = "",
    chosen: str = "",
) -> Plan:
    """Return the plan of a server.

    The *environment* is `None` where it is known only once it is made.
    """
    python = environment.python if environment else None
    key = cache_key(environment.identity, recipe, card_capability()) if environment else _UNKNOWN_KEY
    own = server_variables(recipe, options, caches_of(store) / key, environment)
    variables = {**recipe.environment, **own}
    if options.api_key:
        variables[KEY_VARIABLE] = ""
    program = (str(python or _UNKNOWN_PYTHON), *vllm_command(store.home)[1:])
    return Plan(
        command=shlex.join([*program, *serve_arguments(recipe, host=options.host, port=options.port)]),
        flags=explain_flags(recipe, host=options.host, port=options.port),
        variables=explain_variables(recipe, variables),
        wheel=wheel,
        made=python is not None and python.exists(),
        notes=recipe.limits,
        companion=environment.companion if environment else "",
        compiled=environment.missing if environment else (),
        next_step=environment.remedy if environment else "",
        chosen=chosen,
        key_file=str(options.key_file or ""),
    )


def explain_flags(recipe: Recipe, *, host: str, port: int) -> tuple[Reason, ...]:
    """Return each flag of the command that serves *recipe*, in its order, with its reason."""
    decided = {SERVED_NAMES: " ".join(recipe.served_names), "host": host, "port": port}
    found = [Reason("model", recipe.model, _why(recipe, "model"))]
    found += [Reason(f"--{name}", str(value), _why(recipe, name)) for name, value in decided.items()]
    for name, value in recipe.flags.items():
        if name in decided:
            continue
        switch = f"--no-{name}" if value is False else f"--{name}"
        found.append(Reason(switch, "" if isinstance(value, bool) else _text(value), _why(recipe, name)))
    if recipe.speculative:
        drafter = {"model": recipe.drafter} if recipe.drafter else {}
        for name, value in {**recipe.speculative, **drafter}.items():
            why = _why(recipe, f"speculative.{name}", "speculative")
            found.append(Reason(f"--speculative-config {name}", _text(value), why))
    return tuple(found)


def explain_variables(recipe: Recipe, variables: Mapping[str, str]) -> tuple[Reason, ...]:
    """Return the variables of the server that serves *recipe*, sorted; a key's value is never shown."""
    return tuple(
        Reason(
            name,
            "***" if _is_key(name) else value,
            RECIPE_KEY
            if _is_key(name) and name in recipe.environment
            else reason_of(name) or _why(recipe, name),
        )
        for name, value in sorted(variables.items())
    )


def _is_key(name: str) -> bool:
    return name.endswith(("_KEY", "_TOKEN"))


def _why(recipe: Recipe, *names: str) -> str:
    reasons = (recipe.why.get(name) or _OWN.get(name) or shared_reason(name) for name in names)
    return next(filter(None, reasons), _UNSAID)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
