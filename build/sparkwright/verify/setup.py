"""Preparation of a run from the user's options: servers, checks, sizes and identity."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sparkwright import __version__
from sparkwright.base.card import card_capability
from sparkwright.base.config import convert, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.engine.capabilities import (
    METRICS,
    PREFIX_CACHE,
    SPECULATION,
    TOOLS,
    VLLM,
    refuse_lacking,
    require_known,
)
from sparkwright.engine.client import Endpoint, EndpointFacts, check_address, check_endpoint, open_session
from sparkwright.engine.environment import Environment
from sparkwright.engine.installed import read_installed
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server import start_server
from sparkwright.engine.servers import Arms, MeasuredServer, read_log, standing
from sparkwright.recipes import Recipe, load_recipe, variant
from sparkwright.verify.capacity.check import CapacityCheck
from sparkwright.verify.capacity.search import CHECK as CAPACITY
from sparkwright.verify.check import Check, Context
from sparkwright.verify.checks import ALL, REGISTERED
from sparkwright.verify.checks.reference import ReferenceCheck
from sparkwright.verify.corpus import CATEGORIES, load_corpus
from sparkwright.verify.datasets import Dataset, read_same
from sparkwright.verify.estimate import Estimate, estimate, rates_of
from sparkwright.verify.journal import Manifest
from sparkwright.verify.options import REFERENCE, VerifyOptions, profile_of, recipe_and_use, require_one_rival
from sparkwright.verify.plan import Plan
from sparkwright.verify.probe_capabilities import find_lacking, lacking_facts
from sparkwright.verify.profile import Profile
from sparkwright.verify.reference import identify, load_reference, reference_digest, require_same_model
from sparkwright.verify.simulated import simulated

Start = Callable[[int], AbstractAsyncContextManager[MeasuredServer]]

# Of huggingface_hub, by which vLLM fetches models: use what is cached, and fail where it is not.
OFFLINE = {"HF_HUB_OFFLINE": "1"}
_TOOL_PARSER = "tool-call-parser"
_ON_ANY_SERVER = frozenset({"arrivals", CAPACITY, "coherence", "crash", "sweep"})


def require_possible(options: VerifyOptions, sizes: Profile | None = None) -> None:
    """Refuse *options* that contradict each other, without contacting or starting any server.

    Raises:
        ConfigError: options contradict each other, or name files that are not there.
        UnknownNameError: there is no such profile, check or category.
        EndpointError: an address is invalid.
    """
    profile = profile_of(options, sizes)
    _require_known(profile, own=CAPACITY if options.capacity else "")
    require_known(options.require)
    for url in filter(None, (options.url, options.baseline_url)):
        check_address(url)
    for option, value in (("--soak-seconds", options.soak_s), ("--speed", options.speed)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{option} takes a positive number", because=f"{value:g} is not one")
    if options.url and (options.compared or "compare" in profile.checks):
        raise ConfigError(
            "servers at addresses are not compared in speed",
            because="the speed of a server differs from start to start, and a server at an address is one"
            " start, however often it is measured",
            next_step="give both wheels, the second one by --against",
        )
    require_one_rival(options)
    _require_comparable(options)
    if options.simulator and options.against not in {"", "simulator"}:
        raise ConfigError(
            f"a simulator is not compared with {options.against}", next_step="give --against simulator"
        )
    _require_dataset(options, profile)
    _require_files(options)


def _require_files(options: VerifyOptions) -> None:
    """Refuse *options* that name files that are not there.

    Raises:
        ConfigError: one is not.
    """
    files = [
        options.reference,
        options.python,
        *([] if options.simulator else [options.against]),
        options.wheel,
        options.log,
    ]
    if missing := [path for path in filter(None, files) if not Path(path).is_file()]:
        raise ConfigError(
            f"{missing[0]} cannot be used",
            because="there is no such file",
            next_step="name an existing file",
        )


def _require_comparable(options: VerifyOptions) -> None:
    """Refuse a baseline without a server, and a reference in a run that measures speed alone.

    Raises:
        ConfigError: there is one.
    """
    if options.baseline_url and not options.url:
        raise ConfigError("--baseline-url goes with --url", because="there is no server to compare with it")
    if options.reference and (options.compared or options.capacity):
        raise ConfigError(
            "--reference and a comparison of speed exclude each other",
            because="that measures speed alone",
            next_step="use the reference in a run of its own: sparkwright verify reference use",
        )


async def make_plan(
    options: VerifyOptions,
    folder: Path,
    api_key: str = "",
    baseline_key: str = "",
    *,
    offline: bool = False,
    sizes: Profile | None = None,
) -> tuple[Plan, Manifest]:
    """Return the plan that *options* select; servers' files are written below *folder*.

    Args:
        options: of the user.
        folder: of the run.
        api_key: of the server at `VerifyOptions.url`; it is sent nowhere else.
        baseline_key: of the one at `VerifyOptions.baseline_url`.
        offline: fetch nothing: neither what a wheel requires nor, when vLLM starts, models.
        sizes: used instead of those of the profile that *options* name.

    Raises:
        ConfigError: options contradict each other.
        UnknownNameError: there is no such recipe, profile, check, category or fault.
        EndpointError: the server at the address cannot be verified.
        IncompatibleOptionsError: the recipe's options are known not to work together.
        ServerError: the wheel could not be installed.
        NotInStoreError: the wheel requires something that must be fetched, and the network is off.
    """
    require_possible(options, sizes)
    profile = profile_of(options, sizes)
    if options.url:
        arms, server, identity, lacks = await _at_address(options, profile, (api_key, baseline_key))
        if VLLM in lacks:
            profile = _for_any_server(options, profile)
    elif options.simulator:
        arms, server, identity = simulated(options, profile, folder)
        lacks = {} if options.speculative_tokens else {SPECULATION: "this server does not speculate"}
    else:
        arms, server, identity, profile = _by_recipe(options, profile, folder, offline=offline)
        lacks = _lacks_by_recipe(load_recipe(options.recipe, options.use))
    refuse_lacking(lacks, options.require, server)
    context = _context(options, profile, lacks)
    plan = Plan(arms, _checks(options, profile), context, rates_of(options, lacks, made_up=context.made_up))
    if options.reference:
        identity["reference"] = reference_digest(Path(options.reference))
    manifest = _manifest(options, folder, server, {**identity, "profile": _digest(profile)})
    return plan, msgspec.structs.replace(manifest, lacks=lacks)


def plan_run(options: VerifyOptions) -> Estimate:
    """Return size and expected duration of the run that *options* select, without facts of its server.

    Raises:
        ConfigError: options contradict each other.
        UnknownNameError: there is no such recipe, profile, check or category.
    """
    require_possible(options)
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    profile = profile_of(options)
    profile = _with_hints(profile, recipe, options) if recipe and not options.url else profile
    lacks = {} if recipe is None else _lacks_by_recipe(recipe)
    alone = bool(options.url) and not options.baseline_url
    context = replace(_context(options, profile, lacks), facts={("main", 0): BootFacts()})
    return estimate(
        {
            check.name: [cell for cell in check.plan(context) if cell.arm == "main" or not alone]
            for check in _checks(options, profile)
        },
        rates_of(options, lacks, made_up=context.made_up),
        speed=profile.speed,
    )


def _context(options: VerifyOptions, profile: Profile, lacks: Mapping[str, str]) -> Context:
    """Return what checks are given before any server runs."""
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    return Context(
        profile,
        load_corpus(),
        {},
        band=recipe.band if recipe else "",
        made_up=recipe is not None and recipe.made_up,
        lacks=lacks,
        dataset=_dataset(options),
    )


def _checks(options: VerifyOptions, profile: Profile) -> list[Check]:
    """Return the checks to run, or the search for the capacity instead.

    Raises:
        ConfigError: the file of prompts cannot be used, or is not what it was.
    """
    search = options.capacity
    if search is None:
        known = dict(ALL)
        if options.reference:
            known[REFERENCE] = ReferenceCheck(load_reference(Path(options.reference)))
        return [known[name] for name in profile.checks]
    own = read_same(Path(search.prompts), search.prompts_sha256) if search.prompts else ()
    return [CapacityCheck(search, own)]


def _dataset(options: VerifyOptions) -> Dataset:
    """Return the prompts and rates that *options* name.

    Raises:
        ConfigError: the file of prompts cannot be used, or is not what it was.
    """
    own = read_same(Path(options.prompts), options.prompts_sha256) if options.prompts else ()
    return Dataset(own, options.input_tokens, options.rates)


def _require_dataset(options: VerifyOptions, profile: Profile) -> None:
    """Refuse prompts and rates that contradict each other or *profile*.

    Raises:
        ConfigError: they do.
    """
    if options.prompts and options.input_tokens:
        raise ConfigError(
            "--prompts and --input-tokens exclude each other",
            because="prompts have the lengths that they have",
        )
    if "arrivals" in profile.checks and not options.rates:
        raise ConfigError("the check 'arrivals' needs a rate", next_step="give --rate, such as --rate 0.5,2")


def _require_known(profile: Profile, *, own: str = "") -> None:
    """Refuse a *profile* with unknown names of checks or categories.

    Args:
        profile: sizes.
        own: the only check there is, if it is none of the registered ones.

    Raises:
        UnknownNameError: one is unknown.
    """
    for what, names, known in (
        ("check", profile.checks, (own,) if own else tuple(ALL)),
        ("category", profile.categories, CATEGORIES),
    ):
        if unknown := [name for name in names if name not in known]:
            raise UnknownNameError(
                f"there is no {what} {unknown[0]!r}", next_step=f"take some of {', '.join(known)}"
            )


# By address ---------------------------------------------------------------------------------------------


async def _at_address(
    options: VerifyOptions, profile: Profile, keys: tuple[str, str]
) -> tuple[Arms, str, dict[str, str], dict[str, str]]:
    """Return the servers at addresses, and the capabilities that the main one lacks, with reasons."""
    log = Path(options.log) if options.log else None
    starters: dict[str, Start] = {}
    identity: dict[str, str] = {}
    lacks: dict[str, str] = {}
    for arm, url, key in zip(("main", "baseline"), (options.url, options.baseline_url), keys, strict=True):
        if not url:
            continue
        endpoint = Endpoint(url, options.model, key)
        async with open_session(endpoint) as session:
            known = await check_endpoint(session, endpoint, profile.deadlines)
            endpoint = replace(endpoint, model=known.model)
            asked = _asked(options, profile) if arm == "main" else ()
            lacking = await find_lacking(session, endpoint, known, profile.deadlines, asked)
            if arm == "main" and options.reference:
                found = await identify(
                    session, endpoint, known, read_log(log), deadlines=profile.deadlines, lacks=lacking
                )
                require_same_model(load_reference(Path(options.reference)), found, url)
        if arm == "main":
            lacks = {**lacking, **lacking_facts(options, known, read_log(log))}
        else:
            needed = {VLLM, METRICS} - lacks.keys()
            refuse_lacking(lacking, needed, f"{url}, which the other server is compared with,")
        endpoint = replace(endpoint, lacks=frozenset(lacking))
        own_log = log if arm == "main" else None
        starters[arm] = partial(_stand, endpoint, known, own_log)
        identity |= {f"{arm}-vllm": known.version, f"{arm}-model": known.model}
    if lacks:
        identity["main-lacks"] = ", ".join(sorted(lacks))
    what = f"vLLM {version}" if (version := identity["main-vllm"]) else "OpenAI-compatible server"
    return Arms(starters), f"{what} at {options.url}", identity, lacks


def _for_any_server(options: VerifyOptions, profile: Profile) -> Profile:
    """Return *profile* with the checks that ask for nothing but OpenAI's chats.

    Raises:
        ConfigError: others were selected.
    """
    left = [name for name in profile.checks if name not in _ON_ANY_SERVER]
    if left and (options.checks or options.reference):
        raise ConfigError(
            f"{options.url} cannot be checked by {', '.join(left)}",
            because="it is no vLLM",
            next_step=f"give --checks, some of {', '.join(sorted(_ON_ANY_SERVER))}",
        )
    return msgspec.structs.replace(
        profile, checks=tuple(name for name in profile.checks if name in _ON_ANY_SERVER)
    )


def _asked(options: VerifyOptions, profile: Profile) -> frozenset[str]:
    """Return the capabilities to try: those of checks that run, and required ones.

    A tool parser that the recipe configures is not tried, so that a server without it fails.
    """
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    known = (REGISTERED[check] for check in profile.checks if check in REGISTERED)
    tries = {name for registered in known for name in registered.tries}
    configured = {TOOLS} if recipe is not None and _TOOL_PARSER in recipe.flags else set()
    return frozenset({*tries, *options.require} - configured)


def _stand(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None, boot: int
) -> AbstractAsyncContextManager[MeasuredServer]:
    del boot  # this client did not start it
    return standing(endpoint, known, log)


# A recipe -----------------------------------------------------------------------------------------------


def _lacks_by_recipe(recipe: Recipe) -> dict[str, str]:
    """Return what the server of *recipe* need not have; all else is required of it."""
    lacks = {} if recipe.speculative else {SPECULATION: "the recipe has no speculation"}
    if recipe.flags.get("enable-prefix-caching") is False:
        lacks[PREFIX_CACHE] = "the recipe turns the prefix cache off"
    if _TOOL_PARSER not in recipe.flags:
        lacks[TOOLS] = f"the recipe names no tool parser ({_TOOL_PARSER})"
    return lacks


def _by_recipe(
    options: VerifyOptions, profile: Profile, folder: Path, *, offline: bool
) -> tuple[Arms, str, dict[str, str], Profile]:
    recipe = variant(
        load_recipe(options.recipe, options.use), runner=options.runner, eager=True if options.eager else None
    )
    profile = _with_hints(profile, recipe, options)
    install = partial(environment_of, locked=not options.unlocked, offline=offline)
    main, identity = install(options.wheel or options.python, recipe, "wheel")
    baseline, baseline_recipe = main, variant(recipe, speculation=False)
    if options.against:
        baseline, other = install(options.against, recipe, "against")
        baseline_recipe, identity = recipe, {**identity, **other}
    title = recipe.title
    if options.against_recipe:
        rival = load_recipe(*recipe_and_use(options.against_recipe))
        baseline_recipe = variant(rival, runner=options.runner, eager=True if options.eager else None)
        identity = {**identity, "against-recipe": _digest(baseline_recipe)}
        title = f"{recipe.title} against {rival.title}"

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        environment, served = (main, recipe) if arm == "main" else (baseline, baseline_recipe)
        return start_server(
            served,
            folder=folder / "servers" / f"{arm}-{boot}",
            python=environment.python,
            environment={**environment.server_variables(served), **(OFFLINE if offline else {})},
            deadlines=profile.deadlines,
        )

    arms = {arm: partial(start, arm) for arm in ("main", "baseline")}
    return Arms(arms), title, {**identity, "recipe": _digest(recipe)}, profile


def environment_of(
    place: str, recipe: Recipe, name: str, *, locked: bool = True, offline: bool = False
) -> tuple[Environment, dict[str, str]]:
    """Return the environment of the wheel or interpreter at *place*, and the identity of its vLLM.

    Args:
        place: a wheel or an interpreter.
        recipe: what it serves.
        name: begin of the names in the identity.
        locked: install a wheel's locked runtime.
        offline: fetch nothing.
    """
    from sparkwright.engine.environment import existing_environment, prepare

    path = Path(place)
    if path.suffix != ".whl":
        found = existing_environment(path, recipe)
        return found, {name: f"vLLM {read_installed(path).version} of an environment"}
    found = prepare(path, recipe, locked=locked, offline=offline)
    identity = {
        name: found.identity,
        f"{name}-file": path.name,
        f"{name}-runtime": found.requirements.runtime,
        f"{name}-companion": found.companion,
    }
    return found, {key: value for key, value in identity.items() if value}


def _with_hints(profile: Profile, recipe: Recipe, options: VerifyOptions) -> Profile:
    """Return *profile* with the sizes of *recipe*, except those that the user gave."""
    hints = {name: value for name, value in recipe.profile.items() if not getattr(options, name, None)}
    return convert({**to_builtins(profile), **hints}, type(profile)) if hints else profile


# The head of the journal ---------------------------------------------------------------------------


def _digest(model: Any) -> str:
    return digest_of(to_builtins(model))[:16]


def _manifest(options: VerifyOptions, folder: Path, server: str, identity: dict[str, str]) -> Manifest:
    return Manifest(
        run=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        server=server,
        identity=identity,
        options=options.recorded,
        client={
            "sparkwright": __version__,
            "python": platform.python_version(),
            "client": f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform(terse=True)}",
            # Of the card that the server is started on; one at an address may be on another machine.
            **(
                {"card": card}
                if (card := "" if options.url or options.simulator else card_capability())
                else {}
            ),
        },
    )
