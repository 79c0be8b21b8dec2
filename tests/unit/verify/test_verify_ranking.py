"""Which arm is started next, and what may be said of each."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from verify_kit import costly

from sparkwright.verify.checks.settings import (
    OWN,
    State,
    Trial,
    contenders,
    next_start,
    recommended,
    spread_of,
    standings,
)
from sparkwright.verify.compare import SPREAD


def trial(*speeds: float, **more: object) -> Trial:
    return replace(Trial(tuple(map(math.log, speeds)), len(speeds)), **more)


def search(truth: Sequence[float], spread: float, seed: int, mean: int = 3) -> tuple[int | None, list[Trial]]:
    """Return the answer on a surface whose starts have *spread*, and all trials."""
    luck = random.Random(seed)
    trials = [Trial() for _ in truth]
    while (planned := next_start(trials, mean, quality=False)) is not None:
        one = trials[planned.index]
        assert planned.number == one.starts
        drawn = math.log(truth[planned.index]) + luck.gauss(0, spread)
        trials[planned.index] = Trial((*one.scores, drawn), one.starts + 1)
    return recommended(contenders(trials)), trials


def test_spread_is_assumed_until_starts_were_repeated() -> None:
    assert spread_of([trial(100), trial(200)]).deviation == pytest.approx(SPREAD)
    repeated = [Trial(tuple(0.1 * (-1) ** i for i in range(10)), 10) for _ in range(20)]
    assert spread_of(repeated).deviation == pytest.approx(0.104, abs=0.003)


def test_a_surely_slower_arm_is_out_and_a_close_one_is_not() -> None:
    found = standings([trial(110, 109), trial(70, 71), trial(108, 108), trial(110, 111)])
    assert found == [State.OPEN, State.SLOWER, State.OPEN, State.BEST]


def test_what_cannot_be_served_is_out_whatever_its_speed() -> None:
    trials = [trial(100), Trial(out="CUDA out of memory"), trial(200, out="tasks are lost")]
    assert standings(trials) == [State.BEST, State.OUT, State.OUT]
    assert next_start([Trial(out="no"), Trial(out="no")], 3, quality=False) is None
    assert recommended(contenders([Trial(out="no")])) is None


def test_starts_on_a_disturbed_machine_count_for_nothing() -> None:
    planned = next_start([trial(100), Trial((), 1)], 3, quality=False)
    assert planned is not None
    assert (planned.index, planned.number) == (1, 1)
    assert standings([trial(100), Trial((), 10)])[1] is State.UNKNOWN
    after = next_start([trial(100, 100), Trial((), 10)], 3, quality=False)
    assert after is None or after.index == 0
    assert next_start([replace(trial(100, 101), starts=7), trial(100, 103)], 3, quality=False) is not None


def test_each_round_runs_against_the_one_before() -> None:
    trials, order = [Trial() for _ in range(3)], []
    for _ in range(6):
        planned = next_start(trials, 6, quality=False)
        assert planned is not None
        order.append((planned.index, planned.number))
        known = trials[planned.index]
        trials[planned.index] = Trial((*known.scores, 0.001 * planned.index), known.starts + 1)
    assert order == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]


def test_answers_are_judged_of_the_recipe_and_of_what_would_replace_it() -> None:
    trials = [trial(100, 100, 100), trial(150, 150, 150)]
    first = next_start(trials, 3, quality=True)
    assert (first.index, first.quality) == (OWN, True)
    trials[0] = replace(trials[0], checked=True)
    second = next_start(trials, 3, quality=True)
    assert (second.index, second.quality) == (1, True)
    spoilt = [trials[0], replace(trials[1], out="tasks are lost", checked=True)]
    assert next_start(spoilt, 3, quality=True) is None
    assert recommended(contenders(spoilt)) == OWN


@pytest.mark.parametrize("seed", costly(range(60), quick=15))
def test_the_best_is_found_with_fewer_starts_than_a_grid_takes(seed: int) -> None:
    truth = [100 * (1 + 0.04 * ((7 * i + 3) % 12)) for i in range(12)]
    answer, trials = search(truth, 0.015, seed)
    assert answer is not None
    assert truth[answer] >= 0.97 * max(truth)
    assert sum(one.starts for one in trials) < 3 * len(truth)
    assert trials[truth.index(max(truth))].starts > trials[truth.index(min(truth))].starts


def test_the_recipe_is_started_twice_though_others_could_take_every_start() -> None:
    for seed in range(10):
        answer, trials = search([50.0, *[100.0] * 7], 0.08, seed)
        assert answer != OWN
        assert trials[OWN].starts == 2


@pytest.mark.parametrize("mean", [1, 3, 5])
def test_no_more_starts_are_made_than_on_a_grid(mean: int) -> None:
    made = [sum(one.starts for one in search([100.0] * 8, 0.05, seed, mean)[1]) for seed in range(10)]
    assert max(made) == max(mean, 2) * 8
    _, (only,) = search([100.0], 0.05, 0, mean)
    assert only.starts <= max(mean, 2)
