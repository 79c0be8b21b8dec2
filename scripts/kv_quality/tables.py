"""Make tables of the results. Intervals are over texts, prompts or needles."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

from kv_quality.intervals import bootstrap, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["by_position", "markdown", "of_format", "pooled", "prefix", "report"]

Row = dict[str, Any]
BASE = "16 bits"
EDGES = (0, 16, 64, 256, 512, 1024)
"""Positions that parts of a text begin at."""


def report(lines: Sequence[Row]) -> str:
    """Return all tables in Markdown, a section for each model."""
    parts = []
    for model in dict.fromkeys(line["model"] for line in lines):
        some = [line for line in lines if line["model"] == model]
        parts.append(f"## {model}")
        for title, make in SECTIONS:
            table = make(some)
            if table:
                parts.append(f"**{title}**\n\n{table}")
    return "\n\n".join(parts)


def of_format(lines: Sequence[Row], begin: str) -> dict[str, list[Row]]:
    """Return the rows of measurements whose name begins with *begin*, by format, in order of their names."""
    found: dict[str, list[Row]] = defaultdict(list)
    for line in sorted(lines, key=lambda one: str(one["part"])):
        if line["part"].startswith(begin):
            found[line["row"]["format"]].append({**line["row"], "part": line["part"]})
    return found


def beside(rows: Sequence[Row], others: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each of *rows* with that of *others* on the same text."""
    by_part = {other["part"]: other for other in others}
    return [(row, by_part[row["part"]]) for row in rows if row["part"] in by_part]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; nothing if it has no rows."""
    if not rows:
        return ""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def pooled(rows: Sequence[Row], key: str) -> float:
    """Return the mean of the places of all texts."""
    return sum(sum(row[key]) for row in rows) / sum(len(row[key]) for row in rows)


def text(lines: Sequence[Row]) -> str:
    """Return perplexity and divergence for each format."""
    found = of_format(lines, "text")
    made = []
    for name, rows in found.items():
        pairs = beside(rows, found[BASE])
        every = sorted(value for row in rows for value in row["kl"])
        made.append(
            (
                name,
                f"{len(rows)} · {len(every):,}",
                f"{math.exp(pooled(rows, 'loss')):.3f}",
                f"{change(pairs):+.2f} %{between(pairs, change, '+.2f')}",
                f"{pooled(rows, 'kl'):.4f}{between(rows, lambda some: pooled(some, 'kl'), '.4f')}",
                f"{quantile(every, 0.99):.3f}",
                f"{100 * pooled(rows, 'same'):.1f} %",
            )
        )
    head = (
        "format",
        "texts · places",
        "perplexity",
        "change",
        "divergence, nats",
        "99th percentile",
        "same first choice",
    )
    return markdown(head, made)


def between(texts: Sequence[Any], figure: Callable[[Sequence[Any]], float], form: str) -> str:
    """Return the interval of *figure* in brackets; nothing of a single text, which has none."""
    if len(texts) == 1:
        return ""
    low, high = bootstrap(texts, figure)
    return f" [{low:{form}}, {high:{form}}]"


def change(pairs: Sequence[tuple[Row, Row]]) -> float:
    """Return the change of perplexity in percent, of rows against those of 16 bits."""
    ours, plain = ([pair[side] for pair in pairs] for side in (0, 1))
    return 100 * math.expm1(pooled(ours, "loss") - pooled(plain, "loss"))


def by_position(rows: Sequence[Row]) -> list[float]:
    """Return the mean divergence of the places between each two of `EDGES`; NaN where there is none."""
    found: list[list[float]] = [[] for _ in EDGES[1:]]
    for row in rows:
        for at, value in enumerate(row["kl"]):
            place = at * row["stride"]
            for number, (begin, end) in enumerate(pairwise(EDGES)):
                if begin <= place < end:
                    found[number].append(value)
    return [mean(values) if values else math.nan for values in found]


def positions(lines: Sequence[Row]) -> str:
    """Return the divergence by position for each format but the one of 16 bits."""
    head = ["format", *(f"{begin} to {end - 1}" for begin, end in pairwise(EDGES))]
    found = of_format(lines, "text")
    rows = [
        [name, *(f"{one:.4f}" for one in by_position(some))] for name, some in found.items() if name != BASE
    ]
    return markdown(head, rows)


def kinds(lines: Sequence[Row]) -> str:
    """Return the divergence on prose and on code."""
    prose, code = of_format(lines, "text prose"), of_format(lines, "text code")
    rows = [
        [name, *(f"{pooled(some[name], 'kl'):.4f}" for some in (prose, code))]
        for name in prose
        if name in code and name != BASE
    ]
    return markdown(("format", "prose", "code"), rows)


def needle(lines: Sequence[Row]) -> str:
    """Return codes that were found, and the change of their log-probability, by length of the context."""
    parts = sorted(
        {line["part"].rpartition(" ")[0] for line in lines if line["part"].startswith("needle")},
        key=lambda part: int(part.split()[1]),
    )
    made: dict[str, list[str]] = defaultdict(list)
    for part in parts:
        found = of_format(lines, part + " ")
        for name, rows in found.items():
            changes = [
                row["log_probability"] - base["log_probability"] for row, base in beside(rows, found[BASE])
            ]
            low, high = bootstrap(changes, mean)
            made[name] += [
                f"{sum(row['right'] for row in rows)} of {len(rows)}",
                f"{mean(changes):+.2f} [{low:+.2f}, {high:+.2f}]",
            ]
    head = [
        "format",
        *(f"{part.split()[1]} tokens: {what}" for part in parts for what in ("found", "change, nats")),
    ]
    return markdown(head, [[name, *cells] for name, cells in made.items()])


def prefix(ours: Sequence[int], plain: Sequence[int]) -> int:
    """Return the number of tokens before the first that differs."""
    pairs = zip(ours, plain, strict=False)
    return next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(ours), len(plain)))


def greedy(lines: Sequence[Row]) -> str:
    """Return how far greedy answers agree with those over 16 bits."""
    found = of_format(lines, "greedy")
    if BASE not in found:
        return ""
    plain = found[BASE][0]["answers"]
    made = []
    for name, (row, *_) in found.items():
        pairs = [(row["answers"][key], answer) for key, answer in plain.items()]
        first = [prefix(*pair) for pair in pairs]
        equal = [mean(one == two for one, two in zip(*pair, strict=False)) for pair in pairs]
        low, high = bootstrap(first, mean)
        least, most = bootstrap(equal, mean)
        made.append(
            (
                name,
                f"{sum(one == two for one, two in pairs)} of {len(pairs)}",
                f"{mean(first):.1f} [{low:.1f}, {high:.1f}] of {mean(map(len, plain.values())):.1f}",
                f"{100 * mean(equal):.0f} % [{100 * least:.0f}, {100 * most:.0f}]",
            )
        )
    return markdown(
        ("format", "identical answers", "tokens before the first other one", "equal tokens, place by place"),
        made,
    )


def tools(lines: Sequence[Row]) -> str:
    """Return valid and right calls of a tool."""
    found = of_format(lines, "tools")
    made = []
    for name, (row, *_) in found.items():
        same = sum(one == two for one, two in zip(row["texts"], found[BASE][0]["texts"], strict=True))
        made.append(
            (
                name,
                *(f"{sum(row[key])} of {len(row[key])}" for key in ("valid", "right")),
                f"{same} of {len(row['texts'])}",
            )
        )
    return markdown(("format", "valid JSON", "the call asked for", "the text of 16 bits"), made)


def rates(rows: Sequence[Row]) -> list[float]:
    """Return the accepted share of drafts at each place."""
    pairs = (
        (sum(row["accepted"][at] for row in rows), sum(row["tried"][at] for row in rows)) for at in range(5)
    )
    return [accepted / tried if tried else math.nan for accepted, tried in pairs]


def a_step(rows: Sequence[Row]) -> float:
    """Return the tokens of a step of the target, accepted drafts and its own."""
    return sum(row["tokens"] for row in rows) / sum(row["steps"] for row in rows)


def acceptance(lines: Sequence[Row]) -> str:
    """Return the acceptance of each drafter by place."""
    made = []
    for name, rows in of_format(lines, "acceptance").items():
        cases: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in (one for part in rows for one in part["rows"]):
            cases[row["drafter"], row["own"], row["context"]].append(row)
        for (drafter, own, context), some in cases.items():
            low, high = bootstrap(some, lambda these: rates(these)[0])
            least, most = bootstrap(some, a_step)
            first, *others = (f"{100 * rate:.1f}" for rate in rates(some))
            made.append(
                (
                    drafter,
                    name,
                    own,
                    context,
                    f"{first} [{100 * low:.1f}, {100 * high:.1f}]",
                    *others,
                    f"{a_step(some):.2f} [{least:.2f}, {most:.2f}]",
                )
            )
    made.sort(key=lambda cells: cells[0], reverse=True)
    head = (
        "drafter",
        "target's cache",
        "drafter's",
        "context",
        "1st, %",
        "2nd",
        "3rd",
        "4th",
        "5th",
        "tokens a step",
    )
    return markdown(head, made)


SECTIONS: tuple[tuple[str, Callable[[Sequence[Row]], str]], ...] = (
    ("Text", text),
    ("Divergence by position, nats", positions),
    ("Divergence by kind of text, nats", kinds),
    ("Needles", needle),
    ("Greedy answers", greedy),
    ("Calls of a tool", tools),
    ("Acceptance", acceptance),
)
