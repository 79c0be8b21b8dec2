"""Distance of two servers' next-token distributions, where both had generated the same tokens before.

Servers report a few of the most likely tokens alone, so the Kullback-Leibler divergence is bounded from
below: each token is a term p ln(p/q) - p + q, which is never negative and grows as p and q part. Of a token
that one side does not report, that side's probability is at most that of its least likely reported token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparkwright.engine.observations import Observation, Sample

_LEAST = -50.0
"""Log-probabilities below are taken for this one: vLLM writes -9999 for minus infinity."""


def kl_bound(reference: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return a lower bound of the divergence of *other* from *reference*, in nats.

    Args:
        reference: log-probabilities of its most likely tokens.
        other: the same of the other server.
    """
    if not reference or not other:
        return 0.0
    most_p, most_q = min(reference.values()), min(other.values())
    bound = 0.0
    for token in reference.keys() | other.keys():
        log_p, log_q = reference.get(token), other.get(token)
        if log_p is None:
            log_q = other[token]
            log_p = min(most_p, log_q)
        elif log_q is None:
            log_q = min(most_q, log_p)
        log_p, log_q = max(log_p, _LEAST), max(log_q, _LEAST)
        p = math.exp(log_p)
        bound += p * (log_p - log_q) - p + math.exp(log_q)
    return max(0.0, bound)


def distances(reference: Observation, other: Observation) -> dict[str, list[float]]:
    """Return by prompt the bound at each token of two answers, up to the first at which they differ.

    Up to there, and at that token too, both servers continue the same text. Prompts without
    log-probabilities on both sides are left out.
    """
    by_prompt = {sample.prompt: sample for sample in reference.counted}
    found = {}
    for sample in other.counted:
        base = by_prompt.get(sample.prompt)
        if base is not None and base.logprobs and sample.logprobs:
            found[sample.prompt] = _of_answer(base, sample)
    return found


def _of_answer(base: Sample, sample: Sample) -> list[float]:
    bounds = []
    for one, two in zip(base.logprobs, sample.logprobs, strict=False):
        bounds.append(kl_bound(one.top, two.top))
        if one.token != two.token:
            break
    return bounds
