"""Preflight as a whole: read the facts, lay out the budget, and collect every finding."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkwright.engine.installed import EngineFacts
from sparkwright.engine.models import cache_folder
from sparkwright.engine.release import ask_installed
from sparkwright.recipes.recipe import TINY, Recipe
from sparkwright.serve.child.peer import list_devices
from sparkwright.serve.preflight.checkpoint import find_folder
from sparkwright.serve.preflight.drafter import (
    check_draft_cache,
    check_drafter,
    drafter_layers,
)
from sparkwright.serve.preflight.engine_checks import (
    check_compilers,
    check_engine,
    check_latent,
    check_options,
)
from sparkwright.serve.preflight.facts import PreflightRequest, StartFacts, read_facts
from sparkwright.serve.preflight.files import check_files, check_quantization
from sparkwright.serve.preflight.finding import LEVELS, Finding
from sparkwright.serve.preflight.hub import check_disk, check_fetched
from sparkwright.serve.preflight.link import check_link, read_link
from sparkwright.serve.preflight.machine import check_machine
from sparkwright.serve.preflight.memory import Budget, BudgetRow, budget_rows, check_memory, make_budget
from sparkwright.serve.preflight.shape import model_shape
from sparkwright.store.paths import open_store

OF_HOST = frozenset({"glibc", "port", "room"})
"""Checks of the host alone, whatever is served."""
_OF_THE_MACHINE = frozenset({"card", "driver", "port"})
EARLY = OF_HOST | {
    "available", "card", "compiler", "disk", "driver", "headers", "host-reserve",
    "model-fetched", "model-missing", "model-refused", "weights",
}  # fmt: skip
"""Checks that no vLLM has to be known for."""


@dataclass(frozen=True)
class PreflightReport:
    """The findings of a start, the worst first, and its memory budget, as a table and as figures."""

    findings: tuple[Finding, ...]
    rows: tuple[BudgetRow, ...]
    budget: Budget


def run_preflight(request: PreflightRequest) -> tuple[Finding, ...]:
    """Return what speaks against starting *request*, the worst first; nothing is loaded or downloaded."""
    return inspect_start(request).findings


def inspect_start(request: PreflightRequest) -> PreflightReport:
    """Return findings and memory budget of *request*; of models nothing but headers is fetched."""
    facts = read_facts(request)
    budget = make_budget(facts)
    found = [*facts.problems, *_machine(facts), *_models(facts), *_link(facts)]
    if not request.recipe.made_up:
        found += check_memory(budget)
    found.sort(key=lambda one: LEVELS.index(one.level))  # and within a level in the order of the checks
    return PreflightReport(tuple(found), budget_rows(budget), budget)


def look_before(
    recipe: Recipe, *, python: Path | None = None, wheel: Path | None = None, offline: bool = False
) -> Sequence[Finding]:
    """Return what speaks against serving *recipe* at any free port of this machine.

    Of a model that is not here, the machine alone is judged; recipes with generated weights are left to the
    server.
    """
    if recipe.made_up:
        return ()
    environment = {**os.environ, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    ask = partial(ask_installed, open_store())
    found = run_preflight(PreflightRequest(recipe, python, wheel, environment=environment, ask=ask))
    here = find_folder(recipe.model, environment) is not None
    return found if here else [one for one in found if one.check in _OF_THE_MACHINE]


def _machine(facts: StartFacts) -> Iterator[Finding]:
    yield from check_machine(facts.recipe, facts.host, facts.request.address, facts.request.port)
    yield from check_engine(facts)
    yield from check_compilers(facts)
    yield from check_options(facts.request, facts.engine)


def _models(facts: StartFacts) -> Iterator[Finding]:
    recipe, variables, target = facts.recipe, facts.request.variables, facts.target
    names = {recipe.model: target, **({recipe.drafter: facts.drafter} if recipe.drafter else {})}
    real = {name: checkpoint for name, checkpoint in names.items() if not name.startswith(TINY)}
    yield from check_fetched(variables, {name: facts.remote[name] for name in real if name in facts.remote})
    yield from check_disk(facts.host.disk_free, cache_folder(variables), real, facts.remote)
    here = target if facts.here(recipe.model) else None
    weights = recipe.flags.get("load-format") != "dummy"
    yield from check_latent(facts)
    if target is not None:
        own = not recipe.flags.get("tokenizer") and not recipe.flags.get("skip-tokenizer-init")
        if here is not None:
            yield from check_files(here, weights=weights, tokenizer=own)
        if weights:
            yield from check_quantization(recipe, target)
        if recipe.speculative and (facts.drafter is not None or not recipe.drafter):
            yield from check_drafter(recipe, target, facts.drafter)
            layers, engine = drafter_layers(recipe, target, facts.drafter), facts.engine or EngineFacts()
            yield from check_draft_cache(model_shape(target.text), layers, facts.options, engine)
    if facts.drafter is not None and facts.here(recipe.drafter):
        yield from check_files(facts.drafter, weights=weights, tokenizer=False)


def _link(facts: StartFacts) -> Iterator[Finding]:
    request = facts.request
    if (request.nodes or request.recipe.nodes) > 1:
        nccl = facts.engine.nccl if facts.engine else ""
        own = read_link(request.variables, list_devices(), host=platform.node() or "this machine", nccl=nccl)
        yield from check_link((own,))
