"""Properties of the search over any changes, requirements and rules."""

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from search_kit import Judge, problem, run, untestable

from sparkwright.search.model import Change, SearchProblem
from sparkwright.search.posterior import Noise, Posterior, locate
from sparkwright.search.subsets import Changes, ddmin

SURE = Noise(doubt=1e-4, shown=1, hidden=0, quiet=1)


@st.composite
def problems(draw) -> SearchProblem:
    """Return a problem of up to seven changes, some of which require others."""
    count = draw(st.integers(1, 7))
    changes = []
    for number in range(count):
        requires = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        axis = draw(st.sampled_from(["carries", "upstream", "kernels"]))
        needs = tuple(f"c{other}" for other in sorted(requires))
        changes.append(Change(id=f"c{number}", axis=axis, title="", requires=needs))
    weights = {change.id: draw(st.floats(0, 100)) for change in changes}
    return problem(changes=tuple(changes), weights=weights)


def closed_sets(changes: Changes) -> list[frozenset[str]]:
    """Return every set that is closed under what it requires."""
    names = changes.order
    chosen = itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names) + 1))
    return [found for found in map(frozenset, chosen) if changes.close(found) == found]


def answered(searching, rule):
    """Return the end of a search whose questions *rule* answers, and the questions."""
    asked = []
    question = next(searching, None)
    while True:
        asked.append(question)
        try:
            question = searching.send(rule(question))
        except StopIteration as done:
            return done.value, asked


def asking(subset):
    """Ask for a set, and return the answer."""
    return (yield subset)


@given(problems(), st.data())
def test_ddmin_ends_with_a_closed_set_of_which_nothing_can_be_left_out(asked: SearchProblem, data) -> None:
    changes = Changes(asked)
    everything = frozenset(changes.order)
    sets = closed_sets(changes)
    answers = {one: data.draw(st.sampled_from([True, False, None]), label=str(sorted(one))) for one in sets}
    answers |= {everything: True, frozenset(): False}
    if len(everything) == 1:  # there is nothing to ask
        return
    searching = ddmin(changes, everything, frozenset(), asking)
    try:
        subset = next(searching)
        while True:
            assert subset in answers, "it asks for closed sets only"
            subset = searching.send(answers[subset])
    except StopIteration as done:
        found = done.value
    assert answers[found] is True
    assert not any(answers[changes.without(found, (name,))] for name in found)


@pytest.mark.parametrize(
    "verdicts", [[True, False], [True, False, untestable()]], ids=["decided", "untestable"]
)
@given(problems(), st.sampled_from(["broke", "fixed"]), st.data())
@examples(max_examples=200)
def test_any_rule_ends_with_a_bad_and_a_good_set_and_a_decided_one_with_neighbours(
    verdicts, asked, direction, data
):
    """The rule need not be monotone: what is named makes the difference where it is shown to."""
    asked = problem(changes=asked.changes, weights=asked.weights, direction=direction)
    changes, broke = Changes(asked), direction == "broke"
    drawn = st.sampled_from(verdicts)
    answers = {one: data.draw(drawn, label=str(sorted(one))) for one in closed_sets(changes)}
    answers |= {frozenset(changes.order): broke, frozenset(): not broke}
    result = run(asked, Judge(answers.__getitem__))
    bad, good = changes.close(result.bad), changes.close(result.good)
    assert answers[bad] is True
    assert answers[good] is False
    assert bad ^ good
    assert set(result.changes) <= set(changes.order)
    if len(verdicts) == 2:
        assert result.kind in {"culprit", "interaction"}
        assert result.kind != "culprit" or changes.heads(bad ^ good) == result.changes


@given(problems(), st.data())
@examples(max_examples=200)
def test_a_monotone_rule_ends_with_a_smallest_set(asked: SearchProblem, data) -> None:
    changes = Changes(asked)
    needed = frozenset(data.draw(st.sets(st.sampled_from(changes.order), min_size=1)))
    result = run(asked, Judge(lambda applied: applied >= needed))
    assert changes.close(result.changes) == changes.close(needed)
    assert result.kind == ("culprit" if len(result.changes) == 1 else "interaction")


@given(st.integers(2, 300), st.data(), st.booleans())
def test_a_deterministic_search_takes_no_more_than_the_logarithm(n, data, bad_after) -> None:
    culprit = data.draw(st.integers(1, n))
    posterior = Posterior([1.0] * n, SURE, bad_after)
    searching = locate(posterior, lambda position, _: asking(position), confidence=0.95)
    located, asked = answered(searching, lambda position: (position >= culprit) == bad_after)
    assert (located.first, located.last) == (culprit, culprit)
    assert located.confidence >= 0.95
    assert len(asked) <= math.ceil(math.log2(n)) + 1


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40),
    st.floats(1e-4, 1),
    st.booleans(),
)
def test_probabilities_sum_to_one(weights, observations, doubt, bad_after) -> None:
    posterior = Posterior(weights, Noise(doubt, 4, 9, 20), bad_after)
    for position, bad in observations:
        assume(position < len(weights))
        posterior.observe(position, bad=bad)
    masses = posterior.masses()
    assert math.isclose(math.fsum(masses), 1)
    assert min(masses) >= 0
    information = posterior.information()
    assert len(information) == len(weights) - 1
    assert all(-1e-9 <= bits <= 1 + 1e-9 for bits in information)


@pytest.mark.parametrize("untestable", [(), (1, 2, 3), (4,), tuple(range(1, 8))])
@pytest.mark.parametrize("culprit", range(1, 9))
def test_the_range_between_testable_positions_is_found(untestable, culprit) -> None:
    searching = locate(
        Posterior([1.0] * 8, SURE), lambda at, _: asking(at), confidence=0.95, untestable=untestable
    )
    try:
        position = next(searching)
        while True:
            assert position not in untestable
            position = searching.send(position >= culprit)
    except StopIteration as done:
        located = done.value
    testable = [0, *(position for position in range(1, 8) if position not in untestable), 8]
    assert located.first == max(position for position in testable if position < culprit) + 1
    assert located.last == min(position for position in testable if position >= culprit)
