"""Troubles that make an observation unfit for every check."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import (
    KitCorpus,
    Server,
    boot_facts,
    changed,
    context,
    counted,
    crash_from,
    dead,
    every,
    failing,
)

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import FailureKind, Observation, Sample
from sparkwright.verify.checks.common import conclude
from sparkwright.verify.checks.figures import acceptance, drafter, ratio, surely
from sparkwright.verify.checks.triage import CheckedCells, triage, troubles

CODE = {"category": "code"}
CELLS = tuple(
    Cell(
        check="three",
        name=f"code c={level}",
        load=Load(concurrency=level, requests=2 * level, max_tokens=64),
        prompts=KitCorpus().prompts("code", 2 * level, 0, str(level)),
        tags={"level": str(level)},
    )
    for level in (1, 4, 8)
)


def sorted_out(observations: list[Observation]) -> CheckedCells:
    return triage("three", context(), observations, CELLS)


@pytest.fixture
def observations() -> list[Observation]:
    server = Server(seed=1)
    return [server.measure(cell) for cell in CELLS]


def found(observations: list[Observation]) -> list[tuple[str, str]]:
    return [(trouble.verdict.value, trouble.cause) for trouble in sorted_out(observations).troubles]


INVALIDATES = {FailureKind.NO_COUNT, FailureKind.COUNT, FailureKind.LENGTH}


def test_a_failed_request_is_typed_and_its_level_named(observations: list[Observation]) -> None:
    causes = set()
    for kind in FailureKind:
        seen = list(observations)
        status = 503 if kind is FailureKind.STATUS else 0
        seen[1] = failing(seen[1], kind, "planted", which=slice(0, 1), status=status)
        [(verdict, cause)] = found(seen)
        assert verdict == ("invalid" if kind in INVALIDATES else "fail"), kind
        assert cause.startswith("1 of 8 requests in code c=4 ")
        assert "planted" in cause
        assert ("503" in cause) == bool(status)
        causes.add(cause)
    assert len(causes) == len(FailureKind), "each kind has words of its own"


def test_an_abort_is_the_servers_failure_and_kinds_beside_each_other_are_named(observations):
    broken = failing(observations[0], FailureKind.LENGTH, "31 tokens of 64", which=slice(0, 1))
    assert troubles(every(broken, slice(1), finish_reason="abort"))[0].verdict is Verdict.FAIL
    stalled = failing(observations[2], FailureKind.STALL, which=slice(0, 2))
    both = failing(stalled, FailureKind.NO_COUNT, which=slice(3, 4))
    assert [one.verdict for one in troubles(both)] == [Verdict.FAIL, Verdict.INVALID]


def test_a_warm_up_that_fails_counts_as_well(observations: list[Observation]) -> None:
    one = replace(observations[1].samples[0], counted=False)
    observation = replace(observations[1], samples=(one, *observations[1].samples))
    assert troubles(observation) == ()
    assert troubles(failing(observation, FailureKind.STALL, which=slice(0, 1)))


LINE = "RuntimeError: block_table must have shape [24, 512], got [17, 512]"


def test_a_dead_server_is_named_with_its_batch_and_log(observations: list[Observation]) -> None:
    [first, *rest] = found(crash_from(observations, "code c=4", log=("INFO all is well", LINE)))
    assert first[0] == "fail"
    for part in ("ended in code c=4", "in flight", "ended with status 1", LINE, "padding"):
        assert part in first[1]
    assert ("inconclusive", "code c=8 was not measured: the server was gone since code c=4") in rest


def test_a_restarted_server_is_measured_again(observations: list[Observation]) -> None:
    """A crash does not hide what another boot of the server gave."""
    observations[0] = dead(observations[0])
    seen = sorted_out(observations)
    assert [o.cell.name for o in seen.sound] == ["code c=4", "code c=8"]


DYING = ("EngineDeadError: EngineCore", "RuntimeError: CPU Generator does not use offset")


@pytest.mark.parametrize(
    ("changes", "verdict", "part"),
    [
        (
            {"canary": "no token within 60 s"},
            "fail",
            "after code c=4 the server no longer answered a plain request",
        ),
        ({"canary": "no-count: neither usage nor ids came"}, "invalid", "after code c=4 cannot be used"),
        ({"canary": "form: Expected `array`, got `str`"}, "invalid", "after code c=4 cannot be used"),
        ({"log": ("CUDA error: an illegal memory access",)}, "fail", "in code c=4"),
        ({"log": DYING}, "fail", "a request with a seed whose prompt is read in several pieces"),
        ({"log": DYING[:1]}, "fail", "the engine ended by itself"),
        ({"died": 137}, "fail", "memory runs out"),
        ({"died": -9}, "fail", "SIGKILL"),
        ({"died": 139}, "fail", "SIGSEGV"),
        (
            {"died": 1, "log": ("ERROR something", "Bus error")},
            "fail",
            "status 1; its log ends with “Bus error”",
        ),
        ({"after": None}, "invalid", "could not be read after code c=4"),
        ({"after": None, "unread": "it goes on beyond 16 MiB"}, "invalid", "it goes on beyond 16 MiB"),
        ({"samples": ()}, "invalid", "only 0 of 8 requests of code c=4 were recorded"),
    ],
)
def test_what_makes_a_cell_unfit_is_named_with_it(observations, changes, verdict, part):
    assert found(observations) == []
    assert [o.cell.name for o in sorted_out(observations).sound] == ["code c=1", "code c=4", "code c=8"]
    [(said, cause)] = found(changed(observations, 1, **changes))
    assert said == verdict
    assert part in cause


def test_an_engine_that_is_dead_is_blamed_once(observations: list[Observation]) -> None:
    """Requests after it hang or are refused, which says nothing of their level."""
    observations[1] = changed(observations, 1, canary="first-token: none within 60 s")[1]
    observations[2] = failing(observations[2], FailureKind.FIRST_TOKEN)
    [first, second] = found(observations)
    assert first[0] == "fail"
    assert second == ("inconclusive", "code c=8 was not measured: the server was gone since code c=4")


@pytest.mark.parametrize(
    "line",
    [
        "ERROR the tokenizer is slow",
        "ERROR ValueError: max_tokens 9 is greater than the derived max_model_len",  # of one request
    ],
)
def test_other_lines_of_the_log_are_notes(observations: list[Observation], line: str) -> None:
    seen = sorted_out(changed(observations, 1, log=(line,)))
    assert not seen.troubles
    assert seen.notes == (f"code c=4: the log has “{line}”",)


def test_a_restart_in_between_is_seen_in_the_series(observations: list[Observation]) -> None:
    healthy = replace(observations[2].before, at=observations[2].before.at + 1)
    assert found(changed(observations, 2, series=(healthy,))) == []
    other = replace(healthy, start_s=1.8e9)
    assert found(changed(observations, 2, series=(other,)))[0][0] == "invalid"


def concluded(seen: CheckedCells, key: str = "sweep.category", **more: Any) -> tuple[Verdict, str]:
    finding = conclude(seen, key, told=CODE, passed="fine", **more)
    return finding.verdict, finding.cause


def test_a_missing_cell_never_passes(observations: list[Observation]) -> None:
    seen = sorted_out(observations[:2])
    assert concluded(seen) == (Verdict.INCONCLUSIVE, "code c=8 was not measured")
    assert concluded(seen.tagged(level="4"))[0] is Verdict.PASS


def test_a_conclusion_gives_the_worst_and_why(observations: list[Observation]) -> None:
    seen = sorted_out(changed(observations, 1, canary="silence"))
    against = [(Verdict.INVALID, "counts"), (Verdict.FAIL, "too slow")]
    assert concluded(seen, against=against)[1].startswith("too slow; after code c=4")
    lenient = concluded(seen, "sweep.tokens")
    assert lenient == (Verdict.INCONCLUSIVE, "1 of 3 cells do not count: code c=4")
    many = [(Verdict.FAIL, str(i)) for i in range(9)]
    assert concluded(seen, "sweep.tokens", against=many) == (Verdict.FAIL, "0; 1; 2; and 6 more")


# Acceptance ----------------------------------------------------------------------------------------------


def cell_of(requests: int, salt: str = "") -> Cell:
    load = Load(concurrency=4, requests=requests, max_tokens=200)
    return Cell(
        check="three", name="code c=4", load=load, prompts=KitCorpus().prompts("code", requests, 0, salt)
    )


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of 30 pairs of measurements of the same server, about one in twenty may differ at 95 %."""
    found = [acceptance(Server(seed=seed).measure(cell_of(12, str(seed)))) for seed in range(60)]
    pairs = [ratio(a, b, surely()) for a, b in zip(found[::2], found[1::2], strict=True)]
    missed = sum(not pair.low <= 1 <= pair.high for pair in pairs)
    assert missed <= 4
    assert max(pair.high / pair.low for pair in pairs) < 1.6


def test_spread_between_requests_widens_the_interval() -> None:
    """Texts that differ tell less than as many drafts of one text."""
    even, uneven = Server(seed=2), Server(seed=2)
    chosen = {p.name for p in cell_of(12).prompts[::2]}
    uneven_draw = uneven.draw

    def draw(cell, prompt, *rest):
        drawn = uneven_draw(cell, prompt, *rest)
        return drawn * 0 if prompt.name in chosen else drawn

    uneven.draw = draw
    first, second = acceptance(even.measure(cell_of(12))), acceptance(uneven.measure(cell_of(12)))
    assert second.error / second.mal > 2 * first.error / first.mal


NOTHING = {"accepted": 0.0, "accepted_per_position": (0.0,) * 7}
ABSENT = {"drafts": -1, "draft_tokens": -1, "accepted": -1, "accepted_per_position": ()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, NOTHING),
        ({}, {"drafts": math.nan, "draft_tokens": math.nan, "accepted": math.nan}),
        ({}, {"drafts": 0.0, "draft_tokens": 0.0, **NOTHING}),
        (ABSENT, ABSENT),
    ],
    ids=["nothing is accepted", "NaN", "nothing is drafted", "no series"],
)
def test_an_inert_drafter_is_named(before: dict[str, Any], after: dict[str, Any]) -> None:
    observation = Server(seed=1).measure(cell_of(8))
    assert drafter(boot_facts(), [observation]) == []
    broken = replace(counted(observation, **after), before=replace(observation.before, **before))
    [(verdict, cause)] = drafter(boot_facts(), [broken])
    assert verdict is Verdict.FAIL
    assert cause.startswith("drafter inert: ")


def test_a_server_that_should_speculate_and_does_not_is_named() -> None:
    observation = Server(seed=1, k=0).measure(cell_of(8))
    [(verdict, cause)] = drafter(boot_facts(speculative_tokens=0), [observation])
    assert verdict is Verdict.FAIL
    assert "should speculate" in cause
    assert drafter(boot_facts(speculative_tokens=-1), [observation])[0][0] is Verdict.FAIL


def test_few_drafts_say_nothing() -> None:
    load = Load(requests=1, max_tokens=8)
    observation = Server(seed=1).measure(replace(cell_of(1), load=load))
    assert drafter(boot_facts(), [observation])[0][0] is Verdict.INCONCLUSIVE


# Streams -------------------------------------------------------------------------------------------------


def squeezed(observation: Observation, share: float, which: slice = slice(None)) -> Observation:
    """*observation* whose answers in *which* came within so much of their time, at their end."""
    chosen = {sample.prompt for sample in observation.samples[which]}

    def late(sample: Sample) -> Sample:
        ends = [round(sample.last - (sample.last - chunk.at) * share) for chunk in sample.chunks]
        chunks = (replace(chunk, at=at) for chunk, at in zip(sample.chunks, ends, strict=True))
        return replace(sample, chunks=tuple(chunks))

    samples = tuple(late(one) if one.prompt in chosen else one for one in observation.samples)
    return replace(observation, samples=samples)


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_answers_in_one_piece_are_invalid_and_their_level_named(observations, share):
    observations[1] = squeezed(observations[1], share)
    [(verdict, cause)] = found(observations)
    assert verdict == "invalid"
    assert cause.startswith("not streamed: in code c=4 ")


@pytest.mark.parametrize(
    ("cell", "share", "which", "chunks"),
    [
        (1, 0.3, slice(None), 999),
        (1, 0.0, slice(0, 5), 999),
        (0, 0.0, slice(None), 999),
        (1, 0.0, slice(None), 11),
    ],
    ids=["short", "some", "few answers", "few chunks"],
)
def test_short_answers_and_some_that_were_read_at_once_are_sound(observations, cell, share, which, chunks):
    """A machine that is busy for a moment reads short answers at once."""
    cut = [replace(one, chunks=one.chunks[:chunks]) for one in observations[cell].samples]
    observations[cell] = squeezed(replace(observations[cell], samples=tuple(cut)), share, which)
    assert found(observations) == []


@pytest.mark.parametrize(("late", "verdicts"), [(0.6, []), (0.4, ["invalid"])])
def test_answers_that_this_client_was_late_to_read_are_no_proxys(observations, late, verdicts):
    """*late* is in terms of the mean time to the first token."""
    squeezed_one = squeezed(observations[1], 0.0)
    waits = [(one.first - one.started) / 1e6 for one in squeezed_one.samples]
    worst_ms = late * sum(waits) / len(waits)
    observations[1] = replace(squeezed_one, lag_ms=(worst_ms, 1.0))
    assert [verdict for verdict, _ in found(observations)] == verdicts
