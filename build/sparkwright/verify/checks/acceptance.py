"""Acceptance of drafted tokens with its standard error, and detection of an inert drafter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from sparkwright.engine.capabilities import SPECULATION
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics import SpeculationAbsentError, speculation
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude

FEW_DRAFTS = 50
"""With fewer drafts than this a drafter is not judged."""
INERT = 0.05
"""Accepted tokens a draft below which a drafter is inert. In published tables for GB10 the worst
category of any model has 1.1; a drafter whose hidden states are wrong guesses a token in thousands."""


AT_TIMES = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft only where the text repeats itself: their other steps have no draft."""


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over one observation.

    Attributes:
        mal: mean acceptance length: tokens per verify step, the target's own included.
        error: standard error of `mal`, over texts and drafts.
        chance: the same of drafts alone, for the same texts again.
        rate: share of drafted tokens that were accepted, 0 to 1.
        drafts: requests times steps.
        positions: share of drafts whose token was accepted, by position.
    """

    mal: float
    error: float
    chance: float
    rate: float
    drafts: float
    positions: tuple[float, ...]

    @property
    def accepted(self) -> float:
        """Accepted tokens a draft, which is `mal` less the target's own token."""
        return self.mal - 1


@dataclass(frozen=True)
class RatioInterval:
    """A ratio and its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def acceptance(observation: Observation) -> Acceptance | None:
    """Return acceptance by the server's counters over one observation; `None` if none was counted.

    The standard error is the larger of two: that of independent drafts, from the shares by position (the
    variance of accepted tokens j is ``sum (2 i - 1) P(j >= i) - (sum P(j >= i))^2``), and that of a ratio
    estimator over requests, whose texts differ (Cochran, Sampling Techniques, 6.4), where chunks tell
    steps apart.
    """
    if observation.before is None or observation.after is None:
        return None
    try:
        seen = speculation(observation.before, observation.after)
    except SpeculationAbsentError:
        return None
    if not seen.drafts > 0 or not math.isfinite(seen.accepted):
        return None
    mal = seen.mean_acceptance_length
    chance = math.sqrt(_variance(seen.position_rates, mal - 1) / seen.drafts)
    error = max(chance, mal * _between_requests(observation))
    return Acceptance(mal, error, chance, seen.acceptance_rate, seen.drafts, seen.position_rates)


def _variance(positions: Sequence[float], mean: float) -> float:
    """Return the variance of accepted tokens a draft."""
    if not positions:
        return mean * (mean + 1)  # of a geometric distribution
    return max(sum((2 * i - 1) * share for i, share in enumerate(positions, 1)) - mean**2, 0.0)


def _between_requests(observation: Observation) -> float:
    """Return the relative standard error of tokens a step over requests; 0 with fewer than three."""
    pairs = [
        (sample.output_tokens - 1, len(sample.chunks) - 1)
        for sample in observation.counted
        if len(sample.chunks) > 1
    ]
    if len(pairs) < 3:  # noqa: PLR2004 - no spread from fewer
        return 0.0
    steps = sum(step for _, step in pairs)
    each = sum(tokens for tokens, _ in pairs) / steps
    spread = sum((tokens - each * step) ** 2 for tokens, step in pairs)
    return math.sqrt(spread * len(pairs) / (len(pairs) - 1)) / steps / each


def surely(comparisons: int = 1, error: float = 0.05) -> float:
    """Return the half-width of intervals in standard errors, for a joint *error* over all *comparisons*.

    Two-sided, with Bonferroni's correction.
    """
    return NormalDist().inv_cdf(1 - error / (2 * max(1, comparisons)))


def ratio(
    of: Acceptance, to: Acceptance, width: float, *, accepted: bool = False, same_texts: bool = False
) -> RatioInterval:
    """Return one mean acceptance length over another, with its interval.

    Args:
        of: the numerator.
        to: the denominator.
        width: standard errors to either side, see `surely`.
        accepted: compare accepted tokens a draft instead, without the target's own token, which hides a loss
            where acceptance was low from the start.
        same_texts: both were measured with the same prompts, so that they differ by chance alone.
    """
    one, other = (of.accepted, to.accepted) if accepted else (of.mal, to.mal)
    if other <= 0:
        return RatioInterval(math.nan, 0.0, math.inf)
    value = one / other
    spread = (of.chance, to.chance) if same_texts else (of.error, to.error)
    error = math.hypot(spread[0] / other, value * spread[1] / other)
    return RatioInterval(value, max(0.0, value - width * error), value + width * error)


# Is there a drafter? -------------------------------------------------------------------------------------


def not_speculating(facts: BootFacts) -> list[Reason]:
    """Return the reason for which there is no acceptance to judge, if no drafted tokens are configured."""
    if facts.speculative_tokens:  # also where their number is unknown
        return []
    return [(Verdict.INCONCLUSIVE, "this server does not speculate: there is no acceptance to judge")]


def drafter_finding(
    seen: CheckedCells, facts: BootFacts, definition: str, measured: Mapping[str, float | str] | None = None
) -> Finding:
    """Return the finding that the drafter works, over all sound observations in *seen*."""
    return conclude(
        seen,
        "the drafter works",
        definition,
        against=drafter(facts, seen.sound) if seen.sound else (),
        passed="drafted tokens are accepted",
        threshold=f"at least {INERT} accepted tokens a draft",
        measured=measured,
        lenient=True,
        needs=(SPECULATION,),
    )


def drafter(facts: BootFacts, observations: Sequence[Observation]) -> list[Reason]:
    """Return the reasons against the drafter over all of these observations together.

    Servers that need not speculate are not judged (see `Context.lacks`). A drafter is *inert* when the log
    says that nothing drafts, when its series are absent although it is configured, when it drafts nothing,
    when its counters are not numbers, or when next to nothing that it drafts is accepted.
    """
    if not_speculating(facts):
        why = "the server should speculate, and its log says that it does not"
        return [(Verdict.FAIL, f"drafter inert: {why}")]
    pairs = [(o.before, o.after) for o in observations if o.before is not None and o.after is not None]
    if not pairs:
        return [(Verdict.INCONCLUSIVE, "no cell with counters was measured: there is no acceptance to judge")]
    try:
        seen = [speculation(before, after) for before, after in pairs]
    except SpeculationAbsentError:
        why = "the server exposes no vllm:spec_decode_* series, so it does not speculate"
        return [(Verdict.FAIL, f"drafter inert: {why}{_although(facts)}")]
    drafts, accepted = sum(one.drafts for one in seen), sum(one.accepted for one in seen)
    if 0 < drafts < FEW_DRAFTS:
        return [(Verdict.INCONCLUSIVE, f"{drafts:.0f} drafts are too few to judge the drafter")]
    why = _inert(drafts, accepted, facts)
    return [(Verdict.FAIL, f"drafter inert: {why}")] if why else []


def _inert(drafts: float, accepted: float, facts: BootFacts) -> str:
    """Return the reason for which a drafter is inert, by its counters; empty if it works."""
    if not (math.isfinite(drafts) and math.isfinite(accepted)):
        return f"its counters are not numbers ({drafts} drafts, {accepted} accepted)"
    if not drafts:
        return f"tokens were generated and nothing was drafted{_although(facts)}"
    if accepted < INERT * drafts:
        shown = f"{accepted:.0f} tokens of {drafts:.0f} drafts were accepted"
        return f"{shown}, a mean acceptance length of {1 + accepted / drafts:.2f}"
    return ""


def _although(facts: BootFacts) -> str:
    if facts.speculative_tokens < 0:
        return ""
    method = facts.speculative_method or "speculation"
    return f" although {method} with {facts.speculative_tokens} tokens is configured"
