"""The configurations of a comparison of settings: a recipe with other values of some of them.

A setting is a flag of ``vllm serve``, a variable in capitals, ``speculative.KEY`` or
``num-speculative-tokens`` (0 for no speculation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import Recipe, load_recipe, refused_variable

TOKENS = "num-speculative-tokens"
MOST = 200
"""Configurations of a space at the most."""
_SPECULATIVE = "speculative."
_DEFAULT = "auto"  # of a flag that is not set: what vLLM chooses
_RESERVED = frozenset({"host", "port", "served-model-name", "speculative-config", "model", "api-key"})
_OF_SEVERAL_CARDS = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})


@dataclass(frozen=True)
class Configuration:
    """One point of a space.

    Attributes:
        settings: value by setting; of the recipe as it is only where the grid has such a point.
        own: it is the recipe as it is.
    """

    settings: Mapping[str, Any]
    recipe: Recipe
    own: bool = False

    @cached_property
    def key(self) -> str:
        """Digest of all that decides how the server behaves, 8 hex digits; the name of its arm."""
        told = to_builtins(self.recipe)
        decisive = ("model", "drafter", "flags", "environment", "speculative")
        return digest_of({name: told.get(name) for name in decisive})[:8]

    @property
    def name(self) -> str:
        """The settings in words."""
        if self.own:
            return "the recipe as it is"
        return ", ".join(f"{name} {_written(value)}" for name, value in self.settings.items())


# From what the user gives -------------------------------------------------------------------------------


def parse_vary(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return values by setting, from words such as ``num-speculative-tokens=0,3,7``.

    Raises:
        ConfigError: one is not of this form, or a setting is decided elsewhere.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if name in found:
            raise ConfigError(
                f"{name} is varied twice",
                because="--vary takes all values of a setting at once",
                next_step=f"--vary {name}={','.join(map(_written, found[name]))},{values.strip()}",
            )
        if not (name and equals and values.strip()):
            raise ConfigError(
                f"--vary {text!r} cannot be used",
                because="it is not of the form SETTING=VALUE,VALUE",
                next_step="--vary num-speculative-tokens=0,3,7",
            )
        found[name] = tuple(dict.fromkeys(_value(word.strip()) for word in values.split(",")))
    _require_settable(found)
    return found


def _require_settable(vary: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in vary.items():
        if name.strip("-").replace("_", "-") in _RESERVED or (name.isupper() and refused_variable(name)):
            raise ConfigError(
                f"{name} cannot be varied",
                because="it is decided when a server is started",
                next_step="vary another flag of 'vllm serve', or num-speculative-tokens",
            )
        if name.strip("-").replace("_", "-") in _OF_SEVERAL_CARDS:
            raise ConfigError(f"{name} cannot be varied", because="servers are compared on one card")
        if odd := [one for one in values if str(one).lower().lstrip("+-") in {"inf", "infinity", "nan"}]:
            raise ConfigError(f"{name} cannot be {odd[0]}", because="that is no finite number")
        if name == TOKENS and not all(isinstance(one, int) and one >= 0 for one in values):
            raise ConfigError(
                f"{TOKENS} takes numbers from 0 on",
                because=f"{', '.join(map(str, values))} were given",
                next_step=f"--vary {TOKENS}=0,3,7",
            )


def _value(word: str) -> Any:
    if word.lower() in {"true", "on", "false", "off"}:
        return word.lower() in {"true", "on"}
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        return value if math.isfinite(value) else word
    return word


def _written(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


# The grid -----------------------------------------------------------------------------------------------


def make_space(recipe: Recipe, vary: Mapping[str, tuple[Any, ...]]) -> tuple[Configuration, ...]:
    """Return the recipe as it is, and every other combination of values.

    Args:
        recipe: to start from, its use applied.
        vary: values by setting.

    Raises:
        ConfigError: there is nothing to draft with, or there are too many combinations.
    """
    if not recipe.speculative and any(vary.get(TOKENS, ())):
        raise ConfigError(
            "there is nothing to draft tokens with",
            because=f"the recipe {recipe.name} has no drafter",
            next_step="name a recipe with a drafter",
        )
    found: dict[str, Configuration] = {}
    own = Configuration({}, recipe, own=True)
    for values in itertools.product(*vary.values()):
        settings = dict(zip(vary, values, strict=True))
        if settings.get(TOKENS) == 0:  # other settings of speculation mean nothing
            settings = {name: value for name, value in settings.items() if not name.startswith(_SPECULATIVE)}
        one = Configuration(settings, apply_settings(recipe, settings))
        found.setdefault(one.key, one)
        if len(found) > MOST:
            raise ConfigError(
                f"the space has more than {MOST} configurations",
                because=" x ".join(f"{len(values)} of {name}" for name, values in vary.items()),
                next_step="vary fewer settings at once, or fewer values of each",
            )
    first = Configuration(found.pop(own.key, own).settings, recipe, own=True)
    return (first, *found.values())


def apply_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return *recipe* with *settings*."""
    flags, environment, speculative = dict(recipe.flags), dict(recipe.environment), dict(recipe.speculative)
    for name, value in settings.items():
        if name.startswith(_SPECULATIVE):
            speculative[name.removeprefix(_SPECULATIVE)] = value
        elif name == TOKENS:
            speculative["num_speculative_tokens"] = value
        elif name.isupper():
            environment[name] = str(value)
        elif not (value == _DEFAULT and name not in flags):
            flags[name] = value
    drafter = recipe.drafter
    if settings.get(TOKENS) == 0:
        drafter, speculative = "", {}
    return msgspec.structs.replace(
        recipe, flags=flags, environment=environment, drafter=drafter, speculative=speculative
    )


def load_base(name: str, use: str) -> Recipe:
    """Return the recipe to start from.

    Raises:
        UnknownNameError: there is no such recipe or use.
        ConfigError: it is for several machines.
    """
    recipe = load_recipe(name, use)
    if recipe.nodes > 1:
        raise ConfigError(
            f"settings of the recipe {recipe.name} cannot be compared",
            because="it is for several machines, and servers are started on this one alone",
            next_step="compare those of the model's recipe for one machine",
        )
    return recipe
