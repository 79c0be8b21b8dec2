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
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.base.machine import card_capability, card_fields, look
from sparkwright.engine.cell import Deadlines, Load, Prompt, Tool
from sparkwright.engine.client.endpoint import ABSENT, Endpoint, EndpointFacts, check_endpoint, open_session
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.environment import Environment
from sparkwright.engine.findings import BASELINE, GPU, LOG, PREFIX_CACHE, SPECULATION, TOOLS
from sparkwright.engine.installed import read_installed
from sparkwright.engine.metrics.snapshot import parse_snapshot
from sparkwright.engine.observations import BootFacts, FailureKind, Sample
from sparkwright.engine.server.launch import start_server
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.verify.checks.reference import load_reference, require_same_model
from sparkwright.verify.checks.settings import arm_of
from sparkwright.verify.journal import Manifest
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import TOOL_PARSER, Plan
from sparkwright.verify.servers import MeasuredServer, read_log, simulated, standing

if TYPE_CHECKING:
    import aiohttp


Refusal = Callable[[Recipe, Path], str]

# Of huggingface_hub, by which vLLM fetches models: use what is cached, and fail where it is not.
OFFLINE = {"HF_HUB_OFFLINE": "1"}


async def prepare(
    plan: Plan,
    folder: Path,
    api_key: str = "",
    *,
    offline: bool = False,
    refusal: Refusal | None = None,
) -> tuple[Plan, Manifest]:
    """Return *plan* with its servers, whose files are written below *folder*, and the head of its journal.

    Args:
        plan: from `plan_of`.
        folder: of the run.
        api_key: of the server at an address; it is sent nowhere else.
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
        plan, server, identity = await _at_address(plan, api_key)
    elif options.simulator:
        arms, server, identity = simulated(options, plan.profile, folder)
        plan = replace(plan, arms=arms)
    else:
        plan, server, identity = _by_recipe(plan, folder, offline=offline, refusal=refusal)
    if options.reference:
        identity["reference"] = load_reference(Path(options.reference)).digest
    # Of the card that the server is started on; one at an address may be on another machine.
    elsewhere = options.url or options.simulator
    card = "" if elsewhere else card_capability()
    model, driver = (not elsewhere and card_fields("name", "driver_version")) or ("", "")
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
            **({"card-name": model, "driver": driver} if model else {}),
            "memory": f"{look().total_mib // 1024} GiB",
        },
        lacks=dict(plan.context.lacks),
    )


def _digest(model: Any) -> str:
    return digest_of(to_builtins(model))[:16]


# By address ---------------------------------------------------------------------------------------------


async def _at_address(plan: Plan, api_key: str) -> tuple[Plan, str, dict[str, str]]:
    """Return the plan with the server at an address and what it lacks, its title and identity."""
    options, deadlines = plan.options, plan.profile.deadlines
    log = Path(options.log) if options.log else None
    endpoint = Endpoint(options.url, options.model, api_key)
    async with open_session(endpoint) as session:
        known = await check_endpoint(session, endpoint, deadlines)
        endpoint = replace(endpoint, model=known.model)
        if not known.metrics:
            raise EndpointError(
                f"{options.url} has no counters of vLLM at /metrics",
                because=known.uncounted,
                next_step="serve without --disable-log-stats, and let /metrics through any proxy",
            )
        lacks = lacking_facts(options, known, read_log(log))
        # A tool parser that the recipe configures is not tried, so that a server without it fails.
        configured = plan.recipe is not None and TOOL_PARSER in plan.recipe.flags
        if "traffic" in plan.profile.checks and not configured:
            lacks |= await lacking_tools(session, endpoint, deadlines)
    if options.reference:
        require_same_model(load_reference(Path(options.reference)), known.model, options.url)
    identity = {
        "main-vllm": known.version,
        "main-model": known.model,
        "main-lacks": ", ".join(sorted(lacks)),
    }
    plan = replace(plan.lacking(lacks), arms={"main": lambda _: standing(endpoint, known, log)})
    return plan, f"{f'vLLM {known.version}'.rstrip()} at {options.url}", identity


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

    plan = replace(plan, arms={arm: partial(start, arm) for arm in served_by})
    return plan, title, {**identity, "recipe": _digest(recipe)}


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


# What a server at an address lacks ----------------------------------------------------------------------


_ATTEMPTS = 3
_TOKENS = 64
_REFUSED = ABSENT | {400, 422}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_LOAD = Load(chat=True, natural_stop=True, tools=(Tool(name="get_time", description="", parameters=_SCHEMA),))
_CALL = Prompt(name="trial", category="trial", text="Call get_time for the city “Oslo”.")


async def lacking_tools(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines
) -> dict[str, str]:
    """Return the reason for which the server at *endpoint* calls no tools; empty if it may.

    Only a server that refuses every one of several requests lacks them, or one whose prompts are as long
    without tools as with them: its chat template leaves them out. Else one that answers is taken at its word,
    so that a broken parser is found by the check.
    """

    async def send(load: Load) -> Sample:
        return await Exchange(
            endpoint, _CALL, load, max_tokens=_TOKENS, deadlines=deadlines, speed=1.0, refusable=True
        ).run(session)

    why = ""
    for _ in range(_ATTEMPTS):
        sample = await send(_LOAD)
        failure = sample.failure
        if failure is None and not sample.tool_calls:
            without = (await send(msgspec.structs.replace(_LOAD, tools=()))).prompt_tokens
            if not sample.prompt_tokens == without > 0:
                return {}
            why = f"the chat template leaves tools out: a prompt has {without} tokens with and without them"
        elif (
            failure is not None
            and failure.kind in {FailureKind.STATUS, FailureKind.IN_BAND}
            and failure.status in _REFUSED
        ):
            why = f"requests for tools are refused: {failure.detail}"
        else:
            return {}
    return {TOOLS: why}


def lacking_facts(options: VerifyOptions, known: EndpointFacts, log: BootFacts) -> dict[str, str]:
    """Return reasons by the capability that neither the user gave nor counters or log show.

    What a recipe configures is never lacking: the checks find that it is missing.

    Raises:
        EndpointError: the counters are not those of vLLM.
    """
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    lacks = {BASELINE: "a server at an address is verified alone"}
    if not options.log:
        lacks[LOG] = "the server's log was not given (--log)"
    elif max(log.total_gib, log.weights_gib, log.kv_gib) < 0 and log.graph_gib is None:
        lacks[GPU] = "the log names no memory of a GPU"
    counters = parse_snapshot(known.metrics, perf_counter_ns(), f"{options.url}/metrics")
    expected = log.speculative_tokens > 0 or (recipe is not None and bool(recipe.speculative))
    if counters.drafts < 0 and not expected:
        lacks[SPECULATION] = "this server does not speculate: it exposes no vllm:spec_decode_* series"
    cached = recipe is not None and recipe.flags.get("enable-prefix-caching") is True
    if counters.cache.get("enable_prefix_caching") == "False" and not cached:
        lacks[PREFIX_CACHE] = "this server has no prefix cache (enable_prefix_caching is False)"
    return lacks
