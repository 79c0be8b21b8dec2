"""Findings and verdicts: the conclusions of checks about a server."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from sparkwright.base.config import Model


class Verdict(StrEnum):
    """Result of a finding, of a check or of a run."""

    PASS = "pass"  # noqa: S105
    NOT_APPLICABLE = "not-applicable"  # the server lacks what it is about, and nothing requires that
    INCONCLUSIVE = "inconclusive"  # too little was seen to decide
    INVALID = "invalid"  # what was seen cannot be trusted, so it decides nothing
    FAIL = "fail"


class Finding(Model, frozen=True):
    """One conclusion, with what it rests on.

    Attributes:
        check: the check, such as ``sweep``.
        name: the conclusion within the check, such as ``acceptance does not depend on concurrency``.
        definition: the compared quantities, in one or two sentences.
        cause: the observed reason in one line, with the level, position or moment of a failure.
        measured: figures by name, units in the names.
        threshold: the limit and its source, in words.
        evidence: keys of the cells that it rests on.
        warnings: remarks that decide nothing.
    """

    check: str
    name: str
    definition: str
    verdict: Verdict
    cause: str
    measured: dict[str, float | str] = field(default_factory=dict)
    threshold: str = ""
    evidence: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
