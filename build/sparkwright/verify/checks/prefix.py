"""Comparison of greedy answers whose prompt came from the prefix cache with those computed in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.capabilities import LOGPROBS, METRICS, PREFIX_CACHE
from sparkwright.verify.cell import Cell, Load
from sparkwright.verify.check import RegisteredCheck
from sparkwright.verify.checks.common import conclude, describe, triage
from sparkwright.verify.checks.divergence import NoLogprobsError, pair
from sparkwright.verify.checks.lossless import ALTERNATIVES, LIMIT_NAT
from sparkwright.verify.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.check import Context
    from sparkwright.verify.checks.common import CheckedCells
    from sparkwright.verify.model import Finding, Observation

DOCUMENTS = 6
TOKENS = 300
LENGTH = 32
WARM_LEVELS = (1, 4)
LEAST_HIT = 0.5
"""Share of the warm prompts' tokens that come from the cache at the least; the last block never does."""


@dataclass(frozen=True)
class Prefix:
    """Documents once cold, then again one at a time and several at a time."""

    name: str = "prefix"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the cold cell, then the warm ones with the same prompts."""
        return (_cell(context, "cold", 1), *(_cell(context, "warm", level) for level in WARM_LEVELS))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return one finding on answers that differ; it is inconclusive where the cache was not used."""
        seen = triage(self, context, observations)
        measured, against = dict[str, float | str](), list[tuple[Verdict, str]]()
        try:
            measured, against = _compare(seen)
        except NoLogprobsError as error:
            against = [(Verdict.INVALID, str(error))]
        return [
            conclude(
                seen,
                "answers do not depend on the prefix cache",
                "Greedy answers about documents that are not cached, and again when they are: at the first"
                " token where an answer leaves the cold one, by how much less likely it is there.",
                against=against,
                passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} warm"
                f" answers differ, none by more than {measured.get('largest gap nat', 0)} nat",
                threshold=f"no gap above {LIMIT_NAT} nat; decides nothing where less than {LEAST_HIT:.0%} of"
                " the warm prompts' tokens come from the cache",
                measured=measured,
                warnings=seen.notes,
                needs=(METRICS, PREFIX_CACHE, LOGPROBS),
            )
        ]


# Rehearsals run it, and --checks.
CHECK = RegisteredCheck(Prefix(), profiles={"cpu": 45})


def _cell(context: Context, cache: str, level: int) -> Cell:
    seed = context.profile.seed
    prompts = tuple(
        context.corpus.document(TOKENS, seed=seed + number, salt=f"prefix {number}")
        for number in range(DOCUMENTS)
    )
    load = Load(concurrency=level, requests=DOCUMENTS, max_tokens=LENGTH, logprobs=ALTERNATIVES, seed=seed)
    return Cell(check="prefix", name=f"{cache} c={level}", load=load, prompts=prompts, tags={"cache": cache})


def _compare(seen: CheckedCells) -> tuple[dict[str, float | str], list[tuple[Verdict, str]]]:
    """Return the figures and the reasons against.

    Raises:
        NoLogprobsError: an answer has no log-probabilities where they are needed.
    """
    cold = next(iter(seen.tagged(cache="cold").sound), None)
    warm = seen.tagged(cache="warm").sound
    if cold is None or not warm:
        return {}, [(Verdict.INCONCLUSIVE, "there are no answers to compare")]
    share = min(_hit_share(observation) for observation in warm)
    compared = [(o.cell, pair(cold, o)) for o in warm]
    gaps = [gap for _, pairing in compared for gap in pairing.gaps]
    measured: dict[str, float | str] = {
        "answers": len(gaps),
        "answers that differ": sum(gap > 0 for gap in gaps),
        "largest gap nat": round(max(gaps, default=0.0), 4),
        "tokens from the cache %": round(100 * share, 1),
    }
    if share < LEAST_HIT:
        return measured, [(Verdict.INCONCLUSIVE, f"{share:.0%} of the warm prompts' tokens were cached")]
    found = [
        (difference, describe(cell))
        for cell, pairing in compared
        for difference in pairing.found
        if difference.gap > LIMIT_NAT
    ]
    if not found:
        return measured, []
    worst, where = max(found, key=lambda entry: entry[0].gap)
    shown = f"{len(found)} of {len(gaps)} answers depend on the prefix cache, such as in {where} {worst}"
    return measured, [(Verdict.FAIL, shown)]


def _hit_share(observation: Observation) -> float:
    """Return the share of looked-up prompt tokens that were cached; 0 where no counter says so."""
    before, after = observation.before, observation.after
    if before is None or after is None or min(before.prefix_queries, before.prefix_hits) < 0:
        return 0.0
    looked_up = after.prefix_queries - before.prefix_queries
    return (after.prefix_hits - before.prefix_hits) / looked_up if looked_up > 0 else 0.0
