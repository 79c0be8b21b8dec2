"""Planted culprits are named, with the number of evaluations that it may take; healthy pairs name none."""

import statistics

import pytest
from search_kit import SIGNATURE, Judge, bad, problem, run, untestable

from sparkwright.base.errors import BisectionError, DependencyOrderError
from sparkwright.search import strategy
from sparkwright.search.model import Change, Evaluation, StepVerdict

SEEDS = range(20)
CARRIES = [f"c{number}" for number in range(1, 18)]


def has(*names: str):
    """Return the rule that a candidate with all of these is bad."""
    return lambda applied: applied >= set(names)


def test_one_bad_carry_of_17_takes_at_most_six_evaluations_after_both_ends() -> None:
    taken = []
    for name in CARRIES:
        result = run(problem(), Judge(has(name)))
        assert (result.kind, result.changes) == ("culprit", (name,))
        assert (result.bad, result.good) == ((name,), ())
        assert result.evaluations == result.searching + 2
        taken.append(result.searching)
    # Five yes-or-no answers are needed to tell 17 apart, and one shows that the carry is enough on its own.
    assert max(taken) == 6
    assert statistics.mean(taken) < 5.1


def test_a_prior_makes_it_six_with_both_ends() -> None:
    taken = []
    for name in CARRIES:
        alike = CARRIES[CARRIES.index(name) - 1]  # touches the same files, and is innocent
        asked = problem(weights={name: 100.0, alike: 100.0})
        result = run(asked, Judge(has(name)))
        assert result.changes == (name,)
        taken.append(result.evaluations)
    assert max(taken) <= 6
    assert statistics.mean(taken) <= 5


def test_a_wrong_prior_costs_two_evaluations_at_most() -> None:
    taken = []
    for name in CARRIES:
        asked = problem(weights={CARRIES[CARRIES.index(name) - 1]: 1000.0})
        result = run(asked, Judge(has(name)))
        assert result.changes == (name,)
        taken.append(result.searching)
    assert max(taken) <= 8


def test_a_commit_is_named_among_upstream_and_carries() -> None:
    commits = problem(30, "upstream").changes
    carries = tuple(Change(id=f"p{number}", axis="carries", title="") for number in range(5))
    for culprit in ("c1", "c17", "c30", "p0", "p4"):
        result = run(problem(changes=commits + carries), Judge(has(culprit)))
        assert (result.kind, result.changes) == ("culprit", (culprit,))
        assert result.searching <= 9


def test_a_pair_that_only_fails_together_takes_at_most_20_evaluations() -> None:
    taken = []
    for first, one in enumerate(CARRIES):
        for other in CARRIES[first + 1 :]:
            result = run(problem(), Judge(has(one, other)))
            assert (result.kind, result.changes) == ("interaction", (one, other))
            taken.append(result.evaluations)
    assert max(taken) <= 20


def test_a_flake_that_was_fixed() -> None:
    for seed in SEEDS[:5]:
        judge = Judge(lambda applied: "c8" not in applied, 0.3, seed)
        asked = problem(deterministic=False, direction="fixed")
        assert run(asked, judge).changes == ("c8",)


@pytest.mark.parametrize("axis", ["carries", "upstream"])
def test_a_flake_of_30_percent_is_named(axis) -> None:
    right, taken = 0, []
    for seed in SEEDS:
        name = CARRIES[seed * 7 % 17]
        asked = problem(axis=axis, deterministic=False)
        result = run(asked, Judge(has(name), 0.3, seed))
        right += result.changes == (name,)
        taken.append(result.evaluations)
        assert result.calibration.repetitions > 5
        assert result.confidence >= 0.9
    assert right >= 19  # of 20, at a confidence of 95 %
    assert statistics.mean(taken) < 100


def test_an_answer_that_its_own_check_refutes_is_searched_again(monkeypatch) -> None:
    refuted = []
    refute = strategy._Search._refute
    monkeypatch.setattr(strategy._Search, "_refute", lambda *given: (refuted.append(1), refute(*given)))
    result = run(problem(deterministic=False), Judge(has("c8"), 0.2, 35))
    assert (len(refuted), result.changes) == (1, ("c8",))


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.3])
def test_a_healthy_pair_never_yields_a_culprit(rate) -> None:
    for seed in SEEDS:
        judge = Judge(lambda _: True, rate, seed)  # no change matters
        with pytest.raises(BisectionError):
            run(problem(deterministic=False), judge)


def test_a_failure_too_rare_to_be_searched_is_refused() -> None:
    with pytest.raises(BisectionError) as caught:
        run(problem(deterministic=False), Judge(has("c5"), 0.03))
    assert "too rare" in caught.value.what


@pytest.mark.parametrize("culprit", [7, 8, 9, 10, 11, 12])
def test_a_culprit_beside_untestable_steps_leaves_a_range_and_another_none(culprit) -> None:
    def rule(applied):
        return untestable() if 8 <= len(applied) <= 10 else f"c{culprit}" in applied

    result = run(problem(16, "upstream"), Judge(rule))
    if culprit in {7, 12}:
        assert (result.kind, result.changes) == ("culprit", (f"c{culprit}",))
        return
    assert (result.kind, result.changes) == ("range", ("c8", "c9", "c10", "c11"))
    assert {step.applied for step in result.untestable} == {("c8",), ("c9",), ("c10",)}
    assert (result.good, result.bad) == (("c7",), ("c11",))


def test_carries_that_cannot_be_separated_are_a_set() -> None:
    def rule(applied):
        both = {"c3", "c4"}
        return untestable() if applied & both and not applied >= both else applied >= both

    result = run(problem(6), Judge(rule))
    assert (result.kind, result.changes) == ("set", ("c3", "c4"))


def test_another_failure_than_the_one_being_chased_is_untestable() -> None:
    def rule(applied):
        if 4 <= len(applied) < 9:
            return bad("ImportError: cannot import name 'Worker' from 0x7f00c0ffee00")
        return bad(f"{SIGNATURE} in /tmp/run-{len(applied)}/log at 12:30:01") if len(applied) >= 12 else False

    result = run(problem(16, "upstream"), Judge(rule))
    assert (result.kind, result.changes) == ("culprit", ("c12",))
    assert result.untestable
    assert {step.evaluation.verdict for step in result.untestable} == {StepVerdict.BAD}

    def without_signatures(applied):
        found = rule(applied)
        return isinstance(found, Evaluation)

    misled = run(problem(16, "upstream"), Judge(without_signatures))
    assert misled.changes in {("c4",), ("c12",)}


@pytest.mark.parametrize("deterministic", [True, False])
def test_wrong_ends_are_refused(deterministic) -> None:
    for name, rule in {
        "swapped": lambda a: not a,
        "both bad": lambda _: True,
        "both good": lambda _: False,
    }.items():
        judge = Judge(rule)
        with pytest.raises(BisectionError) as caught:
            run(problem(deterministic=deterministic), judge)
        assert ("old" if name == "both bad" else "new") in caught.value.what
        assert {len(applied) for applied, _ in judge.asked} <= {0, 17}


def test_requirements_that_cannot_be_met_are_refused() -> None:
    for requires in (("missing",), ("b",)):
        changes = (
            Change(id="a", axis="carries", title="", requires=requires),
            Change(id="b", axis="carries", title="", requires=("a",)),
        )
        with pytest.raises(DependencyOrderError):
            run(problem(changes=changes), Judge(has("a")))
