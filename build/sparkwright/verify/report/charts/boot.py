"""The memory of each start of a server, by use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkwright.base.text import clean
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.plots import COLOUR, WORDS, Spec, field, layer, linear, whole
from sparkwright.verify.report.text import NOTHING, number
from sparkwright.verify.run import Run

ORDER = 60  # among the charts of the page


def charts(run: Run) -> Iterator[Chart]:
    """Return the memory by boot, if any boot log records it."""
    rows = [
        (f"{arm}, start {boot + 1}", facts) for (arm, boot), facts in run.facts.items() if facts.kv_gib > 0
    ]
    if not rows:
        return
    yield Chart(
        key="memory",
        title="Memory of each start",
        lead=_lead(rows),
        meaning="Weights, CUDA graphs and KV cache together must stay below the limit (upright line), which "
        "is the utilization times the card's memory (outline).",
        widths=WHOLE,
        draw=lambda width: _bars(width, rows),
        columns=("start", "weights, GiB", "graphs, GiB", "KV, GiB", "KV tokens", "limit, GiB", "card, GiB"),
        rows=tuple(_row(label, facts) for label, facts in rows),
        legend=(("weights", "weights"), ("graphs", "CUDA graphs"), ("kv", "KV cache")),
    )


def graph_memory(facts: BootFacts) -> float:
    """Return the memory of CUDA graphs in GiB: as captured, else as estimated; 0 if unknown or negative."""
    if facts.graph_actual_gib >= 0:
        return facts.graph_actual_gib
    return max(0.0, facts.graph_gib or 0.0)


def _limit(facts: BootFacts) -> float:
    known = facts.total_gib > 0 and facts.utilization > 0
    return facts.total_gib * facts.utilization if known else 0.0


def _parts(facts: BootFacts) -> Iterator[tuple[str, float, str]]:
    """Yield the uses of memory with their size in GiB and their colour."""
    yield "weights", max(0.0, facts.weights_gib), "var(--s0)"
    yield "CUDA graphs", graph_memory(facts), "var(--s1)"
    yield "KV cache", facts.kv_gib, "var(--s4)"


def _bars(width: float, rows: Sequence[tuple[str, BootFacts]]) -> Spec:
    """Return a bar for each boot, made of its parts, within the card's memory and the limit."""
    used = [sum(gib for _, gib, _ in _parts(facts)) for _, facts in rows]
    x = linear("GiB", [*used, *(max(facts.total_gib, _limit(facts)) for _, facts in rows)])
    boots: list[Spec] = []
    shares: list[Spec] = []
    for index, (label, facts) in enumerate(rows):
        place = {"boot": index, "label": clean(label)}
        boots.append({**place, "begin": 0, "end": max(0.0, facts.total_gib), "limit": _limit(facts)})
        begin = 0.0
        for name, gib, colour in _parts(facts):
            fits = x(gib) * (width - 40) > len(name) * 7 + 14
            words = clean(f"{label}: {name} {gib:.1f} GiB")
            part = {"begin": begin, "end": begin + gib, "colour": colour, "words": words}
            shares.append({**place, **part, "name": name if fits else ""})
            begin += gib
    across = x.encoding("begin", width, grid=True)
    over: Spec = {"x": across, "x2": {"field": "end"}, "y": field("boot", "ordinal", axis=None)}
    text = {"type": "text", "align": "left"}
    inside = {**text, "dx": 7, "color": "var(--card)", "fontWeight": 600}
    limits = [row for row in boots if row["limit"] > 0]
    at: Spec = {"x": {**across, "field": "limit"}, "y": over["y"]}
    layers = [
        layer({"type": "bar", "height": 22, "fill": "none", "stroke": "var(--soft)"}, boots, **over),
        layer({"type": "bar", "height": 22}, shares, **over, color=COLOUR, description=WORDS),
        layer(inside, shares, "inside", x=across, y=over["y"], text=field("name")),
        layer(
            {**text, "dy": -20, "limit": width - 20}, boots, x={"value": 0}, y=over["y"], text=field("label")
        ),
        layer(
            {"type": "tick", "opacity": 1, "size": 34, "thickness": 5, "color": "var(--card)"}, limits, **at
        ),
        layer(
            {"type": "tick", "opacity": 1, "size": 34, "thickness": 2, "color": "var(--fail)"}, limits, **at
        ),
    ]
    return whole(width, {"step": 62}, layers)


def _lead(rows: Sequence[tuple[str, BootFacts]]) -> str:
    over = [label for label, facts in rows if 0 < _limit(facts) < facts.kv_gib + max(0.0, facts.weights_gib)]
    negative = [label for label, facts in rows if facts.graph_gib is not None and facts.graph_gib < 0]
    if over or negative:
        parts = [f"{', '.join(over)}: over the limit"] if over else []
        parts += [f"{', '.join(negative)}: CUDA graphs estimated below zero"] if negative else []
        return f"{'; '.join(parts)}."
    tokens = [facts.kv_tokens for _, facts in rows if facts.kv_tokens > 0]
    return f"{number(min(tokens))} tokens fit into the KV cache." if tokens else "All within the limit."


def _row(label: str, facts: BootFacts) -> tuple[str, ...]:
    values = (
        facts.weights_gib,
        graph_memory(facts),
        facts.kv_gib,
        facts.kv_tokens,
        _limit(facts),
        facts.total_gib,
    )
    return (label, *(number(value) if value >= 0 else NOTHING for value in values))
