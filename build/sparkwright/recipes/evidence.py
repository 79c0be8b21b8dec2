"""Evidence for recipes: where one was seen served, and published figures.

``reference.toml`` holds each published figure for DGX Spark once, with its source and grade: recipes name its
keys, and pages are made from it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from typing import Literal

from msgspec import field

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import unknown_name

Grade = Literal["served", "tuned here", "A", "A-", "B", "C", "never"]
GRADES: dict[Grade, str] = {
    "served": "served by this project on that card, with a record",
    "tuned here": "measured on one machine by 'verify compare', which chose it among others",
    "A": "served by others: tokens are counted and the configuration is stated",
    "A-": "served by others, and a part of the configuration had to be worked out",
    "B": "served by others, configured in part",
    "C": "stated by others, without figures or without their configuration",
    "never": "never served by this project, nor seen served like this by others",
}
"""Every grade, the best one first, in words."""


class Evidence(Model, frozen=True):
    """One occasion on which a recipe, or one close to it, was served.

    Attributes:
        where: the machine, and the software where it is known.
        source: public address of the card, thread or repository.
        date: as the source has it: a year, a month or a day in ISO 8601; empty where it states none.
        differs: what was served otherwise there; empty where nothing is known to differ.
    """

    grade: Grade
    where: str
    by: str
    source: str
    date: str = ""
    differs: str = ""


def best_grade(evidence: Sequence[Evidence]) -> Grade:
    """Return the best grade among *evidence*; ``never`` for none."""
    order = list(GRADES)
    return min((one.grade for one in evidence), key=order.index, default="never")


class ReferenceFigures(Model, frozen=True):
    """Figures of one source for one configuration.

    Attributes:
        settings: software, speculation, type of the KV cache and load.
        values: figures by load, such as ``c=8``.
    """

    key: str
    model: str
    settings: str
    grade: Literal["A", "A-", "B", "C"]
    source: str
    unit: str = "tok/s"
    values: dict[str, float] = field(default_factory=dict)
    speculative: bool = True

    def __str__(self) -> str:
        """Return one line."""
        values = ", ".join(f"{load} {value:g}" for load, value in self.values.items())
        return f"{self.model}, {self.settings}: {values} {self.unit} ({self.source})"


class _ReferenceFile(Model, frozen=True):
    format: Literal[1]
    figures: tuple[ReferenceFigures, ...]


@functools.cache
def load_references() -> dict[str, ReferenceFigures]:
    """Return all figures by their keys.

    Raises:
        ConfigError: the file is damaged.
    """
    data = (resources.files("sparkwright.recipes") / "reference.toml").read_bytes()
    parsed = parse_toml(data, _ReferenceFile, newest_format=1, name="reference.toml")
    return {one.key: one for one in parsed.figures}


def references(recipe: str, keys: Sequence[str]) -> tuple[ReferenceFigures, ...]:
    """Return the figures that the *recipe* names by their *keys*.

    Raises:
        UnknownNameError: one does not exist.
    """
    known = load_references()
    for key in keys:
        if key not in known:
            raise unknown_name(f"figure that the recipe {recipe} refers to as", key, list(known))
    return tuple(known[key] for key in keys)
