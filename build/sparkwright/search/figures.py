"""Figures of a sweep by name, such as ``decode-tok-s@1``: metrics without a command."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.base.errors import ConfigError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.search.metric import UntestableError

CHECK = "sweep"
_BY_CATEGORY = "served at every level"
_FORM = re.compile(r"([a-z][a-z0-9-]*)@([1-9][0-9]{0,3})")

FIGURES = {
    "decode-tok-s": ("decode tok/s", True),
    "throughput-tok-s": ("steady tok/s", True),
    "acceptance-length": ("MAL", True),
    "ttft-ms": ("TTFT p50 ms", False),
    "ttft-p95-ms": ("TTFT p95 ms", False),
    "tpot-ms": ("TPOT p50 ms", False),
    "verify-step-ms": ("verify step ms", False),
}
"""By name: the figure as a sweep's findings have it, and true if more of it is better."""


@dataclass(frozen=True)
class NamedFigure:
    """A figure at a concurrency.

    Attributes:
        level: requests at a time.
    """

    name: str
    level: int

    def __str__(self) -> str:
        """Return it as the user gives it."""
        return f"{self.name}@{self.level}"

    @property
    def higher_is_better(self) -> bool:
        """False for times."""
        return FIGURES[self.name][1]

    def value(self, findings: Sequence[Finding]) -> float:
        """Return the geometric mean of the figure over the categories of a sweep.

        Raises:
            UntestableError: a request failed, or the figure is missing.
        """
        key = f"c={self.level} {FIGURES[self.name][0]}"
        logs = []
        for finding in findings:
            if finding.check != CHECK or not finding.name.endswith(_BY_CATEGORY):
                continue
            if finding.verdict is not Verdict.PASS:
                raise UntestableError(f"{finding.name}: {finding.cause}")
            found = finding.measured.get(key)
            if not isinstance(found, float | int) or not 0 < found < math.inf:
                raise UntestableError(f"{finding.name}: there is no {key}")
            logs.append(math.log(found))
        if not logs:
            raise UntestableError("nothing was measured")
        return math.exp(math.fsum(logs) / len(logs))


def parse_figure(text: str) -> NamedFigure:
    """Return the figure that *text* names, such as ``ttft-ms@8``.

    Raises:
        ConfigError: it names none.
    """
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise ConfigError(
            f"there is no figure {text!r}",
            because="a metric without a command is NAME@CONCURRENCY, such as decode-tok-s@1",
            next_step=f"take one of {', '.join(FIGURES)}, or give a command behind --",
        )
    return NamedFigure(found[1], int(found[2]))
