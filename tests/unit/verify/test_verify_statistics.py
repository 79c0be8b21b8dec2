"""Statistics: known answers, brute force, and over fixed seeds how often intervals hold and tests err."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Chunk, FailureKind, RequestFailure, Sample
from sparkwright.verify.compare import FALSE_WORSE, Compared, Look, Spread, ratio_of
from sparkwright.verify.statistics import (
    mcnemar,
    one_sided_excess,
    percentile,
    ratio_interval,
    steady_window,
    summary,
    t_quantile,
    theil_sen,
    whole_run,
)


def test_summary_of_known_values() -> None:
    found = summary(list(range(1, 102)))
    assert (found.p50, found.p95, found.p99) == (51, 96, 100)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_what_is_no_number_is_refused_everywhere(values: list[float]) -> None:
    for figure in (
        summary,
        lambda v: percentile(v, 50),
        lambda v: theil_sen(list(range(len(v))), v),
        lambda v: one_sided_excess([0.0], v),
        lambda v: one_sided_excess(v, [0.0]),
        lambda _: mcnemar(-1, 3),
        lambda _: t_quantile(1, 3),
        lambda _: t_quantile(0.5, 0),
    ):
        with pytest.raises(ValueError):
            figure(values)


SECOND = 10**9


def request(begin: float, end: float, tokens: int = 0, **changes: Any) -> Sample:
    """A request with one chunk of one token at each whole second after its start."""
    moments = [begin + number for number in range(1, tokens + 1)]
    fields: dict[str, Any] = {
        "prompt": "p",
        "category": "code",
        "started": round(begin * SECOND),
        "ended": round(end * SECOND),
        "chunks": tuple(Chunk(round(moment * SECOND), 1) for moment in moments),
        "output_tokens": tokens,
    }
    return Sample(**{**fields, **changes})


def bounds(samples: list[Sample], concurrency: int) -> tuple[float, float]:
    window = steady_window(samples, concurrency)
    return window.begin / SECOND, window.end / SECOND


@pytest.mark.parametrize(
    ("spans", "concurrency", "expected"),
    [
        ([(begin, begin + 30) for begin in range(10)], 10, (9, 30)),  # without rise and drain
        ([(begin, 100) for begin in range(19)], 20, (18, 100)),  # 95 % are enough
        ([(begin, 100) for begin in range(18)], 20, (0, 0)),
        ([(0, 10), (10, 20), (20.5, 30)], 1, (0, 30)),  # a moment between two does not end it
        ([(0, 5), (2, 5), (5, 8)], 2, (2, 5)),  # an end comes before a start of the same moment
        ([(0, 5), (2, 5), (5, 8)], 3, (0, 0)),
    ],
)
def test_the_window_is_the_time_at_full_concurrency(spans, concurrency, expected) -> None:
    samples = [request(*span) for span in spans]
    assert bounds(samples, concurrency) == expected
    assert bool(steady_window(samples, concurrency)) == (expected != (0, 0))


def test_the_window_counts_tokens_by_their_moments() -> None:
    samples = [request(0, 10, tokens=10), request(4, 20, tokens=16)]
    window = steady_window(samples, 2)
    assert (window.begin, window.end) == (4 * SECOND, 10 * SECOND)
    assert window.tokens == 12  # of each request those at seconds 5 to 10
    assert window.tokens_per_s == pytest.approx(2)
    whole = whole_run(samples)
    assert (whole.begin, whole.end, whole.tokens) == (0, 20 * SECOND, 26)
    assert whole.tokens_per_s == pytest.approx(1.3)


def test_warm_ups_do_not_count_and_failed_requests_bring_no_tokens() -> None:
    failure = RequestFailure(kind=FailureKind.TRUNCATED, detail="")
    samples = [request(0, 3, 3, counted=False), request(5, 10, 5), request(5, 12, 5, failure=failure)]
    window = steady_window(samples, 2)
    assert (window.begin, window.end, window.tokens) == (5 * SECOND, 10 * SECOND, 5)
    assert whole_run(samples).end == 12 * SECOND


def test_chunks_without_token_ids_share_what_usage_says() -> None:
    chunks = tuple(Chunk(moment * SECOND, 0) for moment in (1, 2, 3, 6))
    sample = request(0, 10, chunks=chunks, output_tokens=20)
    other = request(0, 5)
    assert steady_window([sample, other], 2).tokens == 15
    assert whole_run([sample, other]).tokens == 20


def test_no_samples_are_an_empty_window() -> None:
    for window in (steady_window([], 4), whole_run([])):
        assert not window
        assert (window.tokens, window.seconds, window.tokens_per_s) == (0, 0, 0)


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=12)


@given(intervals, st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_window_is_what_counting_at_every_moment_gives(spans, concurrency, random):
    samples = [request(begin, begin + length) for begin, length in spans]
    enough = math.ceil(0.95 * concurrency)
    running = [sum(b <= second < b + n for b, n in spans) for second in range(61)]
    busy = [second for second, count in enumerate(running) if count >= enough]
    expected = (busy[0], busy[-1] + 1) if busy else (0, 0)
    assert bounds(samples, concurrency) == expected
    random.shuffle(samples)
    assert bounds(samples, concurrency) == expected


def test_slope_and_interval_of_a_published_example() -> None:
    """The example of Sen (1968)."""
    x, y = [1, 2, 3, 4, 10, 12, 18], [9, 15, 19, 20, 45, 55, 78]
    found = theil_sen(x, y, level=0.93)
    assert (found.slope, found.low, found.high) == pytest.approx((4, 26 / 7, 35 / 8))


def test_too_few_values_have_no_interval() -> None:
    assert theil_sen([0, 1, 2], [0, 1, 2]) == type(theil_sen([0, 1], [0, 1]))(1, -math.inf, math.inf)


@pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1], [1]), ([1, 2, 3], [1, 2])])
def test_no_slope_of_what_has_none(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError):
        theil_sen(x, y)


def test_excess_is_what_all_splits_give() -> None:
    null, observed = [1.0, 2.0, 2.0, 5.0, 0.0], [3.0, 5.0, 6.0, 2.0]
    values = np.array([*null, *observed])
    ranks = np.array([(values < one).sum() + ((values == one).sum() + 1) / 2 for one in values])
    splits = [sum(ranks[list(pick)]) for pick in itertools.combinations(range(9), 4)]
    exact = np.mean([total >= ranks[5:].sum() for total in splits])
    assert one_sided_excess(null, observed) == pytest.approx(exact, abs=0.015)


def test_excess_looks_to_one_side() -> None:
    small, large = [0.01 * number for number in range(20)], [1 + 0.01 * number for number in range(20)]
    assert one_sided_excess(small, large) < 0.001
    assert one_sided_excess(large, small) > 0.999
    assert one_sided_excess([0.0] * 10, [0.0] * 10) == 1


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (10, 2, 0.03857421875), (1, 9, 0.021484375), (6, 5, 1.0)],
)
def test_mcnemar_is_the_sign_test(b: int, c: int, p: float) -> None:
    assert mcnemar(b, c) == pytest.approx(p)
    assert mcnemar(c, b) == pytest.approx(p)


def test_the_interval_of_a_mean_of_clusters_is_students() -> None:
    mean, low, high = ratio_interval([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 0.95)
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    wide = ratio_interval([10.0, 20.0, 30.0], [10.0, 10.0, 10.0], 0.95)
    assert wide == pytest.approx((mean, low, high))  # values of one cluster are no more than it


def near(found: int, trials: int, rate: float) -> bool:
    """Whether *found* of *trials* agree with *rate* within four standard errors."""
    return abs(found - rate * trials) <= 4 * math.sqrt(trials * rate * (1 - rate)) + 1


@pytest.mark.parametrize("starts", [3, 5, 8])
def test_intervals_over_starts_hold_the_ratio(starts: int) -> None:
    """Starts are 5 % apart; the ratio is 1.1."""
    random = np.random.default_rng(starts)
    held = 0
    for _ in range(400):
        arms = [list(random.normal(level, 0.05, starts)) for level in (math.log(1.1), 0.0)]
        ratio = ratio_of(*arms, Spread.of(arms), 0.025)
        held += ratio.low <= 1.1 <= ratio.high
    assert near(held, 400, 0.95)


@pytest.mark.parametrize("starts", [3, 5, 8])
@pytest.mark.parametrize("spread", [0.015, 0.05, 0.08])
def test_a_server_as_fast_as_the_reference_is_rarely_called_worse(starts: int, spread: float) -> None:
    random, found = np.random.default_rng(starts), 0
    for _ in range(400):
        sides = []
        for _ in range(2):
            luck = random.normal(0, spread, starts)
            sides.append({level: list(luck + random.normal(0, 0.005, starts)) for level in (1, 8, 32)})
        found += Compared(*sides, Look(starts)).verdict is Verdict.FAIL
    assert near(found, 400, FALSE_WORSE)


def test_an_undecided_comparison_names_the_concurrency_whose_interval_is_too_wide() -> None:
    def compared(luck: float) -> Compared:
        side = {1: [0.0, 0.0, 0.0], 8: [luck, -luck, 0.0]}
        return Compared(side, side, Look(3))

    wide, narrow = compared(0.05), compared(0.04)
    assert (wide.verdict, narrow.verdict) == (Verdict.INCONCLUSIVE, Verdict.PASS)
    assert "; at c=8 " in str(wide)
    assert "c=1" not in str(wide)
    assert "c=8" not in str(narrow)


def test_slopes_of_noise_are_rarely_below_zero_for_sure() -> None:
    random = np.random.default_rng(7)
    alarms = sum(theil_sen(range(60), list(random.normal(size=60))).high < 0 for _ in range(400))
    assert near(alarms, 400, 0.02)


def test_equal_gaps_rarely_exceed() -> None:
    random = np.random.default_rng(9)

    def gaps() -> list[float]:
        return [float(gap) for gap in np.where(random.random(48) < 0.3, random.exponential(0.1, 48), 0)]

    alarms = sum(one_sided_excess(gaps(), gaps(), seed) <= 0.05 for seed in range(60))
    assert near(alarms, 60, 0.05)


def test_gaps_twice_as_often_and_twice_as_large_mostly_exceed() -> None:
    random = np.random.default_rng(10)

    def gaps(share: float, size: float) -> list[float]:
        return [float(gap) for gap in np.where(random.random(48) < share, random.exponential(size, 48), 0)]

    found = sum(one_sided_excess(gaps(0.3, 0.1), gaps(0.6, 0.2), seed) <= 0.05 for seed in range(20))
    assert found >= 18
