"""What a check is: it plans cells, and later judges what was seen in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.corpus import Corpus
    from sparkwright.verify.model import BootFacts, Cell, Finding, Observation
    from sparkwright.verify.profile import Profile


@dataclass(frozen=True)
class Context:
    """What a check may know besides its observations.

    Attributes:
        profile: the sizes.
        corpus: prompts by category, and long documents.
        facts: what each start of a server said, by arm and boot number; empty facts where its log is out of
            reach. While planning, only those of servers that run already.
        log_seen: whether servers' logs could be read; without them no error in one can be ruled out.
        band: key of the reference band that fits what is served, or empty.
        floors: the client's own error by concurrency, measured against the simulator: 99th percentile of that
            of TTFT in ms, and of that of TPOT in percent. Empty if it was not measured.
    """

    profile: Profile
    corpus: Corpus
    facts: Mapping[tuple[str, int], BootFacts]
    log_seen: bool = True
    band: str = ""
    floors: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def main(self) -> BootFacts:
        """What the server under test said when it first started."""
        return self.facts["main", 0]


class Check(Protocol):
    """One thing to find out."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def plan(self, context: Context) -> Sequence[Cell]:
        """The cells that it wants measured, in order; the same for the same context."""
        ...

    def judge(self, context: Context, observations: Sequence[Observation]) -> Sequence[Finding]:
        """What the observations of its own cells mean; pure, and at least one finding.

        A cell that is missing, or that has failures which the check does not expect, never passes.
        """
        ...
