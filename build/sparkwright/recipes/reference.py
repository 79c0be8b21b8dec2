"""Published figures for DGX Spark, by model and configuration, each with its source and grade.

``reference.toml`` holds each figure once: recipes name its keys, and pages are made from it.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Literal

from msgspec import field

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import UnknownNameError
from sparkwright.recipes.recipe import Recipe

_FORMAT = 1


class ReferenceFigures(Model, frozen=True):
    """Figures of one source for one configuration.

    Attributes:
        model: what was served, and in which precision.
        settings: software, speculation, type of the KV cache and load.
        grade: ``A``, ``A-``, ``B`` or ``C``, as for bands.
        values: figures by load, such as ``c=8``.
        speculative: tokens were drafted.
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
    parsed = parse_toml(data, _ReferenceFile, newest_format=_FORMAT, name="reference.toml")
    return {one.key: one for one in parsed.figures}


def references(recipe: Recipe) -> tuple[ReferenceFigures, ...]:
    """Return the figures that *recipe* names.

    Raises:
        UnknownNameError: it names a key that does not exist.
    """
    known = load_references()
    for key in recipe.reference:
        if key not in known:
            raise UnknownNameError(
                f"the recipe {recipe.name} names no figures of reference.toml by {key!r}",
                because="the keys there are " + ", ".join(known),
                next_step="correct `reference`, or leave it out",
            )
    return tuple(known[key] for key in recipe.reference)
