"""The files of earlier nights."""

from pathlib import Path

import pytest

from sparkwright.base.errors import StorageError
from sparkwright.merge.report import OutcomeKind
from sparkwright.nightly.model import (
    CarryNight,
    Judgement,
    Mark,
    Night,
    NightState,
    NightVerdict,
    Standing,
    TargetKind,
    TargetNight,
    UpstreamTarget,
    holds,
    red_since,
)


def night(number: int, version: str, judgement: Judgement, *, kind: TargetKind = "release") -> Night:
    target = UpstreamTarget(kind=kind, version=version, tree="1" * 40, commit="c" * 40)
    carry = CarryNight(name="clamp", outcome=OutcomeKind.APPLIED, judgement=judgement)
    return Night(
        id=str(number),
        date=f"2026-11-{number:02}",
        patchset="spark",
        pin="1.0.0",
        verdict=NightVerdict.GREEN,
        targets=(TargetNight(target=target, previous=None, merged="2" * 40, carries=(carry,)),),
    )


def mark(day: int, judgement: Judgement, target: str = "") -> Mark:
    return Mark(date=f"2026-11-{day:02}", target=target or f"1.{day}.0", judgement=judgement)


class TestNights:
    def test_what_is_recorded_is_read_back_by_another_opening(self, tmp_path: Path) -> None:
        folder, first = tmp_path / "deep" / "spark", night(1, "1.1.0", Judgement.NEEDED)
        state = NightState(folder)
        assert (state.last_inputs(), state.next_id()) == ("", "1")
        state.record(first, inputs="abc")
        for name in ("notes", "1-copy", "9 (1)"):
            (folder / f"{name}.json").write_text("{}")
        state = NightState(folder)
        assert list(state.nights()) == [first]
        assert (state.last_inputs(), state.next_id()) == ("abc", "2")

    def test_targets_and_history_are_kept_apart_by_kind(self, tmp_path: Path) -> None:
        state = NightState(tmp_path)
        assert state.last_target("release") is None
        state.record(night(1, "1.1.0", Judgement.NEEDED), inputs="")
        state.record(night(2, "1.2.dev1", Judgement.WRONG, kind="commit"), inputs="")
        state.record(night(3, "1.2.0", Judgement.WRONG), inputs="")
        release, commit = (state.last_target(kind) for kind in ("release", "commit"))
        assert (release.target.version, commit.target.version) == ("1.2.0", "1.2.dev1")

    def test_a_damaged_one_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        state = NightState(tmp_path)
        state.record(night(1, "1.1.0", Judgement.NEEDED), inputs="")
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(StorageError, match=str(path)):
            state.last_inputs()


class TestRedRuns:
    def test_they_begin_after_the_last_night_that_was_not_red(self) -> None:
        marks = [mark(1, Judgement.WRONG), mark(2, Judgement.NEEDED), mark(3, Judgement.CONFLICT)]
        assert red_since([*marks, mark(5, Judgement.WRONG)]) == "2026-11-03"
        assert red_since([mark(5, Judgement.WRONG)]) == "2026-11-05"

    def test_a_carry_that_is_good_or_to_be_dropped_is_in_none(self) -> None:
        for judgement in Judgement:
            red = judgement.standing is Standing.RED
            assert bool(red_since([mark(1, Judgement.WRONG), mark(2, judgement)])) is red

    def test_a_red_carry_keeps_the_newest_target_on_which_it_was_good(self) -> None:
        marks = [mark(1, Judgement.NEEDED), mark(2, Judgement.NEEDED), mark(3, Judgement.WRONG)]
        assert holds(marks, "1.0.0") == "1.2.0"
        assert holds(marks[2:], "1.0.0") == "1.0.0"
