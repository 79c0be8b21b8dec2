"""Figures of a cell: throughput, latency, time of a verify step, acceptance; whether the drafter works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics.counters import SpeculationAbsentError, speculation, step_time_ms
from sparkwright.engine.observations import BootFacts, Observation, Sample
from sparkwright.verify.checks.common import Values, conclude
from sparkwright.verify.checks.triage import CheckedCells, Reason
from sparkwright.verify.compare import Ratio
from sparkwright.verify.statistics import Summary, steady_window, summary, t_quantile, whole_run

FEW_DRAFTS = 50
"""With fewer drafts than this a drafter is not judged."""
INERT = 0.05
"""Accepted tokens a draft below which a drafter is inert. In published tables for GB10 the worst
category of any model has 1.1; a drafter whose hidden states are wrong guesses a token in thousands."""
INERT_CAUSE, DECAYS = "drafter inert", "acceptance decays"
"""Beginnings of the cause of each finding that fails because of a broken drafter."""

_LEAST_QUESTIONS = 4
AT_TIMES = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft only where the text repeats itself: their other steps have no draft."""


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over one observation.

    Attributes:
        mal: mean acceptance length: tokens per verify step, the target's own included.
        error: standard error of `mal`, over texts and drafts.
        chance: the same of drafts alone, for the same texts again.
        rate: share of drafted tokens that were accepted.
        drafts: requests times steps.
    """

    mal: float
    error: float
    chance: float
    rate: float
    drafts: float

    @property
    def accepted(self) -> float:
        """Accepted tokens a draft, which is `mal` less the target's own token."""
        return self.mal - 1


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
    return Acceptance(mal, error, chance, seen.acceptance_rate, seen.drafts)


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
) -> Ratio:
    """Return one mean acceptance length over another, *width* standard errors to either side (see `surely`).

    With *accepted*, accepted tokens a draft are compared instead, without the target's own token, which hides
    a loss where acceptance was low from the start. The *same_texts* differ by chance alone.
    """
    one, other = (of.accepted, to.accepted) if accepted else (of.mal, to.mal)
    if other <= 0:
        return Ratio(math.nan, 0.0, math.inf)
    value = one / other
    spread = (of.chance, to.chance) if same_texts else (of.error, to.error)
    error = math.hypot(spread[0] / other, value * spread[1] / other)
    return Ratio(value, max(0.0, value - width * error), value + width * error)


# The same questions on two occasions ---------------------------------------------------------------------


def question_of(prompt: str) -> str:
    """Return the question in a prompt's name: all up to the last slash, before the repetition's mark."""
    return prompt.rpartition("/")[0]


def paired_ratio(
    of: Sequence[Observation], to: Sequence[Observation], comparisons: int, error: float
) -> Ratio | None:
    """Return accepted tokens a draft over those of the same questions on another occasion.

    The ratio is that of the server's counters. How sure it is comes from leaving out one question at a time
    (jackknife of the logarithm; t distribution), with tokens and chunks of each answer: questions differ far
    more from each other than repetitions of one. Chunks tell steps apart well enough for that. The *error* is
    the chance that any of all *comparisons* errs (Bonferroni).

    Returns:
        The ratio; `None` if nothing was drafted or the denominator is 0. Without four questions in common the
        interval is from 0 to infinity.
    """
    over, under = _accepted(of), _accepted(to)
    if over is None or under is None or under <= 0:
        return None
    value = over / under
    one, other = _by_question(of), _by_question(to)
    common = sorted(one.keys() & other.keys())
    if len(common) < _LEAST_QUESTIONS:
        return Ratio(value, 0.0, math.inf)
    left_out = []
    for omitted in (None, *common):
        kept = [name for name in common if name != omitted]
        pair = _rate(one, kept), _rate(other, kept)
        if min(pair) <= 0:  # nothing accepted at all: the bound is what one accepted token would have given
            return Ratio(value, 0.0, value + 1 / max(1.0, sum(other[name][1] for name in common)))
        left_out.append(math.log(pair[0] / pair[1]))
    n = len(common)
    mean = math.fsum(left_out[1:]) / n
    spread = math.sqrt((n - 1) / n * math.fsum((x - mean) ** 2 for x in left_out[1:]))
    width = t_quantile(1 - error / (2 * max(1, comparisons)), n - 1) * spread
    return Ratio(value, value * math.exp(-width), value * math.exp(width))


def _accepted(observations: Sequence[Observation]) -> float | None:
    """Return accepted tokens a draft by counters, over all observations."""
    found = [one for one in map(acceptance, observations) if one is not None]
    drafts = math.fsum(one.drafts for one in found)
    return math.fsum(one.accepted * one.drafts for one in found) / drafts if drafts else None


def _by_question(observations: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Return accepted tokens and steps of each question's answers, by the client's own chunks."""
    tokens: dict[str, tuple[float, float]] = {}
    for observation in observations:
        for sample in observation.counted:
            steps = len(sample.chunks) - 1
            if steps < 1:
                continue
            name = question_of(sample.prompt)
            accepted, before = tokens.get(name, (0.0, 0.0))
            tokens[name] = (accepted + max(0, sample.output_tokens - 1 - steps), before + steps)
    return tokens


def _rate(tokens: dict[str, tuple[float, float]], names: Sequence[str]) -> float:
    return math.fsum(tokens[name][0] for name in names) / math.fsum(tokens[name][1] for name in names)


# Is there a drafter? -------------------------------------------------------------------------------------


def not_speculating(facts: BootFacts) -> list[Reason]:
    """Return the reason for which there is no acceptance to judge, if no drafted tokens are configured."""
    if facts.speculative_tokens:  # also where their number is unknown
        return []
    return [(Verdict.INCONCLUSIVE, "this server does not speculate: there is no acceptance to judge")]


def drafter_finding(
    seen: CheckedCells, facts: BootFacts, definition: str, measured: Values | None = None
) -> Finding:
    """Return the finding that the drafter works, over all sound observations in *seen*."""
    return conclude(
        seen,
        "figures.drafter",
        told={"definition": definition},
        against=drafter(facts, seen.sound) if seen.sound else (),
        passed="drafted tokens are accepted",
        measured=measured,
    )


def drafter(facts: BootFacts, observations: Sequence[Observation]) -> list[Reason]:
    """Return the reasons against the drafter over all of these observations together.

    Servers that need not speculate are not judged (see `Context.lacks`). A drafter is *inert* when the log
    says that nothing drafts, when its series are absent although it is configured, when it drafts nothing,
    when its counters are not numbers, or when next to nothing that it drafts is accepted.
    """
    if not_speculating(facts):
        why = "the server should speculate, and its log says that it does not"
        return [(Verdict.FAIL, f"{INERT_CAUSE}: {why}")]
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
    return [(Verdict.FAIL, f"{INERT_CAUSE}: {why}")] if why else []


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


# Figures of a cell ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """Figures of one cell, NaN where unknown. Times are in the server's ms, rates in its tokens per second.

    Attributes:
        steady_tok_s: output while at least 95 % of `concurrency` ran.
        whole_tok_s: output from the first request's start to the last one's end.
        decode_tok_s: of one request after its first token, over all requests' tokens.
        tpot_ms: time per output token after the first, by request.
        gap_ms: time between chunks with output, pooled.
        tokens_per_chunk: of chunks after a request's first.
        step_ms: time of one verify step, ``MAL / decode rate``.
    """

    concurrency: int
    requests: int
    steady_tok_s: float
    whole_tok_s: float
    decode_tok_s: float
    ttft_ms: Summary
    tpot_ms: Summary
    gap_ms: Summary
    tokens_per_chunk: float
    acceptance: Acceptance | None
    step_ms: float

    def measured(self) -> dict[str, float | str]:
        """Return all figures by name, for a finding."""
        shown: dict[str, float | str] = {
            "requests": self.requests,
            "steady tok/s": self.steady_tok_s,
            "whole tok/s": self.whole_tok_s,
            "decode tok/s": self.decode_tok_s,
            "tokens per chunk": self.tokens_per_chunk,
        }
        for name, found in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("chunk gap", self.gap_ms)):
            shown |= {f"{name} p50 ms": found.p50, f"{name} p95 ms": found.p95}
            shown |= {} if found.p99 is None else {f"{name} p99 ms": found.p99}
        if self.acceptance is not None:
            shown |= {
                "acceptance %": 100 * self.acceptance.rate,
                "MAL": self.acceptance.mal,
                "verify step ms": self.step_ms,
            }
        return {
            name: value if isinstance(value, str) else round(value, 3)
            for name, value in shown.items()
            if isinstance(value, str) or math.isfinite(value)
        }


def figures(observation: Observation, speed: float = 1.0) -> Figures:
    """Return the figures of *observation*, whose server runs *speed* times as fast as the client's clock.

    Raises:
        ValueError: no request was counted.
    """
    counted, load = observation.counted, observation.cell.load
    scale = speed / 1e6
    tpot = [sample.tpot_ms * speed for sample in counted if sample.output_tokens > 1]
    gaps = [(b.at - a.at) * scale for sample in counted for a, b in pairwise(sample.chunks)]
    found, rate = acceptance(observation), decode_rate(counted, speed)
    window = steady_window(observation.samples, load.concurrency)
    rated = bool(counted) and all(sample.counted_by for sample in counted)
    return Figures(
        concurrency=load.concurrency,
        requests=len(counted),
        steady_tok_s=window.tokens_per_s / speed if rated and window else math.nan,
        whole_tok_s=whole_run(observation.samples).tokens_per_s / speed if rated else math.nan,
        decode_tok_s=rate,
        ttft_ms=_summary([sample.ttft_ms * speed for sample in counted]),
        tpot_ms=_summary(tpot),
        gap_ms=_summary(gaps),
        tokens_per_chunk=_tokens_per_chunk(counted),
        acceptance=found,
        step_ms=step_time_ms(found.mal, rate) if found is not None and rate > 0 else math.nan,
    )


def _summary(values: Sequence[float]) -> Summary:
    return summary(values) if values else Summary(math.nan, math.nan, None)


def decode_rate(samples: Sequence[Sample], speed: float = 1.0) -> float:
    """Return tokens per second of one request after its first, in the server's time, over all *samples*.

    All requests' tokens over all requests' time, so that it goes with a mean acceptance length over all
    steps. NaN if no time passed.
    """
    several = [sample for sample in samples if sample.output_tokens > 1]
    seconds = sum(sample.last - sample.first for sample in several) * speed / 1e9
    tokens = sum(sample.output_tokens - 1 for sample in several)
    return tokens / seconds if seconds > 0 else math.nan


def event_gap_ms(samples: Sequence[Sample]) -> float:
    """Return the mean time between events with output, by the client's clock; NaN without any."""
    several = [sample for sample in samples if len(sample.chunks) > 1]
    gaps = sum(len(sample.chunks) - 1 for sample in several)
    return sum(sample.last - sample.first for sample in several) / 1e6 / gaps if gaps else math.nan


def _tokens_per_chunk(samples: Sequence[Sample]) -> float:
    """Return tokens per chunk after the first, which holds the prefill step's token; NaN without any."""
    chunks = sum(len(sample.chunks) - 1 for sample in samples if len(sample.chunks) > 1)
    tokens = sum(sample.output_tokens - 1 for sample in samples if len(sample.chunks) > 1)
    return tokens / chunks if chunks else math.nan
