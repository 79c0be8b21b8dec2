"""Greedy answers of two servers: near ties may fall as they like, what rounding does not explain fails."""

import dataclasses
import math
import random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from talker_kit import Talker
from verify_kit import SEEDS, all_but_one, by_name, context, costly, every, failing, profile, verdicts

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, Observation, Sample, TokenLogprobs
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.answers import Difference, Pairing, find_cluster, kl_bound, own_gaps, pair
from sparkwright.verify.corpus import load_corpus

NEAR = "differences from plain decoding are near ties"
PLACES = "differences have no fixed position"
OWN = "greedy tokens are the target model's argmax"
TASKS = "tasks are solved as well as without speculation"
FEW = costly(SEEDS[::5], quick=1)


def to(**changes: Any) -> Any:
    sizes = profile(**{"lossless_prompts": 48, "categories": ("code", "math", "prose"), **changes})
    return dataclasses.replace(context(sizes), corpus=load_corpus())


def seen_by(talker: Talker, there: Any) -> list[Observation]:
    return [talker.measure(cell) for cell in ALL["lossless"].cells(there)]


def lossless(talker: Talker, **changes: Any) -> dict[str, Any]:
    there = to(**changes)
    return by_name(ALL["lossless"].judge(there, seen_by(talker, there)))


# The plan ------------------------------------------------------------------------------------------------


def test_every_start_is_asked_the_same():
    cells = ALL["lossless"].cells(to())
    assert cells == ALL["lossless"].cells(to())
    answers = [cell for cell in cells if cell.tags["kind"] == "answers"]
    assert [(c.arm, c.boot, c.load.concurrency) for c in answers] == [
        (arm, boot, level)
        for arm, boot in (("baseline", 0), ("baseline", 1), ("main", 0))
        for level in (1, 8)
    ]
    assert len({cell.prompts for cell in answers}) == 1
    assert len(answers[0].prompts) == 48
    assert all(cell.load.temperature == 0 and cell.load.logprobs for cell in answers)
    tasks = [cell for cell in cells if cell.tags["kind"] == "tasks"]
    assert [cell.arm for cell in tasks] == ["baseline", "baseline", "main", "main"]
    assert all(prompt.expect for cell in tasks for prompt in cell.prompts)


# Healthy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", costly(SEEDS[:14], quick=2))
def test_near_ties_may_fall_the_other_way(seed):
    """Four times as many as of healthy speculation; 14 of 14 bound false alarms by 19 % (at 95 %)."""
    found = lossless(Talker(seed, ties=0.6))
    assert verdicts(found) == {}
    assert "all of them at near ties" in found[NEAR].warnings[0]


@pytest.mark.parametrize("seed", FEW)
def test_a_model_that_rounds_coarsely_sets_its_own_limit(seed):
    found = lossless(Talker(seed, noise=0.6, rounding=0.5, ties=0.5))
    assert verdicts(found) == {}
    assert found[NEAR].measured["plain servers' 99.9th percentile nat"] > 0.5


# Lossy ---------------------------------------------------------------------------------------------------


def test_gaps_that_are_neither_ties_nor_plain_errors_count_together():
    there = to()
    seen = seen_by(Talker(1, noise=0.45, rounding=0.0, ties=0.9), there)
    found = by_name(ALL["lossless"].judge(there, seen))
    assert found[NEAR].verdict is Verdict.FAIL
    assert "more than plain ones" in found[NEAR].cause


# Tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", FEW)
def test_tasks_that_are_lost_fail(seed):
    found = lossless(Talker(seed, solves={"baseline": 0.9, "main": 0.7}))[TASKS]
    assert found.verdict is Verdict.FAIL
    assert "lost" in found.cause


@pytest.mark.parametrize(
    ("plain", "drafting", "verdict"), [(0.7, 0.9, Verdict.PASS), (0.02, 0.02, Verdict.INCONCLUSIVE)]
)
def test_tasks_that_are_won_do_not_and_a_model_that_solves_nothing_shows_nothing(plain, drafting, verdict):
    found = lossless(Talker(solves={"baseline": plain, "main": drafting}))[TASKS]
    assert found.verdict is verdict


def test_few_prompts_decide_nothing():
    found = lossless(Talker(lossy=0.0), lossless_prompts=6)
    assert found[NEAR].verdict is Verdict.INCONCLUSIVE
    assert found[TASKS].verdict is Verdict.INCONCLUSIVE


# What is missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lacks", "rest"),
    [({}, Verdict.INCONCLUSIVE), ({"baseline": "a server at an address"}, Verdict.NOT_APPLICABLE)],
    ids=["missing", "not given"],
)
@pytest.mark.parametrize(("lossy", "verdict"), [(0.0, Verdict.PASS), (0.01, Verdict.FAIL)])
def test_without_a_plain_server_only_the_servers_own_word_remains(lacks, rest, lossy, verdict):
    there = dataclasses.replace(to(), lacks=lacks)
    assert {cell.arm for cell in ALL["lossless"].cells(there)} == {"main", "baseline"} - lacks.keys()
    seen = [one for one in seen_by(Talker(lossy=lossy), there) if one.cell.arm == "main"]
    found = by_name(ALL["lossless"].judge(there, seen))
    assert found[OWN].verdict is verdict
    assert {found[name].verdict for name in (NEAR, PLACES, TASKS)} == {rest}


def test_a_plain_server_that_breaks_is_not_the_other_ones_fault():
    there = to()
    seen = seen_by(Talker(), there)
    seen[0] = failing(seen[0], FailureKind.STALL, which=slice(0, 2))
    found = by_name(ALL["lossless"].judge(there, seen))
    assert found[NEAR].verdict is Verdict.INVALID
    seen = seen_by(Talker(), there)
    seen[-4] = failing(seen[-4], FailureKind.STALL, which=slice(0, 2))
    assert by_name(ALL["lossless"].judge(there, seen))[NEAR].verdict is Verdict.FAIL


def test_answers_without_log_probabilities_are_invalid():
    there = to()
    seen = [every(one, logprobs=()) for one in seen_by(Talker(ties=0.9), there)]
    found = by_name(ALL["lossless"].judge(there, seen))
    assert {found[name].verdict for name in (NEAR, OWN)} == {Verdict.INVALID}
    assert "no log-probabilities" in found[OWN].cause


def test_log_probabilities_of_other_tokens_are_told_from_wrong_tokens():
    found = lossless(Talker(misreport=True))[OWN]
    assert found.verdict is Verdict.INVALID
    assert "of other tokens" in found.cause


def test_plain_servers_that_part_widely_calibrate_nothing():
    found = lossless(Talker(noise=3.0, rounding=0.5, ties=0.5))[NEAR]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "plain servers differ" in found.cause


# Pieces --------------------------------------------------------------------------------------------------


def told(name: str, tokens: list[int], tops: list[dict[int, float]]) -> Sample:
    entries = tuple(
        TokenLogprobs(f"token_id:{t}", top.get(t, -9.0), {f"token_id:{k}": v for k, v in top.items()})
        for t, top in zip(tokens, tops, strict=True)
    )
    return Sample(
        prompt=name, category="code", started=0, ended=1, prompt_tokens=100, token_ids=tuple(tokens),
        output_tokens=len(tokens), logprobs=entries,
    )  # fmt: skip


def watched(*samples: Sample) -> Observation:
    cell = ALL["lossless"].cells(to())[0]
    return Observation(cell=cell, samples=samples)


def test_a_difference_is_measured_where_answers_part():
    tops = [{1: -0.1, 2: -3.0}, {5: -0.3, 6: -0.4}, {7: -0.1, 8: -4.0}]
    base = watched(told("a", [1, 5, 7], tops))
    other = watched(told("a", [1, 6, 9], tops))
    (difference,) = pair(base, other).found
    assert (difference.position, difference.place) == (1, 101)
    assert difference.gap == pytest.approx(0.1)
    assert not difference.least
    assert pair(base, base).found == []


def test_a_token_beyond_the_alternatives_is_at_least_so_unlikely():
    tops = [{1: -0.1, 2: -3.0}]
    (difference,) = pair(watched(told("a", [1], tops)), watched(told("a", [77], tops))).found
    assert difference.gap == pytest.approx(2.9)
    assert difference.least
    assert "at least 2.90 nat" in str(difference)


def test_an_end_that_a_server_forbids_is_no_likelier_token():
    taken = TokenLogprobs("\n", -1.97, {"": -1.55, "\n": -1.97, " No": -2.3})
    wrong = TokenLogprobs(" No", -2.3, {"": -1.55, "\n": -1.27, " No": -2.3})
    sample = Sample(prompt="a", category="code", started=0, ended=1, logprobs=(taken, wrong))
    found = own_gaps(watched(sample))
    assert [round(gap, 6) for _, _, gap in found] == [0.0, 1.03]


def spread(rng: np.random.Generator, n: int, at: int | None, block: int | None) -> Pairing:
    found, lengths = [], []
    for i in range(n):
        place = int(rng.integers(0, 400))
        position = place if place < 128 else None
        if at is not None and rng.random() < 0.15:
            position = at
        prompt_tokens = int(rng.integers(40, 200))
        if block is not None and position is not None and rng.random() < 0.7:
            position = int(rng.integers(0, 8)) * 16 + (block - prompt_tokens) % 16
        difference = (
            None if position is None else Difference(f"p{i}", position, prompt_tokens + position, 0.1)
        )
        found.append((f"p{i}", difference))
        lengths.append(128 if position is None else position + 1)
    return Pairing(tuple(found), tuple(lengths))


def test_clusters_are_found_by_position_and_by_block_and_nowhere_else():
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        alarms += bool(find_cluster([spread(rng, 48, None, None)], [spread(rng, 48, None, None)]))
    assert alarms <= 2
    assert "output token 24" in find_cluster([spread(rng, 48, 24, None)], [spread(rng, 48, None, None)])
    assert "KV block, 3 of 16" in find_cluster([spread(rng, 80, None, 3)], [spread(rng, 80, None, None)])


def test_a_place_where_plain_servers_part_too_is_in_the_text():
    rng = np.random.default_rng(6)
    assert not find_cluster([spread(rng, 80, 24, None)], [spread(rng, 80, 24, None)])


# Parity with another server of the same model ------------------------------------------------------------

PARITY = ALL["parity"]


def parity_context(**changes: Any) -> Any:
    sizes = profile(**{"lossless_prompts": 24, "categories": ("code", "math", "prose"), **changes})
    return dataclasses.replace(context(sizes), corpus=load_corpus())


def answers_of(talker: Talker, **changes: Any) -> list[Observation]:
    """Observations of the cells of ``parity``, as *talker* answers them.

    A talker goes by a cell's tag ``kind``, which cells of this check do not have.
    """
    asked = [
        (cell, replace(cell, tags={**cell.tags, "kind": "answers"}))
        for cell in PARITY.cells(parity_context(**changes))
    ]
    return [replace(talker.measure(tagged), cell=cell) for cell, tagged in asked]


def parity_of(observations: list[Observation], **changes: Any) -> Finding:
    (finding,) = PARITY.judge(parity_context(**changes), observations)
    return finding


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_rounding_alone_is_parity(seed: int) -> None:
    assert parity_of(answers_of(Talker(seed))).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("talker", "prompts", "verdict", "why"),
    [
        (Talker(lossy=0.02), 24, Verdict.FAIL, "leave the other server's"),
        (Talker(lossy=0.02), 6, Verdict.INCONCLUSIVE, "fewer than 8 answers"),
        (Talker(noise=4.0, rounding=0.5, ties=0.5), 24, Verdict.INCONCLUSIVE, "differs from itself"),
    ],
)
def test_other_answers_are_no_parity_but_few_or_noisy_ones_decide_nothing(talker, prompts, verdict, why):
    found = parity_of(answers_of(talker, lossless_prompts=prompts), lossless_prompts=prompts)
    assert found.verdict is verdict
    assert why in found.cause


def test_missing_cells_and_failed_requests_never_pass() -> None:
    seen = answers_of(Talker())
    assert Verdict.PASS not in {parity_of(some).verdict for some in all_but_one(seen)}
    for at, observation in enumerate(seen):
        broken = failing(observation, FailureKind.RESET, which=slice(1))
        verdict = parity_of([*seen[:at], broken, *seen[at + 1 :]]).verdict
        assert verdict is (Verdict.FAIL if observation.cell.arm == "main" else Verdict.INVALID)


def test_parity_of_answers_without_log_probabilities_is_invalid() -> None:
    assert parity_of([every(one, logprobs=()) for one in answers_of(Talker(at=7))]).verdict is Verdict.INVALID


# Distances of probabilities ------------------------------------------------------------------------------


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


def test_nothing_and_minus_infinity_make_no_infinite_distance() -> None:
    assert kl_bound({}, {"a": 0.0}) == 0
    assert 10 < kl_bound({"a": -9999.0, "b": 0.0}, {"a": 0.0, "b": -9999.0}) < 100
