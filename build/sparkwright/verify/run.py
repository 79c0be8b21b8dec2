"""One run, as reports show it: what it was, what was seen, and what was concluded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.verify.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.client.calibrate import Floor
    from sparkwright.verify.model import BootFacts, Finding, Observation

# From bad to good: which of several verdicts speaks for all of them.
_ORDER = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS)


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict that speaks for all *findings*; without any, nothing is decided."""
    found = {finding.verdict for finding in findings}
    return next((verdict for verdict in _ORDER if verdict in found), Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run.

    Attributes:
        manifest: what was run, all of it optional. Reports give a place of its own to ``title``, ``profile``,
            ``started`` (ISO 8601, UTC), ``seconds``, ``speed`` (server's seconds in one of ours), ``model``,
            ``url``, ``wheel`` (``{"name": …, "sha256": …}``), ``interrupted`` (why, if it is not complete),
            ``report`` (where the HTML page is) and ``files`` (paths relative to that page, by what they are).
            What else it says is listed as it is; secrets do not belong into it.
        facts: what each start of a server said, by arm and boot number.
        observations: every cell that was measured, in order.
        findings: what they mean, check by check.
        floors: the client's own error, by concurrency.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[tuple[str, int], BootFacts] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    findings: Sequence[Finding] = ()
    floors: Sequence[Floor] = ()

    @property
    def verdict(self) -> Verdict:
        """What the run says as a whole: its worst finding's verdict."""
        return worst(self.findings)

    @property
    def speed(self) -> float:
        """How many of the server's seconds passed in one of ours."""
        return float(self.manifest.get("speed", 1.0))

    @property
    def by_check(self) -> dict[str, list[Finding]]:
        """Findings by check, in the order of their coming."""
        grouped: dict[str, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.check, []).append(finding)
        return grouped
