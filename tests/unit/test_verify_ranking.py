"""The strategy of a search: what is started next, and what may be said of each configuration."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from verify_kit import costly

from sparkwright.verify.tune.strategy import (
    OWN,
    Noise,
    Rules,
    StartFigures,
    State,
    Trial,
    at_grid_cost,
    contenders,
    grid_cost,
    next_start,
    ratio_of,
    recommended,
    standings,
)

LIMIT = Rules(limits={"ttft": 2.0})


def start(speed: float, ttft: float = 0.5, memory: float = -1, disturbed: str = "") -> StartFigures:
    return StartFigures(math.log(speed), (speed,), {"ttft": (ttft,)}, memory, disturbed)


def trial(*speeds: float, ttft: float = 0.5) -> Trial:
    return Trial(tuple(start(speed, ttft) for speed in speeds))


def search(truth: Sequence[float], spread: float, seed: int, rules: Rules) -> tuple[int, list[Trial]]:
    """Return the answer on a surface whose starts have *spread*, and all trials."""
    luck = random.Random(seed)
    trials = [Trial() for _ in truth]
    while (planned := next_start(trials, rules, pairs={})) is not None:
        one = trials[planned.index]
        assert planned.number == len(one.starts)
        drawn = start(truth[planned.index] * math.exp(luck.gauss(0, spread)))
        trials[planned.index] = Trial((*one.starts, drawn))
    return recommended(contenders(trials, rules)), trials


# Noise ---------------------------------------------------------------------------------------------------


def test_spread_is_assumed_until_starts_were_repeated() -> None:
    assert Noise.measured([[1.0], [2.0]], 0.02).spread == pytest.approx(0.02)
    repeated = [[0.1 * (-1) ** i for i in range(10)] for _ in range(20)]
    assert Noise.measured(repeated, 0.02).spread == pytest.approx(0.104, abs=0.003)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    luck = random.Random(1)
    held = 0
    for _ in range(400):
        one, other = ([luck.gauss(0, 0.05) for _ in range(3)] for _ in range(2))
        noise = Noise.measured([one, other], 0.05)
        held += ratio_of(one, other, noise, 0.025).low <= 1 <= ratio_of(one, other, noise, 0.025).high
    assert 0.92 <= held / 400 <= 0.99


# What is said of configurations ----------------------------------------------------------------------------


def test_a_surely_slower_configuration_is_out_and_a_close_one_is_not() -> None:
    found = standings([trial(110, 109), trial(70, 71), trial(108, 108), trial(110, 111)], Rules())
    assert [one.state for one in found] == [State.OPEN, State.SLOWER, State.OPEN, State.BEST]
    assert found[1].to_best.high < 1


@pytest.mark.parametrize(("late", "state"), [(5.0, State.BREAKS), (0.5, State.BEST), (1.9, State.OPEN)])
def test_a_time_above_its_limit_breaks_it(late: float, state: State) -> None:
    found = standings([trial(100, 100), trial(200, 201, ttft=late)], LIMIT)
    assert found[1].state is state
    assert found[1].kept is {5.0: False, 0.5: True, 1.9: None}[late]
    if state is State.BREAKS:
        assert "TTFT 5.00 s, above 2 s" in found[1].why


def test_memory_below_the_reserve_breaks_it() -> None:
    rules = Rules(reserve_mib=4096)
    trials = [trial(100), Trial((start(200, memory=1024.0),)), Trial((start(150, memory=9000.0),))]
    found = standings(trials, rules)
    assert (found[1].state, found[2].state) == (State.BREAKS, State.BEST)
    assert "1.0 GiB of memory stay available, below 4.0" in found[1].why


def test_refused_and_worse_configurations_are_out_whatever_their_speed() -> None:
    trials = [trial(100), Trial(refused="CUDA out of memory"), Trial((start(200),), worse="tasks are lost")]
    found = standings(trials, Rules())
    assert [one.state for one in found] == [State.BEST, State.REFUSED, State.WORSE]
    assert found[1].why == "CUDA out of memory"
    assert next_start([Trial(refused="no"), Trial(refused="no")], Rules(), pairs={}) is None


def test_one_whose_limits_are_undecided_is_not_recommended() -> None:
    trials = [Trial(refused="no"), trial(200, 200, 200, 200, 200, 200, ttft=2.0), trial(100, 100, 100)]
    assert contenders(trials, LIMIT) == [2]


def test_starts_on_a_disturbed_machine_count_for_nothing() -> None:
    slowed = Trial((start(10, disturbed="power brake"),))
    planned = next_start([trial(100), slowed], Rules(), pairs={})
    assert (planned.index, planned.number) == (1, 1)
    always = Trial(tuple(start(10, disturbed="power brake") for _ in range(6)))
    found = standings([trial(100), always], Rules())[1]
    assert found.state is State.UNKNOWN
    assert "disturbed in each of its 6 starts: power brake" in found.why
    after = next_start([trial(100, 100), always], Rules(), pairs={})
    assert after is None or after.index == 0


# What is started next ---------------------------------------------------------------------------------------


def test_each_round_runs_against_the_one_before() -> None:
    rules = Rules(strategy="grid", starts=2)
    trials, order = [Trial() for _ in range(3)], []
    while (planned := next_start(trials, rules, pairs={})) is not None:
        order.append((planned.index, planned.number))
        trials[planned.index] = Trial((*trials[planned.index].starts, start(100 + planned.index)))
    assert order == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]


def test_those_that_the_result_names_are_started_twice() -> None:
    trials = [trial(100), trial(50), trial(300)]
    planned = [next_start(trials, Rules(), pairs={2: 1})]
    seen = set()
    while (one := next_start(trials, Rules(), pairs={2: 1})) is not None:
        seen.add(one.index)
        starts = trials[one.index].starts
        trials[one.index] = Trial((*starts, start((100, 50, 300)[one.index])))
    assert planned[0] is not None
    assert seen >= {0, 1, 2}
    assert all(len(one.starts) >= 2 for one in trials)


def test_quality_is_asked_of_the_recipe_and_of_what_would_replace_it() -> None:
    rules = Rules(quality=True)
    trials = [trial(100, 100, 100), trial(150, 150, 150)]
    first = next_start(trials, rules, pairs={})
    assert (first.index, first.quality) == (OWN, True)
    trials[0] = Trial(trials[0].starts, worse="")
    second = next_start(trials, rules, pairs={})
    assert (second.index, second.quality) == (1, True)
    spoilt = [trials[0], Trial(trials[1].starts, worse="tasks are lost")]
    assert next_start(spoilt, rules, pairs={}) is None
    assert recommended(contenders(spoilt, rules)) == OWN


@pytest.mark.parametrize("seed", costly(range(60), quick=15))
def test_halving_finds_the_best_with_fewer_starts_than_the_grid(seed: int) -> None:
    truth = [100 * (1 + 0.04 * ((7 * i + 3) % 12)) for i in range(12)]
    answer, trials = search(truth, 0.015, seed, Rules())
    assert truth[answer] >= 0.97 * max(truth)
    assert sum(len(one.starts) for one in trials) < 3 * len(truth)
    wanted = truth.index(max(truth))
    assert len(trials[wanted].starts) > len(trials[truth.index(min(truth))].starts)


def test_equal_configurations_name_no_winner() -> None:
    answers = [search([100.0] * 8, 0.015, seed, Rules())[0] for seed in range(30)]
    assert sum(answer != OWN for answer in answers) <= 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("starts", [1, 3, 5])
def test_halving_takes_no_more_starts_than_the_grid(seed: int, starts: int) -> None:
    rules = Rules(starts=starts, most_starts=8)
    _, trials = search([100.0] * 8, 0.05, seed, rules)
    assert sum(len(one.starts) for one in trials) <= grid_cost(8, starts)
    _, (only,) = search([100.0], 0.05, seed, rules)
    assert len(only.starts) <= grid_cost(1, starts)


def test_the_bound_ends_a_search_that_would_go_on() -> None:
    def started(rules: Rules) -> int:
        return sum(len(one.starts) for one in search([100.0] * 8, 0.05, 1, rules)[1])

    assert started(Rules()) == grid_cost(8, 3) < started(Rules(starts=12))


def test_starts_on_a_disturbed_machine_are_no_part_of_the_bound() -> None:
    slowed = [start(10, disturbed="power brake")] * 5
    trials = [Trial((*slowed, start(100), start(101))), Trial((start(100), start(103)))]
    assert not at_grid_cost(trials, Rules())
    assert at_grid_cost(trials, Rules(), reserved=2)
    assert not at_grid_cost(trials, Rules(strategy="grid"), reserved=2)
