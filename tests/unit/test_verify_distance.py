"""The bound of the divergence: zero for the same, never above the true one, growing with the difference."""

import math
import random

import pytest

from sparkwright.verify.checks.answers import kl_bound


def softmax(logits: dict[str, float]) -> dict[str, float]:
    total = math.log(sum(map(math.exp, logits.values())))
    return {token: logit - total for token, logit in logits.items()}


def top(logprobs: dict[str, float], count: int) -> dict[str, float]:
    return dict(sorted(logprobs.items(), key=lambda entry: -entry[1])[:count])


def divergence(p: dict[str, float], q: dict[str, float]) -> float:
    return sum(math.exp(p[token]) * (p[token] - q[token]) for token in p)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("count", [1, 3, 5, 50])
def test_the_bound_is_never_above_the_divergence(seed: int, count: int) -> None:
    draw = random.Random(seed)
    logits = {f"t{i}": draw.gauss(0, 3) for i in range(50)}
    p = softmax(logits)
    q = softmax({token: logit + draw.gauss(0, 1.5) for token, logit in logits.items()})
    bound = kl_bound(top(p, count), top(q, count))
    assert 0 <= bound <= divergence(p, q) + 1e-9
    if count == 50:
        assert bound == pytest.approx(divergence(p, q), abs=1e-9)


def test_the_same_distribution_is_no_distance_and_another_is() -> None:
    p = softmax({"a": 0.0, "b": -1.0, "c": -4.0})
    assert kl_bound(p, p) == 0
    assert kl_bound(top(p, 2), softmax({"x": 0.0, "y": -1.0})) > 0.2
    near, far = (softmax({"a": 0.0, "b": -1.0 + shift, "c": -4.0}) for shift in (0.05, 1.0))
    assert 0 < kl_bound(p, near) < 0.001 < kl_bound(p, far)


def test_nothing_and_minus_infinity_make_no_infinite_distance() -> None:
    assert kl_bound({}, {"a": 0.0}) == 0
    assert 10 < kl_bound({"a": -9999.0, "b": 0.0}, {"a": 0.0, "b": -9999.0}) < 100
