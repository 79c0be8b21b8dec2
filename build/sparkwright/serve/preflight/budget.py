"""The memory that a recipe needs, part by part, against the memory that there is.

Weights are exact to the header, and the KV cache is laid out as vLLM does it. Activations, graphs and what
CUDA takes are estimates with a range, whose sources stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwright.serve.preflight.kv_plan import KvPlan
from sparkwright.serve.preflight.shape import ModelShape

GIB = 1 << 30
UTILIZATION = 0.92
"""vLLM's own --gpu-memory-utilization (config/cache.py, 0.24.0 and 0.33.0)."""

RESERVE_SHARE = 0.115
"""Share of a unified machine's memory that the host needs: 14 GiB of a Spark's 121.7. Published recipes for
one Spark go from 0.60 to 0.88; at 0.88 that is what is left."""

_SMALLEST_RESERVE_GIB = 2.0
_LOGITS = 12  # bytes of a logit while it is sampled: 32 bits, and two copies


@dataclass(frozen=True)
class Estimate:
    """An amount that is not known exactly, in GiB.

    Attributes:
        low: at least this much.
        likely: the figure of the table.
        high: at most this much.
    """

    low: float
    likely: float
    high: float
    source: str


@dataclass(frozen=True)
class BudgetRow:
    """One row of the table.

    Attributes:
        part: what takes memory.
        gib: how much; `None` where it is not known.
        source: what the figure rests on.
        low: lower end of an estimate; equal to `gib` for an exact figure.
        high: upper end.
    """

    part: str
    gib: float | None
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Demand:
    """The demand of a recipe.

    Attributes:
        weights: bytes of the target's weights; -1 where they are not known.
        weights_source: the files and types that they were counted from.
        drafter: bytes of the drafter's; 0 without one, -1 where they are not known.
        plan: layout of the KV cache; `None` where it is not known.
        length: tokens of the longest request.
        shape: sizes of the target.
        batch: tokens of the largest batch.
        drafts: tokens drafted in a step.
        stretched: true if the recipe changes how long a context may be.
        eager: true without CUDA graphs.
        vision: true if images or sound can be sent.
        utilization: share of the memory that vLLM may take.
        pool: bytes of the KV cache, where the recipe fixes them; else -1.
        ranks: cards that share the model.
    """

    weights: int = -1
    weights_source: str = ""
    drafter: int = 0
    drafter_source: str = ""
    plan: KvPlan | None = None
    plan_unknown: str = ""
    length: int = 0
    requests: int = 256
    shape: ModelShape | None = None
    batch: int = 8192
    drafts: int = 0
    stretched: bool = False
    eager: bool = False
    vision: bool = False
    utilization: float = UTILIZATION
    pool: int = -1
    ranks: int = 1


@dataclass(frozen=True)
class Memory:
    """The memory of the machine, or of its card, in bytes.

    Attributes:
        kind: ``unified`` for a card that shares the host's, ``card`` for one with its own, ``host`` without.
        available: what a program can have now; -1 where it is not known.
        free: what is free without dropping the page cache; -1 where it is not known.
        cached: the page cache.
        sidecars: what other programs will take on top, as the user says.
    """

    kind: str
    total: int
    available: int = -1
    free: int = -1
    cached: int = 0
    swap_used: int = 0
    sidecars: int = 0

    @property
    def reserve(self) -> int:
        """The bytes that the host needs for itself and the server's processes; 0 on a card of its own."""
        if self.kind == "card":
            return 0
        return max(int(RESERVE_SHARE * self.total), int(_SMALLEST_RESERVE_GIB * GIB))


@dataclass(frozen=True)
class Budget:
    """A demand against a memory.

    Attributes:
        estimates: of what is neither weights nor KV cache, by part.
    """

    demand: Demand
    memory: Memory
    estimates: dict[str, Estimate] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """The bytes that vLLM may take."""
        return int(self.demand.utilization * self.memory.total)

    @property
    def fixed(self) -> int:
        """The bytes of the weights that are known."""
        return max(0, self.demand.weights) + max(0, self.demand.drafter)

    def pool(self, end: str = "likely") -> int:
        """Return the bytes left for the KV cache; *end* names which end of the estimates to take."""
        if self.demand.pool >= 0:
            return self.demand.pool
        taken = sum(getattr(estimate, end) for estimate in self.estimates.values())
        return self.limit - self.fixed - int(taken * GIB)

    @property
    def asked(self) -> int:
        """The bytes that the server takes: the limit, or all parts where the recipe fixes the pool."""
        if self.demand.pool < 0:
            return self.limit
        return self.fixed + self.demand.pool + int(sum(one.likely for one in self.estimates.values()) * GIB)


def make_budget(demand: Demand, memory: Memory) -> Budget:
    """Return the budget of *demand* in *memory*, with the estimates for that kind of memory."""
    estimates = {"activations": _activations(demand)}
    if memory.kind != "host" and not demand.eager:
        estimates["CUDA graphs"] = Estimate(
            0.1, 1.0, 3.0, "estimate; a tiny pair's were put at 1.03 GiB, and took 0.16 (H200)"
        )
    estimates[{"host": "libraries", "card": "CUDA"}.get(memory.kind, "CUDA, engine's host memory")] = {
        "host": Estimate(0.5, 1.0, 2.0, "estimate: torch and vLLM in each process"),
        "card": Estimate(0.2, 0.6, 1.8, "estimate; published logs have 0.20 to 1.79 GiB"),
    }.get(
        memory.kind,
        Estimate(1.0, 3.0, 5.0, "estimate: a unified card's free memory is the host's, so both count"),
    )
    return Budget(demand, memory, estimates)


def _activations(demand: Demand) -> Estimate:
    """Return the peak of a batch: hidden states, the widest layer's, and the logits that are sampled."""
    source = f"estimate: a batch of {demand.batch} tokens, {demand.requests} requests"
    shape = demand.shape
    if shape is None:
        return Estimate(0.1, 1.5, 6.0, "estimate: the configuration is not known")
    batch = demand.batch * (6 * shape.hidden + 3 * shape.inner // demand.ranks) * 2
    logits = demand.requests * shape.vocabulary * _LOGITS // demand.ranks
    drafts = demand.requests * demand.drafts * shape.vocabulary * 4 // demand.ranks
    images = (0.0, 1.0, 6.0) if demand.vision else (0.0, 0.0, 0.0)
    likely = (batch + logits) / GIB
    return Estimate(
        round(0.3 * likely + images[0], 3),
        round(likely + images[1], 3),
        round(2 * likely + drafts / GIB + images[2] + 0.2, 3),
        source + (", images profiled" if demand.vision else ""),
    )


def budget_rows(budget: Budget) -> tuple[BudgetRow, ...]:
    """Return the table: what takes memory, and what there is."""
    demand, memory = budget.demand, budget.memory
    rows = [_exact("weights", demand.weights, demand.weights_source)]
    if demand.drafter:
        rows.append(_exact("drafter", demand.drafter, demand.drafter_source))
    rows += [
        BudgetRow(part, one.likely, one.source, one.low, one.high) for part, one in budget.estimates.items()
    ]
    rows += _cache_rows(budget)
    if memory.kind != "card":
        rows.append(
            _exact("host's reserve", memory.reserve, f"{RESERVE_SHARE:.1%} of all memory, at least 2 GiB")
        )
    if memory.sidecars:
        rows.append(_exact("other programs", memory.sidecars, "--sidecars"))
    share = "the recipe fixes the KV cache" if demand.pool >= 0 else f"{demand.utilization:g} of all memory"
    rows.append(_exact("the server may take", budget.asked, share))
    what = {"unified": "memory of CPU and GPU", "card": "memory of the card"}.get(memory.kind, "memory")
    rows.append(_exact(what, memory.total, "MemTotal" if memory.kind != "card" else "nvidia-smi"))
    if memory.available >= 0:
        source = "MemAvailable" if memory.kind != "card" else "nvidia-smi"
        rows.append(_exact("available now", memory.available, source))
    if memory.kind == "unified":
        rows.append(_exact("page cache", memory.cached, "Cached; part of what is available"))
    return tuple(rows)


def _cache_rows(budget: Budget) -> list[BudgetRow]:
    demand, plan = budget.demand, budget.demand.plan
    known = demand.weights >= 0 or demand.pool >= 0
    pool, least, most = (budget.pool(end) for end in ("likely", "high", "low"))
    source = "fixed by the recipe" if demand.pool >= 0 else "what is left of the share"
    if plan is None or not plan.groups or not demand.length:
        unknown = demand.plan_unknown or "its size for a token is not known"
        return [BudgetRow("KV cache", pool / GIB if known else None, f"{source}; {unknown}")]
    one = plan.request_bytes(demand.length)
    rows = [_exact(f"KV cache, one request of {demand.length:,} tokens", one, _layout(plan))]
    if not known:
        return rows
    if pool > 0:
        fitting = pool // plan.block_bytes / plan.request_blocks(demand.length)
        source += (
            f": {plan.tokens(pool, demand.length):,} tokens, {fitting:.2f} requests of {demand.length:,}"
        )
    exact = demand.pool >= 0
    rows.append(
        BudgetRow(
            "KV cache, all",
            pool / GIB,
            source,
            None if exact else least / GIB,
            None if exact else most / GIB,
        )
    )
    return rows


def _layout(plan: KvPlan) -> str:
    parts = [
        f"{group.layers} layers of {group.what}" + (f" in blocks of {group.block}" if group.block else "")
        for group in plan.groups
    ]
    return f"{', '.join(parts)}; {plan.block_bytes / (1 << 20):.2f} MiB a block"


def _exact(part: str, size: int, source: str) -> BudgetRow:
    return BudgetRow(part, size / GIB if size >= 0 else None, source)
