"""Findings of the memory budget: what does not fit, and what the host would not survive."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.serve.preflight.budget import GIB, Budget, Demand, Memory
from sparkwright.serve.preflight.finding import Finding

DROP = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
_MUCH_CACHE = 16 * GIB
_MUCH_SWAP = GIB
_FEW_REQUESTS = 1.0


def check_memory(budget: Budget) -> Iterator[Finding]:
    """Yield the findings of *budget*."""
    yield from _context(budget.demand)
    yield from _weights(budget)
    yield from _cache(budget)
    yield from _host(budget)
    yield from _now(budget)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def _context(demand: Demand) -> Iterator[Finding]:
    longest = demand.shape.longest if demand.shape else 0
    if longest and demand.length > longest and not demand.stretched:
        yield Finding(
            "context",
            "refuse",
            f"the model has no context of {demand.length:,} tokens",
            f"its configuration goes to {longest:,}: vLLM refuses more",
            f"lower max-model-len to {longest:,}, or stretch its positions by hf-overrides (YaRN)",
            liftable=True,
        )


def _weights(budget: Budget) -> Iterator[Finding]:
    demand, memory = budget.demand, budget.memory
    if demand.weights < 0:
        return
    known = f"weights take {_gib(demand.weights)}"
    if demand.drafter > 0:
        known += f", the drafter {_gib(demand.drafter)}"
    if budget.fixed > memory.total:
        yield Finding(
            "weights",
            "refuse",
            "the weights do not fit into the memory",
            f"{known}, and there are {_gib(memory.total)}",
            "use a smaller or more strongly quantized checkpoint, or more machines (tensor-parallel-size)",
        )
    elif demand.pool < 0 and budget.pool("low") <= 0:
        most = (memory.total - memory.reserve - memory.sidecars) / memory.total if memory.total else 0.0
        yield Finding(
            "weights",
            "refuse",
            "the weights leave no memory for a KV cache",
            f"{known}, and {demand.utilization:g} of {_gib(memory.total)} are {_gib(budget.limit)}",
            f"raise gpu-memory-utilization, up to {most:.2f} here; or use a smaller checkpoint",
            liftable=True,
        )


def _cache(budget: Budget) -> Iterator[Finding]:
    demand, plan = budget.demand, budget.demand.plan
    if plan is None or not plan.groups or not demand.length or (demand.weights < 0 and demand.pool < 0):
        return
    one = plan.request_bytes(demand.length)
    best, likely = budget.pool("low"), budget.pool()
    if best <= 0:
        return
    if one > best:
        longest = plan.longest(max(0, likely), demand.length)
        lower = f"lower max-model-len to {longest:,} or less, " if longest else ""
        yield Finding(
            "kv-cache",
            "refuse",
            f"the KV cache does not hold one request of {demand.length:,} tokens",
            f"it takes {_gib(one)}, and at most {_gib(best)} are left: vLLM ends after it has loaded",
            f"{lower}raise gpu-memory-utilization, or use a smaller kv-cache-dtype",
            liftable=True,
        )
    elif one > likely:
        surely = plan.longest(max(0, budget.pool("high")), demand.length)
        yield Finding(
            "kv-cache",
            "warn",
            f"the KV cache may not hold one request of {demand.length:,} tokens",
            f"it takes {_gib(one)}, and {_gib(likely)} are likely left, "
            f"{_gib(budget.pool('high'))} to {_gib(best)}",
            f"lower max-model-len to {surely:,}" if surely else "raise gpu-memory-utilization",
        )
    else:
        yield from _requests(budget, likely)


def _requests(budget: Budget, pool: int) -> Iterator[Finding]:
    """Yield findings about how many requests fit at once."""
    demand, plan = budget.demand, budget.demand.plan
    if plan is None:
        return
    blocks = pool // plan.block_bytes
    states = sum(group.states * group.tables for group in plan.groups if group.states)
    if states and states * demand.requests > blocks:
        yield Finding(
            "kv-states",
            "warn",
            f"states of {demand.requests} requests do not fit at once",
            f"a request holds {states} blocks of states alone, and {blocks} are there: {blocks // states} "
            "requests at most, whatever their length",
            "lower max-num-seqs or num_speculative_tokens, or switch enable-prefix-caching off",
        )
    fitting = blocks / plan.request_blocks(demand.length)
    if fitting < demand.requests:
        yield Finding(
            "kv-requests",
            "note",
            f"{fitting:.1f} of {demand.requests} requests of {demand.length:,} tokens fit at once",
            f"one takes {_gib(plan.request_bytes(demand.length))} of {_gib(pool)}; others wait",
        )


def _host(budget: Budget) -> Iterator[Finding]:
    """Yield a finding where the host would be left with less than it needs."""
    memory = budget.memory
    if memory.kind == "card":
        return
    left = memory.total - budget.asked
    needed = memory.reserve + memory.sidecars
    if left >= needed:
        return
    most = max(0.0, (memory.total - needed) / memory.total) if memory.total else 0.0
    other = f" and other programs {_gib(memory.sidecars)}" if memory.sidecars else ""
    asked = f"{budget.demand.utilization:g} of " if budget.demand.pool < 0 else f"{_gib(budget.asked)} of "
    yield Finding(
        "host-reserve",
        "refuse",
        "the server would leave the host too little memory",
        f"it takes {asked}{_gib(memory.total)} and leaves {_gib(left)}; "
        f"the host needs {_gib(memory.reserve)}{other}. "
        "Unified machines that run out of memory hang until they are switched off",
        f"set gpu-memory-utilization = {int(most * 100) / 100:.2f} or less"
        if budget.demand.pool < 0
        else "lower kv-cache-memory-bytes",
        liftable=True,
    )


def _now(budget: Budget) -> Iterator[Finding]:
    """Yield findings about the memory as it is now."""
    memory = budget.memory
    if 0 <= memory.available < budget.asked:
        yield Finding(
            "available",
            "refuse",
            "less memory is available than the server may take",
            f"it may take {_gib(budget.asked)}, and {_gib(memory.available)} of "
            f"{_gib(memory.total)} are available: vLLM ends at its start with 'less than desired'",
            "end what holds memory (ps -eo rss,comm --sort=-rss | head), or lower gpu-memory-utilization",
            liftable=True,
        )
    if memory.kind == "unified":
        yield from _cached(memory, budget.asked)
    if memory.kind != "card" and memory.swap_used >= _MUCH_SWAP:
        yield Finding(
            "swap",
            "warn",
            f"{_gib(memory.swap_used)} of swap are in use",
            "the host ran short of memory; swapped pages of a server make single tokens take seconds",
            "free memory, then sudo swapoff -a && sudo swapon -a",
        )


def _cached(memory: Memory, asked: int) -> Iterator[Finding]:
    if memory.cached >= _MUCH_CACHE and 0 <= memory.free < asked:
        yield Finding(
            "page-cache",
            "warn",
            f"the page cache holds {_gib(memory.cached)} of the memory that CPU and GPU share",
            f"{_gib(memory.free)} are free beside it, and the server may take {_gib(asked)}",
            f"before the start: {DROP}",
        )
