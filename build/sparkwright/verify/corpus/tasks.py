"""Small tasks with one correct answer, generated from a seed: sums, and look-ups in a list."""

from __future__ import annotations

import random

_NAMES = (
    "Alder", "Birch", "Cedar", "Damson", "Elder", "Fir", "Gorse", "Hazel", "Ivy", "Juniper", "Larch", "Maple",
    "Olive", "Poplar", "Rowan", "Sorrel", "Tansy", "Willow", "Yarrow", "Zinnia",
)  # fmt: skip


def write_task(seed: int, salt: str, number: int) -> tuple[str, str, str]:
    """Return task *number*: its category, text and answer. Even ones are sums, odd ones look-ups."""
    random_ = random.Random(f"task {seed} {salt} {number}")  # noqa: S311 - numbers, not secrets
    return _look_up(random_) if number % 2 else _sum(random_)


def _sum(random_: random.Random) -> tuple[str, str, str]:
    a, b = random_.randrange(1200, 9800), random_.randrange(1200, 9800)
    sign = random_.choice("+-")
    result = a + b if sign == "+" else a - b
    return "math", f"Work this out and answer with the number alone: {a} {sign} {b}", str(result)


def _look_up(random_: random.Random) -> tuple[str, str, str]:
    names = random_.sample(_NAMES, 8)
    codes = random_.sample(range(100_000, 1_000_000), 8)
    facts = "\n".join(f"The code for {name} is {code}." for name, code in zip(names, codes, strict=True))
    asked = random_.randrange(8)
    question = f"What is the code for {names[asked]}? Answer with the number alone."
    return "extraction", f"{facts}\n\n{question}", str(codes[asked])
