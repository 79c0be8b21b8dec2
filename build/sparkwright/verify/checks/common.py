"""The interface of a check, and its conclusions.

Every conclusion goes through `conclude`, so that none passes on a cell that is missing or in trouble, as
`triage` found it. Names, definitions and thresholds of all conclusions are in ``findings.toml``.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sparkwright.base.text import few
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.triage import SEVERITY, CheckedCells, Reason, describe, triage

CHAT: Mapping[str, Any] = {"chat": True, "natural_stop": True}
"""Of a load: chats that end by themselves."""

Values = dict[str, float | str]
"""Measured values of a conclusion, by name."""


@dataclass(frozen=True, eq=False)
class Check:
    """A group of cells and the findings that follow from them: found in a module of `verify.checks`.

    Attributes:
        name: on the command line, in journals and in reports.
        planning: given the observations so far by their cell's key, yields the cells to measure, in order, as
            far as they are known; the same for the same ones, so that a resumed run goes on with them.
        judging: returns at least one finding; pure. A cell that is missing, or that has failures which the
            check does not expect, never passes.
    """

    name: str
    planning: Callable[[Context, Mapping[str, Observation]], Iterable[Cell]]
    judging: Callable[[Context, CheckedCells], Sequence[Finding]]

    def cells(self, context: Context, observations: Iterable[Observation] = ()) -> tuple[Cell, ...]:
        """Return the cells to measure, as far as *observations* of the first of them determine them."""
        return tuple(self.planning(context, {seen.cell.key: seen for seen in observations}))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return what the observations of its own cells mean."""
        planned = self.cells(context, observations)
        return list(self.judging(context, triage(self.name, context, observations, planned)))


# Concluding ----------------------------------------------------------------------------------------------


def answered(observation: Observation) -> list[tuple[Sample, str]]:
    """Return the counted answers of prompts that expect a string, each with that string."""
    expected = {prompt.name: prompt.expect for prompt in observation.cell.prompts if prompt.expect}
    return [(one, expected[one.prompt]) for one in observation.counted if one.prompt in expected]


@functools.cache
def load_texts() -> Mapping[str, Mapping[str, Any]]:
    """Return ``findings.toml``: by module, what its check measures, and name and texts of its conclusions."""
    return tomllib.loads((resources.files(__package__) / "findings.toml").read_text(encoding="utf-8"))


def text_of(key: str, part: str, told: Mapping[str, object]) -> str:
    """Return the ``name``, ``definition`` or ``threshold`` of the conclusion *key*, such as ``sweep.steps``.

    Names in braces are values in *told*, else constants of the module that the key begins with, or of another
    one that is named with them.
    """
    module, _, name = key.partition(".")
    text: str = load_texts()[module][name].get(part, "")
    package = sys.modules[__package__]  # which imports each of its modules
    return text.format_map(ChainMap(dict(told), vars(getattr(package, module)), vars(package)))


def conclude(
    seen: CheckedCells,
    key: str,
    *,
    passed: str,
    against: Sequence[Reason] = (),
    measured: Mapping[str, float | str] | None = None,
    warnings: Sequence[str] = (),
    told: Mapping[str, object] | None = None,
) -> Finding:
    """Return a finding on the cells in *seen*, with the texts of *key* and values that are *told*.

    *passed* is the cause of a pass, and *against* has the reasons that the check itself found. In the file,
    ``needs`` are capabilities of which a server that lacks one makes the finding not applicable; one that is
    ``lenient`` is beside another that reports trouble of cells, which make it inconclusive.
    """
    told = told or {}
    module, _, name = key.partition(".")
    entry = load_texts()[module][name]
    if lacking := [seen.lacks[need] for need in entry.get("needs", ()) if need in seen.lacks]:
        return not_applicable(seen, key, lacking[0], told, threshold=text_of(key, "threshold", told))
    reasons = list(against)
    if not entry.get("lenient"):
        reasons += [(trouble.verdict, trouble.cause) for trouble in seen.troubles]
    elif seen.troubles:
        reasons.append((Verdict.INCONCLUSIVE, _left_out(seen)))
    verdict = max((verdict for verdict, _ in reasons), key=SEVERITY.index, default=Verdict.PASS)
    causes = list(dict.fromkeys(cause for reason, cause in reasons if reason is verdict))
    return finding(
        seen.check,
        key,
        verdict,
        few(causes, 3, sep="; ", more="; and {} more") if verdict is not Verdict.PASS else passed,
        measured=measured,
        evidence=[cell.key for cell in seen.planned],
        warnings=list(dict.fromkeys(warnings)),
        told=told,
    )


def finding(
    check: str,
    key: str,
    verdict: Verdict,
    cause: str,
    *,
    measured: Mapping[str, float | str] | None = None,
    evidence: Sequence[str] = (),
    warnings: Sequence[str] = (),
    told: Mapping[str, object] | None = None,
) -> Finding:
    """Return a finding that is not concluded from a check's sound cells, with the texts of *key*."""
    name, definition, threshold = (
        text_of(key, part, told or {}) for part in ("name", "definition", "threshold")
    )
    return Finding(
        check=check,
        name=name,
        definition=definition,
        verdict=verdict,
        cause=cause,
        measured=dict(measured or {}),
        threshold=threshold,
        evidence=tuple(evidence),
        warnings=tuple(warnings),
    )


def not_applicable(
    seen: CheckedCells,
    key: str,
    because: str,
    told: Mapping[str, object] | None = None,
    *,
    threshold: str = "",
) -> Finding:
    """Return the finding that there is nothing to conclude, with the reason."""
    return Finding(
        check=seen.check,
        name=text_of(key, "name", told or {}),
        definition=text_of(key, "definition", told or {}),
        verdict=Verdict.NOT_APPLICABLE,
        cause=because,
        threshold=threshold,
    )


def _left_out(seen: CheckedCells) -> str:
    """Return the names of cells that do not count; another finding has the reasons."""
    keys = {trouble.cell for trouble in seen.troubles}
    names = [describe(cell) for cell in seen.planned if cell.key in keys]
    return f"{len(names)} of {len(seen.planned)} cells do not count: {few(names, 4)}"
