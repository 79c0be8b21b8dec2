"""Acceptance of the same questions on two occasions, so that the questions cancel out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.acceptance import RatioInterval, acceptance
from sparkwright.verify.statistics import t_quantile

_LEAST_QUESTIONS = 4

_Tokens = dict[str, tuple[float, float]]


def question_of(prompt: str) -> str:
    """Return the question in a prompt's name: all up to the last slash, before the repetition's mark."""
    return prompt.rpartition("/")[0]


def paired_ratio(
    of: Sequence[Observation], to: Sequence[Observation], comparisons: int, error: float
) -> RatioInterval | None:
    """Return accepted tokens a draft over those of the same questions on another occasion.

    The ratio is that of the server's counters. How sure it is comes from leaving out one question at a time
    (jackknife of the logarithm; t distribution), with tokens and chunks of each answer: questions differ far
    more from each other than repetitions of one. Chunks tell steps apart well enough for that.

    Args:
        of: occasions of the numerator, taken together.
        to: those of the denominator.
        comparisons: number of all comparisons (Bonferroni).
        error: chance that any of them errs.

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
        return RatioInterval(value, 0.0, math.inf)
    left_out = []
    for omitted in (None, *common):
        kept = [name for name in common if name != omitted]
        pair = _rate(one, kept), _rate(other, kept)
        if min(pair) <= 0:  # nothing accepted at all: the bound is what one accepted token would have given
            return RatioInterval(value, 0.0, value + 1 / max(1.0, sum(other[name][1] for name in common)))
        left_out.append(math.log(pair[0] / pair[1]))
    n = len(common)
    mean = math.fsum(left_out[1:]) / n
    spread = math.sqrt((n - 1) / n * math.fsum((x - mean) ** 2 for x in left_out[1:]))
    width = t_quantile(1 - error / (2 * max(1, comparisons)), n - 1) * spread
    return RatioInterval(value, value * math.exp(-width), value * math.exp(width))


def _accepted(observations: Sequence[Observation]) -> float | None:
    """Return accepted tokens a draft by counters, over all observations."""
    found = [one for one in map(acceptance, observations) if one is not None]
    drafts = math.fsum(one.drafts for one in found)
    return math.fsum(one.accepted * one.drafts for one in found) / drafts if drafts else None


def _by_question(observations: Sequence[Observation]) -> _Tokens:
    """Return accepted tokens and steps of each question's answers, by the client's own chunks."""
    tokens: _Tokens = {}
    for observation in observations:
        for sample in observation.counted:
            steps = len(sample.chunks) - 1
            if steps < 1:
                continue
            name = question_of(sample.prompt)
            accepted, before = tokens.get(name, (0.0, 0.0))
            tokens[name] = (accepted + max(0, sample.output_tokens - 1 - steps), before + steps)
    return tokens


def _rate(tokens: _Tokens, names: Sequence[str]) -> float:
    return math.fsum(tokens[name][0] for name in names) / math.fsum(tokens[name][1] for name in names)
