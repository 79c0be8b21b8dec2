"""The servers of a run: at addresses, simulated, or started by a recipe; and the head of its journal."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sparkwright import __version__
from sparkwright.base.card import card_capability
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.engine.client import Endpoint, EndpointFacts, check_endpoint, open_session
from sparkwright.engine.environment import Environment
from sparkwright.engine.installed import read_installed
from sparkwright.engine.server import start_server
from sparkwright.engine.servers import Arms, MeasuredServer, read_log, standing
from sparkwright.recipes import Recipe, load_recipe
from sparkwright.verify.checks.settings import arm_of
from sparkwright.verify.journal import Manifest
from sparkwright.verify.options import recipe_and_use
from sparkwright.verify.plan import TOOL_PARSER, Plan
from sparkwright.verify.probe_capabilities import lacking_facts, lacking_tools
from sparkwright.verify.reference import load_reference, require_same_model
from sparkwright.verify.simulated import simulated

Start = Callable[[int], AbstractAsyncContextManager[MeasuredServer]]
Refusal = Callable[[Recipe, Path], str]

# Of huggingface_hub, by which vLLM fetches models: use what is cached, and fail where it is not.
OFFLINE = {"HF_HUB_OFFLINE": "1"}


async def prepare(
    plan: Plan,
    folder: Path,
    keys: tuple[str, str] = ("", ""),
    *,
    offline: bool = False,
    refusal: Refusal | None = None,
) -> tuple[Plan, Manifest]:
    """Return *plan* with its servers, whose files are written below *folder*, and the head of its journal.

    Args:
        plan: from `plan_of`.
        folder: of the run.
        keys: of the servers at `url` and `baseline_url` of the options; they are sent nowhere else.
        offline: fetch nothing: neither what a wheel requires nor, when vLLM starts, models.
        refusal: returns why a recipe should not be started with the vLLM of an interpreter, empty where
            nothing speaks against it; only configurations that are compared are asked for.

    Raises:
        ConfigError: the server at the address cannot be checked by what was selected.
        EndpointError: the server at the address cannot be verified.
        IncompatibleOptionsError: the recipe's options are known not to work together.
        ServerError: the wheel could not be installed.
        NotInStoreError: the wheel requires something that must be fetched, and the network is off.
    """
    options = plan.options
    if options.url:
        plan, server, identity = await _at_address(plan, keys)
    elif options.simulator:
        arms, server, identity = simulated(options, plan.profile, folder)
        plan = replace(plan, arms=arms)
    else:
        plan, server, identity = _by_recipe(plan, folder, offline=offline, refusal=refusal)
    if options.reference:
        identity["reference"] = load_reference(Path(options.reference)).digest
    # Of the card that the server is started on; one at an address may be on another machine.
    card = "" if options.url or options.simulator else card_capability()
    return plan, Manifest(
        run=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        server=server,
        identity={**identity, "profile": _digest(plan.profile)},
        options=options.recorded,
        client={
            "sparkwright": __version__,
            "python": platform.python_version(),
            "client": f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform(terse=True)}",
            **({"card": card} if card else {}),
        },
        lacks=dict(plan.context.lacks),
    )


def _digest(model: Any) -> str:
    return digest_of(to_builtins(model))[:16]


# By address ---------------------------------------------------------------------------------------------


async def _at_address(plan: Plan, keys: tuple[str, str]) -> tuple[Plan, str, dict[str, str]]:
    """Return the plan with the servers at addresses and what the main one lacks, their title and identity."""
    options, deadlines = plan.options, plan.profile.deadlines
    log = Path(options.log) if options.log else None
    starters: dict[str, Start] = {}
    identity: dict[str, str] = {}
    lacks: dict[str, str] = {}
    for arm, url, key in zip(("main", "baseline"), (options.url, options.baseline_url), keys, strict=True):
        if not url:
            continue
        endpoint = Endpoint(url, options.model, key)
        async with open_session(endpoint) as session:
            known = await check_endpoint(session, endpoint, deadlines)
            endpoint = replace(endpoint, model=known.model)
            if not known.metrics:
                raise EndpointError(
                    f"{url} has no counters of vLLM at /metrics",
                    because="the page is absent, or another program's",
                    next_step="serve without --disable-log-stats, and let /metrics through any proxy",
                )
            if arm == "main":
                lacks = lacking_facts(options, known, read_log(log))
                # A tool parser that the recipe configures is not tried, so that a server without it fails.
                configured = plan.recipe is not None and TOOL_PARSER in plan.recipe.flags
                if "traffic" in plan.profile.checks and not configured:
                    lacks |= await lacking_tools(session, endpoint, deadlines)
            if arm == "main" and options.reference:
                require_same_model(load_reference(Path(options.reference)), known.model, url)
        starters[arm] = partial(_stand, endpoint, known, log if arm == "main" else None)
        identity |= {f"{arm}-vllm": known.version, f"{arm}-model": known.model}
    if lacks:
        identity["main-lacks"] = ", ".join(sorted(lacks))
    what = f"vLLM {identity['main-vllm']}".rstrip()
    return replace(plan.lacking(lacks), arms=Arms(starters)), f"{what} at {options.url}", identity


def _stand(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None, boot: int
) -> AbstractAsyncContextManager[MeasuredServer]:
    del boot  # this client did not start it
    return standing(endpoint, known, log)


# A recipe -----------------------------------------------------------------------------------------------


def _by_recipe(
    plan: Plan, folder: Path, *, offline: bool, refusal: Refusal | None
) -> tuple[Plan, str, dict[str, str]]:
    """Return the plan with servers that the recipe starts, their title and identity."""
    options = plan.options
    install = partial(environment_of, locked=not options.unlocked, offline=offline)
    recipe = load_recipe(options.recipe, options.use)
    main, identity = install(options.wheel or options.python, recipe, "wheel")
    baseline, baseline_recipe, title = main, without_speculation(recipe), recipe.title
    if options.against:
        baseline, other = install(options.against, recipe, "against")
        baseline_recipe, identity = recipe, {**identity, **other}
    if options.against_recipe:
        baseline_recipe = load_recipe(*recipe_and_use(options.against_recipe))
        identity = {**identity, "against-recipe": _digest(baseline_recipe)}
        title = f"{recipe.title} against {baseline_recipe.title}"

    served_by = {"main": (main, recipe), "baseline": (baseline, baseline_recipe)}
    refused: dict[str, str] = {}
    if options.vary:
        configurations = options.configurations
        served_by = {
            arm_of(configurations, index): (main, one.recipe) for index, one in enumerate(configurations)
        }
        refused = {arm: refusal(one, main.python) for arm, (_, one) in served_by.items()} if refusal else {}
        identity = {**identity, "configurations": str(len(configurations))}
        title = f"configurations of {recipe.title}"

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        environment, served = served_by[arm]
        if refused.get(arm):
            raise ServerError("it was not started", because=refused[arm])
        return start_server(
            as_requested(served),
            folder=folder / "servers" / f"{arm}-{boot}",
            python=environment.python,
            environment={**environment.server_variables(served), **(OFFLINE if offline else {})},
            deadlines=plan.profile.deadlines,
        )

    arms = Arms({arm: partial(start, arm) for arm in served_by})
    return replace(plan, arms=arms), title, {**identity, "recipe": _digest(recipe)}


def without_speculation(recipe: Recipe) -> Recipe:
    """Return *recipe* without speculation."""
    return msgspec.structs.replace(recipe, drafter="", speculative={})


def as_requested(recipe: Recipe) -> Recipe:
    """Return *recipe* with sampling as requests ask for it, without defaults of the checkpoint.

    What the recipe itself says of that stays.
    """
    return msgspec.structs.replace(recipe, flags={"generation-config": "vllm", **recipe.flags})


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
