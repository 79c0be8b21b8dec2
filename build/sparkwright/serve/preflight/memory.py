"""The memory that a start needs, part by part, against what there is, and what speaks against it.

Weights are exact to the header, and the KV cache is laid out as vLLM does it. Activations, graphs and what
CUDA takes are estimates with a range, whose sources stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.rules import before
from sparkwright.serve.preflight.drafter import drafter_layers
from sparkwright.serve.preflight.facts import StartFacts
from sparkwright.serve.preflight.finding import Finding, finding
from sparkwright.serve.preflight.kv_plan import (
    REQUESTS,
    KvPlan,
    UnknownFormatError,
    flag_number,
    plan_kv,
)
from sparkwright.serve.preflight.machine import GIB, RESERVE_SHARE, Memory, in_gib
from sparkwright.serve.preflight.shape import LoadedWeights, ModelShape, loaded_weights, model_shape

_MOST_UTILIZATION = 1000  # beyond which it is not even a percentage
_UTILIZATION = 0.92  # vLLM's own --gpu-memory-utilization (config/cache.py, 0.24.0 and 0.33.0)
_LOGITS = 12  # bytes of a logit while it is sampled: 32 bits, and two copies
_MUCH_CACHE = 16 * GIB
_MUCH_SWAP = GIB

End = Literal["low", "likely", "high"]


@dataclass(frozen=True)
class Estimate:
    """An amount in GiB that is not known exactly; `likely` is the figure of the table."""

    low: float
    likely: float
    high: float
    source: str


@dataclass(frozen=True)
class BudgetRow:
    """One row of the table."""

    part: str
    gib: float | None
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Budget:
    """The demand of a start against the memory that it finds. Bytes that are not known are -1.

    Attributes:
        weights_source: the files and types that they were counted from.
        drafter: bytes of the drafter's; 0 without one.
        plan: layout of the KV cache; `None` where it is not known.
        plan_unknown: the reason for that.
        length: tokens of the longest request; 0 where vLLM fits it to the memory, or it is not known.
        longest: tokens of the longest context that the model allows; 0 where it does not say, or the recipe
            changes it.
        utilization: share of the memory that vLLM may take.
        fixed_pool: bytes of the KV cache, where the recipe fixes them; else -1.
        estimates: of what is neither weights nor KV cache, by part.
    """

    memory: Memory
    weights: int
    weights_source: str
    drafter: int
    drafter_source: str
    plan: KvPlan | None
    plan_unknown: str
    length: int
    longest: int
    requests: int
    utilization: float
    fixed_pool: int
    estimates: Mapping[str, Estimate]

    @property
    def limit(self) -> int:
        """The bytes that vLLM may take."""
        return int(self.utilization * self.memory.total)

    @property
    def fixed(self) -> int:
        """The bytes of the weights that are known."""
        return max(0, self.weights) + max(0, self.drafter)

    def pool(self, end: End = "likely") -> int:
        """Return the bytes left for the KV cache; *end* names which end of the estimates to take."""
        if self.fixed_pool >= 0:
            return self.fixed_pool
        return self.limit - self.fixed - self._estimated(end)

    @property
    def asked(self) -> int:
        """The bytes that the server takes: the limit, or all parts where the recipe fixes the pool."""
        if self.fixed_pool < 0:
            return self.limit
        return self.fixed + self.fixed_pool + self._estimated("likely")

    def _estimated(self, end: End) -> int:
        return int(sum(getattr(one, end) for one in self.estimates.values()) * GIB)


def make_budget(facts: StartFacts) -> Budget:
    """Return the demand of a start in this machine's memory, with the estimates for that kind of memory."""
    recipe, target, drafter, ranks = facts.recipe, facts.target, facts.drafter, facts.options.ranks
    shape = model_shape(target.text) if target else None
    plan, unknown = _plan(facts)
    loaded = loaded_weights(recipe, target) if target and target.shards else None
    drafted = loaded_weights(recipe, drafter, draft=True) if drafter and drafter.shards else None
    memory = facts.host.memory(int(facts.request.sidecars_gib * GIB))
    stretched = "hf-overrides" in recipe.flags or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in facts.request.variables
    utilization = recipe.flags.get("gpu-memory-utilization", _UTILIZATION)
    return Budget(
        memory,
        weights=loaded.bytes if loaded else -1,
        weights_source=_source(facts, recipe.model, loaded)
        + (f"; over {ranks} cards" if loaded and ranks > 1 else ""),
        drafter=drafted.bytes if drafted else (-1 if recipe.drafter and recipe.speculative else 0),
        drafter_source=_source(facts, recipe.drafter, drafted),
        plan=plan,
        plan_unknown=unknown,
        length=_length(recipe, shape),
        longest=shape.longest if shape and not stretched else 0,
        requests=flag_number(recipe, "max-num-seqs", REQUESTS),
        utilization=float(min(utilization, _MOST_UTILIZATION))
        if isinstance(utilization, (int, float))
        else _UTILIZATION,
        fixed_pool=_fixed_pool(facts),
        estimates=_estimates(facts, shape, memory.kind),
    )


def _length(recipe: Recipe, shape: ModelShape | None) -> int:
    if str(recipe.flags.get("max-model-len")) in {"-1", "auto"}:
        return 0
    return flag_number(recipe, "max-model-len", shape.longest if shape else 0)


def _source(facts: StartFacts, name: str, loaded: LoadedWeights | None) -> str:
    if loaded is None:
        return "made up when the server starts" if facts.recipe.made_up else "not on this machine"
    by_size = sorted(loaded.by_dtype.items(), key=lambda one: -one[1])
    types = ", ".join(f"{dtype} {size / GIB:.2f}" for dtype, size in by_size)
    left = f"; {loaded.left_out / GIB:.2f} not loaded" if loaded.left_out else ""
    where = "the hub's headers" if name in facts.remote else "headers"
    return f"{where}: {types} GiB{left}"


def _plan(facts: StartFacts) -> tuple[KvPlan | None, str]:
    """Return the layout of the KV cache, or why it is not known."""
    if facts.target is None:
        return None, "the model is not on this machine"
    shape, version = model_shape(facts.target.text), facts.engine.version if facts.engine else ""
    if shape.unknown:
        return None, f"the configuration has {shape.unknown}"
    # The mode `all` (vllm model_executor/models/config.py of 0.24.0).
    mamba = any(states.mamba for states in shape.states)
    if mamba and facts.options.prefix_caching and (not version or before(version, "0.33")):
        return None, "vLLM before 0.33 may keep a state of Mamba 2 for each block of a cached prefix"
    try:
        return plan_kv(shape, drafter_layers(facts.recipe, facts.target, facts.drafter), facts.options), ""
    except UnknownFormatError as error:
        return None, f"the size of a token in {error} is not known here"


def _fixed_pool(facts: StartFacts) -> int:
    """Return the bytes of a KV cache that the recipe fixes, or -1."""
    fixed = flag_number(facts.recipe, "kv-cache-memory-bytes", -1)
    space = facts.request.variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    if fixed < 0 and facts.host.card is None and space.replace(".", "", 1).isdecimal():
        return int(float(space) * GIB)
    return fixed


def _estimates(facts: StartFacts, shape: ModelShape | None, kind: str) -> dict[str, Estimate]:
    found = {"activations": _activations(facts, shape)}
    if kind != "host" and facts.recipe.flags.get("enforce-eager") is not True:
        found["CUDA graphs"] = Estimate(
            0.1, 1.0, 3.0, "estimate; a tiny pair's were put at 1.03 GiB, and took 0.16 (H200)"
        )
    if kind == "host":
        found["libraries"] = Estimate(0.5, 1.0, 2.0, "estimate: torch and vLLM in each process")
    elif kind == "card":
        found["CUDA"] = Estimate(0.2, 0.6, 1.8, "estimate; published logs have 0.20 to 1.79 GiB")
    else:
        source = "estimate: a unified card's free memory is the host's, so both count"
        found["CUDA, engine's host memory"] = Estimate(1.0, 3.0, 5.0, source)
    return found


def _activations(facts: StartFacts, shape: ModelShape | None) -> Estimate:
    """Return the peak of a batch: hidden states, the widest layer's, and the logits that are sampled."""
    recipe, options = facts.recipe, facts.options
    if facts.target is None or shape is None:
        return Estimate(0.1, 1.5, 6.0, "estimate: the configuration is not known")
    requests = flag_number(recipe, "max-num-seqs", REQUESTS)
    batch = options.batch * (6 * shape.hidden + 3 * shape.inner // options.ranks) * 2
    logits = requests * shape.vocabulary * _LOGITS // options.ranks
    drafts = requests * options.drafts * shape.vocabulary * 4 // options.ranks
    vision = (
        bool(facts.target.config.get("vision_config")) and recipe.flags.get("language-model-only") is not True
    )
    images = (0.0, 1.0, 6.0) if vision else (0.0, 0.0, 0.0)
    likely = (batch + logits) / GIB
    return Estimate(
        round(0.3 * likely + images[0], 3),
        round(likely + images[1], 3),
        round(2 * likely + drafts / GIB + images[2] + 0.2, 3),
        f"estimate: a batch of {options.batch} tokens, {requests} requests"
        + (", images profiled" if vision else ""),
    )


# The table -------------------------------------------------------------------------------------------------


def budget_rows(budget: Budget) -> tuple[BudgetRow, ...]:
    """Return the table: what takes memory, and what there is."""
    memory = budget.memory
    rows = [_exact("weights", budget.weights, budget.weights_source)]
    if budget.drafter:
        rows.append(_exact("drafter", budget.drafter, budget.drafter_source))
    rows += [
        BudgetRow(part, one.likely, one.source, one.low, one.high) for part, one in budget.estimates.items()
    ]
    rows += _cache_rows(budget)
    own = memory.kind == "card"
    if not own:
        rows.append(
            _exact("host's reserve", memory.reserve, f"{RESERVE_SHARE:.1%} of all memory, at least 2 GiB")
        )
    if memory.sidecars:
        rows.append(_exact("other programs", memory.sidecars, "--sidecars"))
    share = (
        "the recipe fixes the KV cache" if budget.fixed_pool >= 0 else f"{budget.utilization:g} of all memory"
    )
    rows.append(_exact("the server may take", budget.asked, share))
    what = {"unified": "memory of CPU and GPU", "card": "memory of the card"}.get(memory.kind, "memory")
    rows.append(_exact(what, memory.total, "nvidia-smi" if own else "MemTotal"))
    if memory.available >= 0:
        rows.append(_exact("available now", memory.available, "nvidia-smi" if own else "MemAvailable"))
    if memory.kind == "unified":
        rows.append(_exact("page cache", memory.cached, "Cached; part of what is available"))
    return tuple(rows)


def _cache_rows(budget: Budget) -> list[BudgetRow]:
    plan, exact = budget.plan, budget.fixed_pool >= 0
    pool, known = budget.pool(), budget.weights >= 0 or exact
    source = "fixed by the recipe" if exact else "what is left of the share"
    if plan is None or not plan.groups or not budget.length:
        unknown = budget.plan_unknown or "its size for a token is not known"
        return [BudgetRow("KV cache", pool / GIB if known else None, f"{source}; {unknown}")]
    one = plan.request_bytes(budget.length)
    rows = [_exact(f"KV cache, one request of {budget.length:,} tokens", one, _layout(plan))]
    if known:
        if pool > 0:
            fitting = pool // plan.block_bytes / plan.request_blocks(budget.length)
            tokens = plan.tokens(pool, budget.length)
            source += f": {tokens:,} tokens, {fitting:.2f} requests of {budget.length:,}"
        low, high = (None if exact else budget.pool(end) / GIB for end in ("high", "low"))
        rows.append(BudgetRow("KV cache, all", pool / GIB, source, low, high))
    return rows


def _layout(plan: KvPlan) -> str:
    parts = [
        f"{group.layers} layers of {group.what}" + (f" in blocks of {group.block}" if group.block else "")
        for group in plan.groups
    ]
    return f"{', '.join(parts)}; {plan.block_bytes / (1 << 20):.2f} MiB a block"


def _exact(part: str, size: int, source: str) -> BudgetRow:
    return BudgetRow(part, size / GIB if size >= 0 else None, source)


# Findings --------------------------------------------------------------------------------------------------


def check_memory(budget: Budget) -> Iterator[Finding]:
    """Yield findings about what does not fit, and what the host would not survive."""
    if 0 < budget.longest < budget.length:
        yield finding("context", length=budget.length, longest=budget.longest)
    yield from _weights(budget)
    yield from _cache(budget)
    yield from _host(budget)
    yield from _now(budget)


def _weights(budget: Budget) -> Iterator[Finding]:
    memory = budget.memory
    if budget.weights < 0:
        return
    drafter = f", the drafter {in_gib(budget.drafter)}" if budget.drafter > 0 else ""
    facts = {"weights": f"weights take {in_gib(budget.weights)}{drafter}", "total": in_gib(memory.total)}
    if budget.fixed > memory.total:
        yield finding("weights", **facts)
    elif budget.fixed_pool < 0 and budget.pool("low") <= 0:
        most = (memory.total - memory.reserve - memory.sidecars) / memory.total if memory.total else 0.0
        share, limit = budget.utilization, in_gib(budget.limit)
        yield finding("weights/alone", utilization=share, limit=limit, most=most, **facts)


def _cache(budget: Budget) -> Iterator[Finding]:
    plan = budget.plan
    best, likely, least = budget.pool("low"), budget.pool(), budget.pool("high")
    if plan is None or not plan.groups or not budget.length or (budget.weights < 0 and budget.fixed_pool < 0):
        return
    one = plan.request_bytes(budget.length)
    facts = {"length": budget.length, "one": in_gib(one), "best": in_gib(best)}
    if best <= 0:
        return
    if one > best:
        longest = plan.longest(max(0, likely), budget.length)
        yield finding("kv-cache/shorter" if longest else "kv-cache", longest=longest, **facts)
    elif one > likely:
        longest = plan.longest(max(0, least), budget.length)
        row = "kv-cache/unlikely-shorter" if longest else "kv-cache/unlikely"
        yield finding(row, longest=longest, likely=in_gib(likely), least=in_gib(least), **facts)
    else:
        yield from _requests(budget, plan, likely)


def _requests(budget: Budget, plan: KvPlan, pool: int) -> Iterator[Finding]:
    """Yield findings about how many requests fit at once."""
    blocks, wanted, length = pool // plan.block_bytes, budget.requests, budget.length
    states = sum(group.states * group.tables for group in plan.groups if group.states)
    if states and states * wanted > blocks:
        yield finding("kv-states", requests=wanted, states=states, blocks=blocks, most=blocks // states)
    fitting = blocks / plan.request_blocks(length)
    if fitting < wanted:
        sizes = {"one": in_gib(plan.request_bytes(length)), "pool": in_gib(pool)}
        yield finding("kv-requests", fitting=fitting, requests=wanted, length=length, **sizes)


def _host(budget: Budget) -> Iterator[Finding]:
    """Yield a finding where the host would be left with less than it needs."""
    memory = budget.memory
    left, needed = memory.total - budget.asked, memory.reserve + memory.sidecars
    if memory.kind == "card" or left >= needed:
        return
    most = max(0.0, (memory.total - needed) / memory.total) if memory.total else 0.0
    other = f" and other programs {in_gib(memory.sidecars)}" if memory.sidecars else ""
    shared = budget.fixed_pool < 0
    yield finding(
        "host-reserve" if shared else "host-reserve/fixed",
        taken=f"{budget.utilization:g}" if shared else in_gib(budget.asked),
        total=in_gib(memory.total),
        left=in_gib(left),
        needed=f"{in_gib(memory.reserve)}{other}",
        most=int(most * 100) / 100,
    )


def _now(budget: Budget) -> Iterator[Finding]:
    """Yield findings about the memory as it is now."""
    memory, asked = budget.memory, in_gib(budget.asked)
    if 0 <= memory.available < budget.asked:
        available, total = in_gib(memory.available), in_gib(memory.total)
        yield finding("available", asked=asked, available=available, total=total)
    if memory.kind == "unified" and memory.cached >= _MUCH_CACHE and 0 <= memory.free < budget.asked:
        yield finding("page-cache", cached=in_gib(memory.cached), free=in_gib(memory.free), asked=asked)
    if memory.kind != "card" and memory.swap_used >= _MUCH_SWAP:
        yield finding("swap", used=in_gib(memory.swap_used))
