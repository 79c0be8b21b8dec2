"""What each start of a server did with the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.drawing.kinds import Budget, budgets
from sparkwright.verify.report.drawing.plot import Naming
from sparkwright.verify.report.drawing.scale import linear
from sparkwright.verify.report.text import NOTHING, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkwright.verify.model import BootFacts
    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run


def boot_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """Memory by boot, if any boot said how it shared it out."""
    del found
    rows = [(f"{arm}, boot {boot}", facts) for (arm, boot), facts in run.facts.items() if facts.kv_gib > 0]
    if not rows:
        return
    bars = [_budget(label, facts) for label, facts in rows]
    x = linear(
        "GiB", [max(bar.whole, bar.limit, sum(part[1] for part in bar.parts)) for bar in bars], ticks=8
    )
    lead = _lead(rows)
    meaning = (
        "Weights, CUDA graphs and KV cache together must stay below the limit (upright line), which is the "
        "utilization times the card's memory (outline)."
    )
    yield Chart(
        key="memory",
        title="Memory by boot",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda key, width: budgets(Naming(key, "Memory by boot", f"{meaning} {lead}"), width, x, bars),
        columns=("boot", "weights, GiB", "graphs, GiB", "KV, GiB", "KV tokens", "limit, GiB", "card, GiB"),
        rows=tuple(_row(label, facts) for label, facts in rows),
        legend=(("weights", "weights"), ("graphs", "CUDA graphs"), ("kv", "KV cache")),
    )


def graph_memory(facts: BootFacts) -> float:
    """What CUDA graphs took, in GiB: as captured, else as estimated; 0 where not said or negative."""
    if facts.graph_actual_gib >= 0:
        return facts.graph_actual_gib
    return max(0.0, facts.graph_gib or 0.0)


def _limit(facts: BootFacts) -> float:
    known = facts.total_gib > 0 and facts.utilization > 0
    return facts.total_gib * facts.utilization if known else 0.0


def _budget(label: str, facts: BootFacts) -> Budget:
    parts = (
        ("weights", max(0.0, facts.weights_gib), "weights"),
        ("CUDA graphs", graph_memory(facts), "graphs"),
        ("KV cache", facts.kv_gib, "kv"),
    )
    shown = tuple(part for part in parts if part[1] > 0)
    return Budget(label, shown, max(0.0, facts.total_gib), _limit(facts))


def _lead(rows: Sequence[tuple[str, BootFacts]]) -> str:
    over = [label for label, facts in rows if 0 < _limit(facts) < facts.kv_gib + max(0.0, facts.weights_gib)]
    negative = [label for label, facts in rows if facts.graph_gib is not None and facts.graph_gib < 0]
    if over or negative:
        told = [f"{', '.join(over)}: over the limit"] if over else []
        told += [f"{', '.join(negative)}: CUDA graphs estimated below zero"] if negative else []
        return f"{'; '.join(told)}."
    tokens = [facts.kv_tokens for _, facts in rows if facts.kv_tokens > 0]
    return f"{number(min(tokens))} tokens fit into the KV cache." if tokens else "All within the limit."


def _row(label: str, facts: BootFacts) -> tuple[str, ...]:
    said = (
        facts.weights_gib,
        graph_memory(facts),
        facts.kv_gib,
        facts.kv_tokens,
        _limit(facts),
        facts.total_gib,
    )
    return (label, *(number(value) if value >= 0 else NOTHING for value in said))
