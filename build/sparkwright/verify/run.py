"""One run, as reports show it: manifest, facts, observations and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation

# From bad to good: the first of these among several verdicts is that of all.
_ORDER = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.NOT_APPLICABLE)


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict of *findings*, not applicable if all are; inconclusive if there are none."""
    found = {finding.verdict for finding in findings}
    return next((verdict for verdict in _ORDER if verdict in found), Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class RunCoverage:
    """The checks of a profile that came to a conclusion."""

    judged: tuple[str, ...]
    without: tuple[str, ...]
    applicable: int
    conclusions: int

    @property
    def whole(self) -> bool:
        """Tell if every conclusion of every check was applicable."""
        return not self.without and self.applicable == self.conclusions

    def __str__(self) -> str:
        shown = f"{len(self.judged)} of {len(self.judged) + len(self.without)} checks"
        left_out = self.conclusions - self.applicable
        shown += f", {self.applicable} of {self.conclusions} conclusions" if left_out else ""
        return shown + (f", without: {', '.join(self.without)}" if self.without else "")


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run.

    Attributes:
        manifest: description of the run; every key is optional. Reports show separately ``title``,
            ``profile``, ``started`` (ISO 8601, UTC), ``seconds``, ``speed`` (server's seconds in one of the
            client's), ``model``, ``url``, ``wheel`` (``{"name": …, "sha256": …}``), ``interrupted`` (the
            reason, if it is not complete), ``report`` (path of the HTML page) and ``files`` (paths relative
            to that page, by title), and ``checks`` (those of the profile).
            Other keys are listed as they are; it must hold no secrets.
        facts: facts of each start of a server, by arm and boot number.
        observations: every cell that was measured, in order.
        findings: by check, in order.
        lacks: reasons by the capability that the server lacks and need not have.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[tuple[str, int], BootFacts] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    findings: Sequence[Finding] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the run: that of its worst finding; inconclusive if none was applicable."""
        verdict = worst(self.findings)
        return Verdict.INCONCLUSIVE if verdict is Verdict.NOT_APPLICABLE else verdict

    @property
    def coverage(self) -> RunCoverage:
        """The part of the profile's checks that came to a conclusion."""
        applicable = [one for one in self.findings if one.verdict is not Verdict.NOT_APPLICABLE]
        judged = {finding.check for finding in applicable}
        planned = dict.fromkeys([*self.manifest.get("checks", ()), *self.by_check])
        return RunCoverage(
            judged=tuple(name for name in planned if name in judged),
            without=tuple(name for name in planned if name not in judged),
            applicable=len(applicable),
            conclusions=len(self.findings),
        )

    @property
    def speed(self) -> float:
        """Server's seconds in one of the client's."""
        return float(self.manifest.get("speed", 1.0))

    @property
    def by_check(self) -> dict[str, list[Finding]]:
        """Findings by check, in order."""
        grouped: dict[str, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.check, []).append(finding)
        return grouped
