"""Options of a search for a server's capacity; the journal records them with the others."""

from __future__ import annotations

from sparkwright.base.config import Model
from sparkwright.verify.capacity.search import SearchPlan
from sparkwright.verify.capacity.slo import Slo, parse_slo

CHECK = "capacity"
"""Name of the check that the search is: on the command line, in journals and in reports."""


class CapacityOptions(Model, frozen=True):
    """Objective, requests and limits of a search.

    Attributes:
        slo: the objective, as `slo.parse_slo` reads it.
        prompts: file with prompts; the corpus's own if empty.
        prompts_sha256: of that file, so that a resumed search sends the same.
        input_tokens: length of generated documents that are sent instead; 0 for none.
        max_tokens: output of each request, exactly.
        first_rate: requests a second of the first step.
        most_rate: highest rate to try.
        requests: of a step, at the least.
        precision: half of the answer's interval, in percent, at which the search ends.
    """

    slo: str
    prompts: str = ""
    prompts_sha256: str = ""
    input_tokens: int = 0
    max_tokens: int = 128
    first_rate: float = 1.0
    most_rate: float = 1024.0
    requests: int = 200
    precision: float = 5.0

    @property
    def objective(self) -> Slo:
        """The objective.

        Raises:
            ConfigError: it cannot be read.
        """
        return parse_slo(self.slo)

    @property
    def plan(self) -> SearchPlan:
        """The limits of the search, with the lowest rate six halvings below the first."""
        slo = self.objective
        tail = 10 / (1 - slo.share)  # ten requests beyond the percentile, or its share means little
        return SearchPlan(
            share=slo.share,
            longest_s=max(seconds for name, seconds in slo.limits.items() if name != "tpot")
            if slo.limits.keys() - {"tpot"}
            else 0.0,
            first=self.first_rate,
            least=self.first_rate / 64,
            most=max(self.most_rate, self.first_rate),
            requests=max(self.requests, round(tail) if slo.share > 0.95 else 0),  # noqa: PLR2004
            width=self.precision / 100,
        )
