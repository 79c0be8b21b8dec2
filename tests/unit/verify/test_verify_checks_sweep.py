"""The sweep: each rule fires on its planted fault, and is silent on its healthy twin."""

from collections.abc import Callable

import pytest
from verify_kit import (
    CATEGORIES,
    SEEDS,
    Bench,
    Server,
    boot_facts,
    by_name,
    changed,
    context,
    costly,
    counted,
    failing,
    judge,
    profile,
    run,
    verdicts,
)

from sparkwright.engine.cell import Cell
from sparkwright.engine.observations import FailureKind
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.figures import figures

SWEEP = ALL["sweep"]
INVARIANCE = "acceptance does not depend on concurrency"
TOKENS = "counters and clients agree on tokens"
CLIENT, HELD = "the client kept up", "no request is held without progress"
DRAFTER = "the drafter works"
BENCH = Bench(SWEEP)
healthy, judged, at = BENCH.healthy, BENCH.judged, BENCH.at


def test_cells_hold_enough_requests_of_their_own() -> None:
    cells = SWEEP.cells(context(profile(levels=(1, 64), requests_per_client=3, least_requests=24)))
    assert [cell.load.requests for cell in cells[:2]] == [24, 192]
    assert [cell.load.warm_up for cell in cells[:2]] == [1, 64]
    names = [prompt.name for cell in cells for prompt in cell.prompts]
    assert len(set(names)) == len(names)
    texts = [prompt.text for cell in cells for prompt in cell.prompts]
    assert len(set(texts)) == len(texts), "the same text twice would come from the prefix cache"


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_figures_are_those_of_the_server_whatever_the_clock(speed: float) -> None:
    cell = SWEEP.cells(context())[0]
    found = figures(Server(seed=4, speed=speed).measure(cell), speed)
    assert found.step_ms == pytest.approx(50.0, rel=0.03)
    assert found.ttft_ms.p50 == pytest.approx(120, rel=0.2)
    assert found.gap_ms.p50 == pytest.approx(50, rel=0.05)
    assert found.decode_tok_s == pytest.approx(20 * found.acceptance.mal, rel=0.05)
    assert found.whole_tok_s < found.decode_tok_s
    assert found.tokens_per_chunk == pytest.approx(found.acceptance.mal, rel=0.05)
    assert found.ttft_ms.p99 is None, "twelve requests have no 99th percentile"


def test_a_level_that_gives_less_than_a_lower_one_is_pointed_out() -> None:
    server = Server(seed=1)
    observations = []
    for cell in SWEEP.cells(context()):
        server.step_ms = 50.0 if cell.load.concurrency < 24 else 400.0
        observations.append(server.measure(cell))
    finding = judged(observations)["code: served at every level"]
    assert "code c=24 gives" in finding.warnings[0]


def falling(level: int, to: float) -> Callable[[Cell, float, bool], float]:
    return lambda cell, at_s, cached: to if cell.load.concurrency >= level else 1.0


@pytest.mark.parametrize("seed", costly(SEEDS))
def test_acceptance_that_falls_with_concurrency_fails_and_names_the_level(seed: int) -> None:
    server = Server(seed=seed, factor=falling(24, 0.8))
    finding = judge(SWEEP, context(), server)[INVARIANCE]
    assert finding.verdict == "fail"
    assert finding.cause.startswith("at c=24 the mean acceptance length is 0.")
    assert "c=8" not in finding.cause


def test_one_category_that_falls_is_named() -> None:
    sizes = profile(categories=CATEGORIES, max_tokens=200)
    one = Server(seed=1, factor=lambda cell, *_: 0.6 if cell.name == "math c=8" else 1.0)
    finding = judge(SWEEP, context(sizes), one)[INVARIANCE]
    assert finding.verdict == "fail"
    assert "math c=8" in finding.cause
    assert "c=24" not in finding.cause


def test_too_few_requests_decide_nothing() -> None:
    sizes = profile(least_requests=2, requests_per_client=1, max_tokens=16, levels=(1, 2))
    server = Server(seed=1, factor=falling(2, 0.85))
    finding = judge(SWEEP, context(sizes), server)[INVARIANCE]
    assert finding.verdict == "inconclusive"
    assert "drafts decide nothing" in finding.cause


def test_an_interval_that_is_too_wide_decides_nothing() -> None:
    sizes = profile(categories=("code",), least_requests=8, max_tokens=40, levels=(1, 2))
    finding = judge(SWEEP, context(sizes), Server(seed=1, factor=falling(2, 0.88)))[INVARIANCE]
    assert finding.verdict == "inconclusive"
    assert "it may be" in finding.cause


def test_speculation_is_not_applicable_where_nothing_requires_it() -> None:
    to = context(facts=boot_facts(speculative_tokens=0), lacks={"speculation": "it does not speculate"})
    found = judge(SWEEP, to, Server(seed=1, k=0))
    assert {(found[name].verdict, found[name].cause) for name in (DRAFTER, INVARIANCE)} == {
        ("not-applicable", "it does not speculate")
    }
    assert found["code: served at every level"].verdict == found[TOKENS].verdict == "pass"


def test_a_rise_from_position_to_position_is_invalid() -> None:
    *rest, last = healthy()
    rates, before = list(last.after.accepted_per_position), last.before.accepted_per_position
    rates[4] = before[4] + rates[3] - before[3] + 1
    finding = judged([*rest, counted(last, accepted_per_position=tuple(rates))])[TOKENS]
    assert finding.verdict == "invalid"
    assert "prose c=24: “acceptance falls from position to position” is off by" in finding.cause


def test_a_second_client_is_seen() -> None:
    *rest, last = healthy()
    more = counted(last, generation_tokens=last.after.generation_tokens * 1.5)
    assert judged([*rest, more])[TOKENS].verdict == "invalid"


def test_a_late_client_is_flagged_and_then_invalid() -> None:
    flagged = judged(changed(healthy(), at("math c=8"), lag_ms=(60.0, 20.0)))[CLIENT]
    assert flagged.verdict == "pass"
    assert flagged.warnings[0].startswith("math c=8: late client: 20.0 ms of a TTFT")
    late = judged(changed(healthy(), at("math c=8"), lag_ms=(300.0, 90.0)))[CLIENT]
    assert late.verdict == "invalid"
    assert late.cause.startswith("late client: math c=8: 90.0 ms of a time to first token")


def test_on_an_accelerated_clock_the_client_is_not_judged() -> None:
    """60 times the client's lag is no news; what it says of the machine's clock still is."""
    fast = context(profile(speed=60.0))
    observations = changed(run(SWEEP, fast, Server(seed=1, speed=60.0)), at("code c=1"), lag_ms=(60.0, 20.0))
    found = by_name(SWEEP.judge(fast, observations))[CLIENT]
    assert (found.verdict, found.warnings) == ("pass", ())
    assert "60 times as fast" in found.cause
    late = changed(observations, at("code c=1"), clock_step_s=5.0)
    assert len(by_name(SWEEP.judge(fast, late))[CLIENT].warnings) == 1


def test_nothing_is_concluded_of_a_single_level_or_category() -> None:
    """Comparing one thing with nothing would always pass, or never."""
    to = context(profile(categories=("code",), levels=(4,)))
    found = judge(SWEEP, to, Server(seed=1))
    assert verdicts(found) == {}
    assert set(found) == {"code: served at every level", DRAFTER, TOKENS, CLIENT, HELD}


CRASH = ALL["crash"]
DRAIN = "draining breaks nothing"
HUNT = Bench(CRASH)
hunted, hunt_judged, cell_at = HUNT.healthy, HUNT.judged, HUNT.at


def test_a_crash_on_the_drain_names_what_was_left_of_the_batch() -> None:
    observations = list(hunted())
    drain = observations[cell_at("drain")]
    ends = sorted(sample.ended for sample in drain.samples)
    living = {sample.prompt for sample in drain.samples if sample.ended > ends[-6]}
    broken = failing(drain, FailureKind.RESET)
    samples = tuple(
        b if b.prompt in living else a for a, b in zip(drain.samples, broken.samples, strict=True)
    )
    finding = hunt_judged(
        changed(observations, cell_at("drain"), samples=samples, canary="connection refused")
    )[DRAIN]
    assert finding.verdict == "fail"
    assert "5 of 24 requests in drain from c=24 had their connection broken with 5 in flight" in finding.cause
