"""Grades of evidence that a recipe works, and where it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sparkwright.base.config import Model

Grade = Literal["served", "tuned here", "A", "A-", "B", "C", "never"]
GRADES: dict[Grade, str] = {
    "served": "served by this project on that card, with a record",
    "tuned here": "measured on one machine by 'verify tune', which chose it among others",
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
        grade: how much it says; see `GRADES`.
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
