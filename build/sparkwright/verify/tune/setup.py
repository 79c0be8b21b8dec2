"""Preparation of a search: servers, configurations, and its identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.engine.environment import Environment
from sparkwright.engine.server import start_server
from sparkwright.engine.servers import MeasuredServer
from sparkwright.recipes import Recipe
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.journal import Manifest
from sparkwright.verify.setup import OFFLINE, as_requested, environment_of
from sparkwright.verify.simulated import start_simulator
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.settings import simulator_arguments
from sparkwright.verify.tune.options import TuneOptions, require_usable
from sparkwright.verify.tune.search import Search
from sparkwright.verify.tune.space import Configuration, Space, default_vary, load_base, make_space

Ask = Callable[[Path, Sequence[Recipe]], Sequence[str]]
Start = Callable[[Configuration, str], AbstractAsyncContextManager[MeasuredServer]]


def with_defaults(options: TuneOptions) -> TuneOptions:
    """Return *options* with the settings that are varied, if the user named none.

    Raises:
        UnknownNameError: there is no such recipe or use.
        ConfigError: options contradict each other.
    """
    require_usable(options)
    recipe = load_base(options.recipe, options.use)
    vary = options.vary or default_vary(recipe, max(options.levels))
    return msgspec.structs.replace(options, vary=vary)


def prepare_search(
    options: TuneOptions, folder: Path, *, offline: bool = False, ask: Ask | None = None
) -> tuple[Search, Manifest]:
    """Return the search that *options* select; servers' files are written below *folder*.

    Args:
        options: of the user.
        folder: of the search.
        offline: fetch nothing.
        ask: returns for each recipe why it should not be started with the vLLM of an interpreter, empty where
            nothing speaks against it; without it every configuration is started.

    Raises:
        ConfigError: options contradict each other, or the space cannot be made.
        UnknownNameError: there is no such recipe, use or fault.
        ServerError: the wheel could not be installed.
        NotInStoreError: the wheel requires something that must be fetched, and the network is off.
    """
    require_usable(options)
    recipe = load_base(options.recipe, options.use)
    space = make_space(recipe, options.vary, options.methods)
    refused: Callable[[], Mapping[str, str]] | None = None
    if options.simulator:
        start, identity = _simulated(options, folder)
    else:
        found, identity = environment_of(options.wheel or options.python, recipe, "wheel", offline=offline)
        start = _from(found, options, folder, offline=offline)
        refused = partial(_refused, ask, found.python, space) if ask is not None else None
    search = Search(options, space, load_corpus(), start, made_up=recipe.made_up, refused=refused)
    identity |= {
        "recipe": digest_of(to_builtins(recipe))[:16],
        "configurations": str(len(space.configurations)),
    }
    return search, _manifest(options, folder, recipe, identity)


def _manifest(options: TuneOptions, folder: Path, recipe: Recipe, identity: dict[str, str]) -> Manifest:
    return Manifest(
        run=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        server=f"configurations of {recipe.title}",
        identity=identity,
        options=options.recorded,
        client={"sparkwright": __version__},
    )


def _refused(ask: Ask, python: Path, space: Space) -> dict[str, str]:
    """Return reasons by the key of a configuration that should not be started."""
    answers = ask(python, [one.recipe for one in space.configurations])
    return {one.key: why for one, why in zip(space.configurations, answers, strict=True) if why}


def _from(environment: Environment, options: TuneOptions, folder: Path, *, offline: bool) -> Start:
    profile = options.profile

    def start(configuration: Configuration, place: str) -> AbstractAsyncContextManager[MeasuredServer]:
        return start_server(
            as_requested(configuration.recipe),
            folder=folder / "servers" / place,
            python=environment.python,
            environment={
                **environment.server_variables(configuration.recipe),
                **(OFFLINE if offline else {}),
            },
            deadlines=profile.deadlines,
        )

    return start


def _simulated(options: TuneOptions, folder: Path) -> tuple[Start, dict[str, str]]:
    faults = [_Fault.of(text) for text in options.faults]

    def start(configuration: Configuration, place: str) -> AbstractAsyncContextManager[MeasuredServer]:
        drawn = int(digest_of([configuration.key, place, options.seed])[:8], 16)
        arguments = [*simulator_arguments(configuration.recipe), "--dialect", options.dialect]
        arguments += ["--seed", str(drawn)]
        fitting = _fitting(faults, configuration.recipe)
        return start_simulator(arguments, fitting, folder / "servers" / place, options.profile)

    return start, {
        "simulator": options.dialect,
        "faults": " ".join(options.faults),
        "seed": str(options.seed),
    }


class _Fault(msgspec.Struct, frozen=True):
    """A fault of simulators, of those with one setting alone if it names one."""

    fault: str
    setting: str = ""
    value: str = ""

    @classmethod
    def of(cls, text: str) -> _Fault:
        """Return the fault that *text* names.

        Raises:
            ConfigError: its condition is not of the form SETTING=VALUE.
            UnknownNameError: there is no such fault.
        """
        fault, at, condition = text.partition("@")
        parse_faults([fault])
        setting, equals, value = condition.partition("=")
        if at and not (setting and equals and value):
            raise ConfigError(
                f"--fault {text!r} cannot be used", because="after @ it takes SETTING=VALUE", next_step=""
            )
        return cls(fault, setting, value)


def _fitting(faults: Iterable[_Fault], recipe: Recipe) -> list[str]:
    effective = {
        **recipe.flags,
        "method": recipe.speculative.get("method", "none"),
        "num-speculative-tokens": recipe.speculative.get("num_speculative_tokens", 0),
    }
    return [one.fault for one in faults if not one.setting or str(effective.get(one.setting)) == one.value]
