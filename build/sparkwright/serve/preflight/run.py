"""Preflight as a whole: read the facts, lay out the budget, and collect every finding."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.installed import EngineFacts, read_installed, read_wheel
from sparkwright.engine.server.download import cache_folder
from sparkwright.recipes import TINY
from sparkwright.serve.preflight.budget import (
    GIB,
    Budget,
    BudgetRow,
    budget_rows,
    make_budget,
)
from sparkwright.serve.preflight.checkpoint import Checkpoint, find_folder, read_checkpoint
from sparkwright.serve.preflight.compilers import check_caches, check_compilers
from sparkwright.serve.preflight.completeness import check_files
from sparkwright.serve.preflight.demand import kv_options, make_demand
from sparkwright.serve.preflight.draft_runner import check_draft_runner
from sparkwright.serve.preflight.drafter import (
    check_draft_cache,
    check_drafter,
    drafter_layers,
)
from sparkwright.serve.preflight.fetching import check_disk, check_offline, is_offline, is_repository
from sparkwright.serve.preflight.finding import Finding, sorted_findings
from sparkwright.serve.preflight.host import read_host
from sparkwright.serve.preflight.hub import RemoteModel
from sparkwright.serve.preflight.latent import check_latent
from sparkwright.serve.preflight.link import LinkFacts, check_link, read_link
from sparkwright.serve.preflight.machine_checks import (
    check_architecture,
    check_card,
    check_loader,
    check_ports,
    check_rules,
    check_wheel,
)
from sparkwright.serve.preflight.memory_checks import check_memory
from sparkwright.serve.preflight.options import check_options
from sparkwright.serve.preflight.quantization import check_quantization
from sparkwright.serve.preflight.request import PreflightRequest, StartFacts
from sparkwright.serve.preflight.shape import model_shape
from sparkwright.serve.preflight.template import check_template

EARLY = frozenset(
    {"card", "disk", "driver", "model-fetched", "model-missing", "model-refused", "port", "weights"}
)
"""Checks that no vLLM has to be known for."""


@dataclass(frozen=True)
class PreflightReport:
    """The findings and the memory budget of a start.

    Attributes:
        findings: the worst first.
        rows: the memory budget as a table.
        budget: the same as figures.
    """

    findings: tuple[Finding, ...]
    rows: tuple[BudgetRow, ...]
    budget: Budget


def run_preflight(request: PreflightRequest) -> tuple[Finding, ...]:
    """Return what speaks against starting *request*, the worst first; nothing is loaded or downloaded."""
    return inspect_start(request).findings


def inspect_start(request: PreflightRequest) -> PreflightReport:
    """Return findings and memory budget of *request*; of models nothing but headers is fetched."""
    recipe, variables = request.recipe, request.variables
    models = cache_folder(variables)
    host = request.host or read_host(variables, models=models, ports=(request.port,), address=request.address)
    engine, problems = _engine(request)
    remote: dict[str, RemoteModel] = {}
    target = _checkpoint(request, recipe.model, remote, str(recipe.flags.get("revision") or ""))
    drafter = _checkpoint(request, recipe.drafter, remote)
    options = kv_options(recipe, target, host, engine)
    facts = StartFacts(request, host, engine, target, drafter, options, remote)
    budget = make_budget(make_demand(facts), host.memory(int(request.sidecars_gib * GIB)))
    found = [*problems, *_machine(facts), *_models(facts), *_link(facts)]
    if not recipe.made_up:
        found += check_memory(budget)
    return PreflightReport(sorted_findings(found), budget_rows(budget), budget)


def _engine(request: PreflightRequest) -> tuple[EngineFacts | None, list[Finding]]:
    if request.engine is not None:
        return request.engine, []
    try:
        if request.python is not None:
            return read_installed(request.python), []
        if request.wheel is not None:
            return read_wheel(request.wheel), []
    except SparkwrightError as error:
        return None, [Finding("engine", "refuse", error.what, error.because, error.next_step)]
    return None, []


def _checkpoint(
    request: PreflightRequest, name: str, remote: dict[str, RemoteModel], revision: str = ""
) -> Checkpoint | None:
    """Return the model *name*; *remote* gets what the hub says of it if it is not on this machine."""
    if not name:
        return None
    if name.startswith(TINY):
        return _generated(name)
    folder = find_folder(name, request.variables, revision)
    if folder is not None:
        return read_checkpoint(name, folder)
    asked = request.hub is not None and is_repository(name) and not is_offline(request.variables)
    remote[name] = request.hub.read(name, revision) if request.hub and asked else RemoteModel()
    return remote[name].checkpoint


def _generated(name: str) -> Checkpoint:
    """Return the checkpoint that a generated model will have: a configuration and a tokenizer, no weights."""
    from sparkwright.engine.tiny import write_tiny_models

    with tempfile.TemporaryDirectory() as folder:
        target, drafter = write_tiny_models(Path(folder))
        return read_checkpoint(name, target if name == f"{TINY}target" else drafter)


def _machine(facts: StartFacts) -> Iterator[Finding]:
    request, host = facts.request, facts.host
    yield from check_card(facts.recipe, host)
    yield from check_ports(host, request.address, (request.port,) if request.port else ())
    if facts.engine is not None:
        yield from check_rules(facts.recipe, host, facts.engine, facts.target)
        yield from check_wheel(host, facts.engine)
        yield from check_loader(facts.recipe, facts.engine)
        yield from check_architecture(facts.engine, facts.target, facts.drafter)
    yield from check_compilers(host, request, facts.engine, facts.target)
    yield from check_caches(host)
    if request.ask is not None and facts.engine is not None:
        yield from check_options(facts.recipe, request.environment, request.python, facts.engine, request.ask)


def _models(facts: StartFacts) -> Iterator[Finding]:
    recipe, variables = facts.recipe, facts.request.variables
    names = {recipe.model: facts.target, **({recipe.drafter: facts.drafter} if recipe.drafter else {})}
    real = {name: checkpoint for name, checkpoint in names.items() if not name.startswith(TINY)}
    yield from check_offline(variables, real, facts.remote)
    yield from check_disk(facts.host, cache_folder(variables), real, facts.remote)
    here = None if recipe.model in facts.remote else facts.target
    if not recipe.model.startswith(TINY):
        yield from check_template(recipe, here)
    weights = recipe.flags.get("load-format") != "dummy"
    yield from check_latent(facts)
    if facts.target is not None:
        own = not recipe.flags.get("tokenizer") and not recipe.flags.get("skip-tokenizer-init")
        if here is not None:
            yield from check_files(here, weights=weights, tokenizer=own)
        if weights:
            yield from check_quantization(recipe, facts.target)
        if recipe.speculative and (facts.drafter is not None or not recipe.drafter):
            yield from check_drafter(recipe, facts.target, facts.drafter)
            yield from _draft_cache(facts, facts.target)
            yield from check_draft_runner(facts)
    if facts.drafter is not None and recipe.drafter not in facts.remote:
        yield from check_files(facts.drafter, weights=weights, tokenizer=False)


def _draft_cache(facts: StartFacts, target: Checkpoint) -> Iterator[Finding]:
    engine = facts.engine or EngineFacts()
    yield from check_draft_cache(
        model_shape(target.text),
        drafter_layers(facts.recipe, target, facts.drafter),
        facts.options,
        version=engine.version,
        carries=engine.carries,
    )


def _link(facts: StartFacts) -> Iterator[Finding]:
    request = facts.request
    if request.machines > 1:
        here = request.link or this_end(request, facts.engine)
        yield from check_link((here, *([request.peer] if request.peer else [])))


def this_end(request: PreflightRequest, engine: EngineFacts | None = None) -> LinkFacts:
    """Return the facts of this end of the link between two machines.

    Args:
        request: the start.
        engine: the vLLM that would serve; read from the request's wheel or interpreter where `None`.
    """
    engine = engine or _engine(request)[0] or EngineFacts()
    return read_link(
        request.variables,
        host=platform.node() or "this machine",
        nccl=engine.nccl,
        wheel=engine.files,
        version=engine.version,
    )
