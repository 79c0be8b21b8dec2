"""One run, as reports show it: manifest, facts, observations and findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.verify.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.client.calibrate import Floor
    from sparkwright.verify.model import BootFacts, Finding, Observation

# From bad to good: the first of these among several verdicts is that of all.
_ORDER = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS)


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict of *findings*; inconclusive if there are none."""
    found = {finding.verdict for finding in findings}
    return next((verdict for verdict in _ORDER if verdict in found), Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run.

    Attributes:
        manifest: description of the run; every key is optional. Reports show separately ``title``,
            ``profile``, ``started`` (ISO 8601, UTC), ``seconds``, ``speed`` (server's seconds in one of the
            client's), ``model``, ``url``, ``wheel`` (``{"name": …, "sha256": …}``), ``interrupted`` (the
            reason, if it is not complete), ``report`` (path of the HTML page) and ``files`` (paths relative
            to that page, by title).
            Other keys are listed as they are; it must hold no secrets.
        facts: facts of each start of a server, by arm and boot number.
        observations: every cell that was measured, in order.
        findings: by check, in order.
        floors: the client's own error, by concurrency.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[tuple[str, int], BootFacts] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    findings: Sequence[Finding] = ()
    floors: Sequence[Floor] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the run: that of its worst finding."""
        return worst(self.findings)

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
