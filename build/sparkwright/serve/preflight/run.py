"""Preflight as a whole: read the facts, lay out the budget, and collect every finding."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.recipes import TINY
from sparkwright.serve.preflight.budget import (
    GIB,
    UTILIZATION,
    Budget,
    BudgetRow,
    Demand,
    budget_rows,
    make_budget,
)
from sparkwright.serve.preflight.checkpoint import Checkpoint, cache_folder, find_folder, read_checkpoint
from sparkwright.serve.preflight.compilers import check_caches, check_compilers, check_dead, check_offline
from sparkwright.serve.preflight.completeness import check_files
from sparkwright.serve.preflight.drafter import PAGES_CARRY, check_draft_cache, check_drafter, drafter_layers
from sparkwright.serve.preflight.engine import EngineFacts, read_installed, read_wheel
from sparkwright.serve.preflight.finding import Finding, sorted_findings
from sparkwright.serve.preflight.host import HostFacts, read_host
from sparkwright.serve.preflight.kv_plan import (
    BLOCK,
    CPU_BLOCK,
    KvOptions,
    KvPlan,
    UnknownFormatError,
    plan_kv,
)
from sparkwright.serve.preflight.link import LinkFacts, check_link, read_link
from sparkwright.serve.preflight.machine_checks import (
    check_architecture,
    check_card,
    check_disk,
    check_ports,
    check_rules,
    check_wheel,
)
from sparkwright.serve.preflight.memory_checks import check_memory
from sparkwright.serve.preflight.quantization import check_quantization
from sparkwright.serve.preflight.shape import model_shape, whole_number
from sparkwright.serve.preflight.weights import LoadedWeights, loaded_weights, model_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkwright.recipes import Recipe
    from sparkwright.serve.preflight.compilers import DeadVariables
    from sparkwright.serve.preflight.shape import ModelShape

_BATCH, _REQUESTS = 8192, 256  # vLLM's own for an API server on a card of 70 GiB and more, about
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KV_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


@dataclass(frozen=True)
class PreflightRequest:
    """What is to be started.

    Attributes:
        recipe: the recipe, with the variant that was chosen.
        python: interpreter of the environment that has vLLM; `None` where there is none yet.
        wheel: the wheel that will be installed; read where `python` is `None`.
        host: facts about the machine; read here where `None`.
        engine: facts about vLLM; read from `python` or `wheel` where `None`.
        environment: variables of the server under the recipe's; this process's by default.
        sidecars_gib: memory that other programs will take beside the server.
        address: address to listen at.
        port: port to listen at; 0 for any.
        force: start in spite of predictions; nothing here depends on it but `require_clear`.
        dead_variables: returns the variables that the release does not read.
        nodes: machines that serve together; 0 takes the recipe's.
        link: facts of this end of the link between two machines; read here where `None`.
        peer: facts of the other end; `None` where they are not known.
    """

    recipe: Recipe
    python: Path | None = None
    wheel: Path | None = None
    host: HostFacts | None = None
    engine: EngineFacts | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    sidecars_gib: float = 0.0
    address: str = "127.0.0.1"
    port: int = 0
    force: bool = False
    dead_variables: DeadVariables | None = None
    nodes: int = 0
    link: LinkFacts | None = None
    peer: LinkFacts | None = None

    @property
    def machines(self) -> int:
        """The machines that serve together."""
        return self.nodes or self.recipe.nodes

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the server will see."""
        return {**self.environment, **self.recipe.environment}


@dataclass(frozen=True)
class PreflightReport:
    """What preflight found.

    Attributes:
        findings: the worst first.
        rows: the memory budget as a table.
        budget: the same as figures.
    """

    findings: tuple[Finding, ...]
    rows: tuple[BudgetRow, ...]
    budget: Budget


@dataclass(frozen=True)
class _Facts:
    """The facts that all checks share; a model is `None` where it is not on this machine."""

    request: PreflightRequest
    host: HostFacts
    engine: EngineFacts | None
    target: Checkpoint | None
    drafter: Checkpoint | None
    options: KvOptions

    @property
    def recipe(self) -> Recipe:
        return self.request.recipe


def run_preflight(request: PreflightRequest) -> tuple[Finding, ...]:
    """Return what speaks against starting *request*, the worst first; nothing is loaded or downloaded."""
    return inspect_start(request).findings


def inspect_start(request: PreflightRequest) -> PreflightReport:
    """Return findings and memory budget of *request*; nothing is loaded or downloaded."""
    recipe, variables = request.recipe, request.variables
    models = cache_folder(variables)
    host = request.host or read_host(variables, models=models, ports=(request.port,), address=request.address)
    engine, problems = _engine(request)
    target = _checkpoint(recipe.model, variables, str(recipe.flags.get("revision") or ""))
    drafter = _checkpoint(recipe.drafter, variables)
    facts = _Facts(request, host, engine, target, drafter, _kv_options(recipe, target, host, engine))
    budget = make_budget(_demand(facts), host.memory(int(request.sidecars_gib * GIB)))
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


def _checkpoint(name: str, variables: Mapping[str, str], revision: str = "") -> Checkpoint | None:
    if not name:
        return None
    if name.startswith(TINY):
        return _generated(name)
    folder = find_folder(name, variables, revision)
    return read_checkpoint(name, folder) if folder is not None else None


def _generated(name: str) -> Checkpoint:
    """Return the checkpoint that a generated model will have: a configuration and a tokenizer, no weights."""
    from sparkwright.verify.tiny import write_tiny_models

    with tempfile.TemporaryDirectory() as folder:
        target, drafter = write_tiny_models(Path(folder))
        return read_checkpoint(name, target if name == f"{TINY}target" else drafter)


def _machine(facts: _Facts) -> Iterator[Finding]:
    request, host = facts.request, facts.host
    yield from check_card(facts.recipe, host)
    yield from check_ports(host, request.address, (request.port,) if request.port else ())
    if facts.engine is not None:
        yield from check_rules(facts.recipe, host, facts.engine)
        yield from check_wheel(host, facts.engine)
        yield from check_architecture(facts.engine, facts.target, facts.drafter)
    yield from check_compilers(host, request.variables, facts.engine)
    yield from check_caches(host)
    yield from check_dead(request.variables, request.dead_variables)


def _models(facts: _Facts) -> Iterator[Finding]:
    recipe, variables = facts.recipe, facts.request.variables
    names = {recipe.model: facts.target, **({recipe.drafter: facts.drafter} if recipe.drafter else {})}
    real = {name: checkpoint for name, checkpoint in names.items() if not name.startswith(TINY)}
    yield from check_offline(variables, real)
    stated = {recipe.model: _stated_bytes(recipe)}
    yield from check_disk(facts.host, cache_folder(variables), real, stated)
    weights = recipe.flags.get("load-format") != "dummy"
    if facts.target is not None:
        own = not recipe.flags.get("tokenizer") and not recipe.flags.get("skip-tokenizer-init")
        yield from check_files(facts.target, weights=weights, tokenizer=own)
        if weights:
            yield from check_quantization(recipe, facts.target)
        if recipe.speculative and (facts.drafter is not None or not recipe.drafter):
            yield from check_drafter(recipe, facts.target, facts.drafter)
            yield from _draft_cache(facts, facts.target)
    if facts.drafter is not None:
        yield from check_files(facts.drafter, weights=weights, tokenizer=False)


def _draft_cache(facts: _Facts, target: Checkpoint) -> Iterator[Finding]:
    engine = facts.engine or EngineFacts()
    yield from check_draft_cache(
        model_shape(target.text),
        drafter_layers(facts.recipe, target, facts.drafter),
        facts.options,
        version=engine.version,
        carries=engine.carries,
    )


def _link(facts: _Facts) -> Iterator[Finding]:
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


# The demand -----------------------------------------------------------------------------------------


def _flag(recipe: Recipe, name: str, otherwise: int) -> int:
    """Return a flag that is a whole number, also as vLLM reads ``32k`` (1000) and ``32K`` (1024)."""
    value = recipe.flags.get(name)
    if isinstance(value, str) and (match := _HUMAN.fullmatch(value.strip())):
        number, unit = match.groups()
        return int(float(number) * _UNITS[unit])
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _length(recipe: Recipe, shape: ModelShape | None) -> int:
    """Return the tokens of the longest request; 0 where vLLM fits it to the memory, or it is not known."""
    if str(recipe.flags.get("max-model-len")) in {"-1", "auto"}:
        return 0
    return _flag(recipe, "max-model-len", shape.longest if shape else 0)


def _kv_options(
    recipe: Recipe, target: Checkpoint | None, host: HostFacts, engine: EngineFacts | None
) -> KvOptions:
    shape = model_shape(target.text) if target else None
    hybrid = shape is not None and shape.hybrid
    prefixes = recipe.flags.get("enable-prefix-caching")
    dtype = str(recipe.flags.get("kv-cache-dtype", "auto"))
    return KvOptions(
        dtype=_stated_kv(target) if dtype == "auto" and target else dtype,
        draft_dtype=str(recipe.speculative.get("kv_cache_dtype") or ""),
        model_dtype=model_dtype(recipe, target) if target else "bfloat16",
        block=_flag(recipe, "block-size", BLOCK if host.card else CPU_BLOCK),
        batch=_flag(recipe, "max-num-batched-tokens", _BATCH),
        drafts=whole_number(recipe.speculative, "num_speculative_tokens"),
        # By default models with states have it off (vllm config/model.py).
        prefix_caching=prefixes if isinstance(prefixes, bool) else not hybrid,
        ranks=max(1, _flag(recipe, "tensor-parallel-size", 1)),
        saves=engine is None or PAGES_CARRY in engine.carries,
    )


def _stated_kv(target: Checkpoint) -> str:
    """Return the type of KV cache that the checkpoint asks for; ``auto`` where it does not."""
    for config in (target.config.get("quantization_config"), target.modelopt.get("quantization")):
        if isinstance(config, dict) and (stated := config.get("kv_cache_quant_algo")):
            return _KV_TYPES.get(str(stated).lower(), "auto")
    return "auto"


def _demand(facts: _Facts) -> Demand:
    recipe, target, options = facts.recipe, facts.target, facts.options
    shape = model_shape(target.text) if target else None
    plan, unknown = _plan(facts)
    loaded = loaded_weights(recipe, target) if target and target.shards else None
    drafter = facts.drafter
    drafted = loaded_weights(recipe, drafter, draft=True) if drafter and drafter.shards else None
    utilization = recipe.flags.get("gpu-memory-utilization", UTILIZATION)
    return Demand(
        weights=loaded.bytes if loaded else _stated_bytes(recipe) // options.ranks,
        weights_source=_source(recipe, loaded, options.ranks),
        drafter=drafted.bytes if drafted else (-1 if recipe.drafter and recipe.speculative else 0),
        drafter_source=_drafter_source(recipe, drafted),
        plan=plan,
        plan_unknown=unknown,
        length=_length(recipe, shape),
        requests=_flag(recipe, "max-num-seqs", _REQUESTS),
        shape=shape,
        batch=options.batch,
        drafts=options.drafts,
        stretched="hf-overrides" in recipe.flags
        or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in facts.request.variables,
        eager=recipe.flags.get("enforce-eager") is True,
        vision=bool(target and target.config.get("vision_config"))
        and recipe.flags.get("language-model-only") is not True,
        utilization=float(utilization) if isinstance(utilization, (int, float)) else UTILIZATION,
        pool=_fixed_pool(facts),
        ranks=options.ranks,
    )


def _stated_bytes(recipe: Recipe) -> int:
    """Return the bytes of the target's weights by its page, as the recipe has them; -1 where it has not."""
    return int(recipe.about.weights_gb * 10**9) if recipe.about and recipe.about.weights_gb else -1


def _source(recipe: Recipe, loaded: LoadedWeights | None, ranks: int) -> str:
    over = f"; over {ranks} cards" if ranks > 1 else ""
    if loaded is None and _stated_bytes(recipe) > 0:
        return f"the model's page; not on this machine{over}"
    return _drafter_source(recipe, loaded) + (over if loaded else "")


def _drafter_source(recipe: Recipe, loaded: LoadedWeights | None) -> str:
    if loaded is None:
        return "made up when the server starts" if recipe.made_up else "not on this machine"
    types = ", ".join(
        f"{dtype} {size / GIB:.2f}"
        for dtype, size in sorted(loaded.by_dtype.items(), key=lambda one: -one[1])
    )
    left = f"; {loaded.left_out / GIB:.2f} not loaded" if loaded.left_out else ""
    return f"headers: {types} GiB{left}"


def _plan(facts: _Facts) -> tuple[KvPlan | None, str]:
    if facts.target is None:
        return None, "the model is not on this machine"
    shape = model_shape(facts.target.text)
    if shape.unknown:
        return None, f"the configuration has {shape.unknown}"
    try:
        return plan_kv(shape, drafter_layers(facts.recipe, facts.target, facts.drafter), facts.options), ""
    except UnknownFormatError as error:
        return None, f"the size of a token in {error} is not known here"


def _fixed_pool(facts: _Facts) -> int:
    """Return the bytes of a KV cache that the recipe fixes, or -1."""
    fixed = _flag(facts.recipe, "kv-cache-memory-bytes", -1)
    space = facts.request.variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    if fixed < 0 and facts.host.card is None and space.replace(".", "", 1).isdecimal():
        return int(float(space) * GIB)
    return fixed
