"""The configurations of a comparison of settings: a recipe with other values of some of them.

A setting is a flag of ``vllm serve``, a variable in capitals, ``speculative.KEY``, ``num-speculative-tokens``
(0 for no speculation) or ``method`` (of drafting; ``mtp:2`` for two tokens, ``none`` for no speculation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.recipes import Recipe, load_recipe, recipes
from sparkwright.recipes.recipe import refused_variable

METHOD, TOKENS, NONE = "method", "num-speculative-tokens", "none"
MOST = 200
"""Configurations of a space at the most."""
_NGRAM_TOKENS = 4
_SPECULATIVE = "speculative."
_DEFAULT = "auto"  # of a flag that is not set: what vLLM chooses
_RESERVED = frozenset({"host", "port", "served-model-name", "speculative-config", "model", "api-key"})
_OF_SEVERAL_CARDS = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})


class Drafting(Model, frozen=True):
    """One method of drafting, as a recipe has it.

    Attributes:
        drafter: the drafter's checkpoint; empty where it needs none.
    """

    drafter: str = ""
    speculative: dict[str, Any] = msgspec.field(default_factory=dict)


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
            raise ConfigError(f"{name} cannot be varied", because="it is decided when a server is started")
        if name.strip("-").replace("_", "-") in _OF_SEVERAL_CARDS:
            raise ConfigError(f"{name} cannot be varied", because="servers are compared on one card")
        if odd := [one for one in values if str(one).lower().lstrip("+-") in {"inf", "infinity", "nan"}]:
            raise ConfigError(f"{name} cannot be {odd[0]}", because="that is no finite number")
        if name == TOKENS and not all(isinstance(one, int) and one >= 0 for one in values):
            raise ConfigError(
                f"{TOKENS} takes numbers from 0 on", because=f"{', '.join(map(str, values))} were given"
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


# Methods of drafting ---------------------------------------------------------------------------------


def methods_of(recipe: Recipe) -> dict[str, Drafting]:
    """Return the methods of drafting that are known for the model of *recipe*, its own first.

    Others are those of shipped recipes of the same model, and n-grams, which need no drafter.
    """
    found: dict[str, Drafting] = {}
    same = (one for one in recipes().values() if one.model == recipe.model and one.nodes == recipe.nodes)
    for one in (recipe, *same):
        method = str(one.speculative.get("method", ""))
        if method and method not in found:
            found[method] = Drafting(drafter=one.drafter, speculative=one.speculative)
    ngram = {"method": "ngram", "num_speculative_tokens": _NGRAM_TOKENS, "prompt_lookup_max": 4}
    return {**found, "ngram": found.get("ngram", Drafting(speculative=ngram)), NONE: Drafting()}


# The grid -----------------------------------------------------------------------------------------------


def make_space(recipe: Recipe, vary: Mapping[str, tuple[Any, ...]]) -> tuple[Configuration, ...]:
    """Return the recipe as it is, and every other combination of values.

    Args:
        recipe: to start from, its use applied.
        vary: values by setting.

    Raises:
        ConfigError: a method is unknown, there is nothing to draft with, or there are too many combinations.
    """
    known = methods_of(recipe)
    if unknown := [name for name in vary.get(METHOD, ()) if _method(name)[0] not in known]:
        raise ConfigError(
            f"there is no method {unknown[0]!r} for {recipe.model}",
            because=f"known for it are {', '.join(known)}",
            next_step=f"write a recipe of {recipe.model} with that method, and name it instead",
        )
    if METHOD not in vary and not recipe.speculative and any(vary.get(TOKENS, ())):
        raise ConfigError(
            "there is nothing to draft tokens with",
            because=f"the recipe {recipe.name} has no drafter",
            next_step="--vary method=ngram,none, or a recipe with a drafter",
        )
    found: dict[str, Configuration] = {}
    own = Configuration({}, recipe, own=True)
    for one in _grid(recipe, vary, known):
        found.setdefault(one.key, one)
        if len(found) > MOST:
            raise ConfigError(
                f"the space has more than {MOST} configurations",
                because=" x ".join(f"{len(values)} of {name}" for name, values in vary.items()),
                next_step="vary fewer settings at once, or fewer values of each",
            )
    first = Configuration(found.pop(own.key, own).settings, recipe, own=True)
    return (first, *found.values())


def _grid(
    recipe: Recipe, vary: Mapping[str, tuple[Any, ...]], methods: Mapping[str, Drafting]
) -> Iterator[Configuration]:
    for values in itertools.product(*vary.values()):
        settings = dict(zip(vary, values, strict=True))
        if settings.get(METHOD) == NONE or settings.get(TOKENS) == 0:
            settings = _plain(settings)
        yield Configuration(settings, apply_settings(recipe, settings, methods))


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return *settings* without those of speculation, which is off."""
    off = {METHOD: NONE} if METHOD in settings else {TOKENS: 0}
    left = {
        name: value
        for name, value in settings.items()
        if name not in {METHOD, TOKENS} and not name.startswith(_SPECULATIVE)
    }
    return {**off, **left}


def apply_settings(recipe: Recipe, settings: Mapping[str, Any], methods: Mapping[str, Drafting]) -> Recipe:
    """Return *recipe* with *settings*."""
    flags, environment = dict(recipe.flags), dict(recipe.environment)
    drafter, speculative = recipe.drafter, dict(recipe.speculative)
    if METHOD in settings:
        name, tokens = _method(settings[METHOD])
        drafter, speculative = methods[name].drafter, dict(methods[name].speculative)
        speculative |= {"num_speculative_tokens": tokens} if tokens else {}
    for name, value in settings.items():
        if name.startswith(_SPECULATIVE):
            speculative[name.removeprefix(_SPECULATIVE)] = value
        elif name == TOKENS:
            speculative["num_speculative_tokens"] = value
        elif name.isupper():
            environment[name] = str(value)
        elif name != METHOD and not (value == _DEFAULT and name not in flags):
            flags[name] = value
    if settings.get(METHOD) == NONE or settings.get(TOKENS) == 0:
        drafter, speculative = "", {}
    return msgspec.structs.replace(
        recipe, flags=flags, environment=environment, drafter=drafter, speculative=speculative
    )


def _method(text: str) -> tuple[str, int]:
    """Return the name of a method and its number of tokens, 0 if that is left to the method."""
    name, _, tokens = str(text).partition(":")
    return (name, int(tokens)) if tokens.isdecimal() else (str(text), 0)


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
