"""A search on arithmetic servers: it finds what was planted, names no winner by luck, and can be resumed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tune_kit import TOKENS, StoppedError, Surface, options, searched

from sparkwright.base.errors import ConfigError
from sparkwright.cli.verify_tune import _refusals
from sparkwright.engine.environment import Environment
from sparkwright.engine.server import ServerFailedError
from sparkwright.engine.server.failures import diagnose
from sparkwright.recipes import Recipe, incompatibilities, load_recipe
from sparkwright.verify.journal import read_journal
from sparkwright.verify.tune import setup
from sparkwright.verify.tune.report import write_search
from sparkwright.verify.tune.result import Outcome, Payoff, TuneResult, conclude_search, say_payoff
from sparkwright.verify.tune.search import Known, _reason
from sparkwright.verify.tune.strategy import Ratio, State

SEQS = "max-num-seqs"


def best(settings: Mapping[str, Any]) -> float:
    """Return the planted surface: one draft and 32 requests at a time are 25 % faster than anything."""
    return 0.5 if (settings[TOKENS], settings[SEQS]) == (1, 32) else 1.0


def states(result: TuneResult) -> dict[tuple[int, int], State]:
    return {
        (row.configuration.settings.get(TOKENS, 3), row.configuration.settings[SEQS]): row.standing.state
        for row in result.rows
    }


@pytest.fixture
def known_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Known]:
    """Search a surface; in a folder of its own where one is named."""

    def search(surface: Surface, folder: str = "", /, *, ask: Any = None, **asked: Any) -> Known:
        more = {"ask": ask} if ask else {}
        return searched(tmp_path / folder, surface, monkeypatch, options(**asked), **more)

    return search


# What is found ------------------------------------------------------------------------------------------


def test_the_planted_best_is_found_and_written_as_a_recipe(known_of, tmp_path) -> None:
    surface = Surface(slower=best)
    known = known_of(surface)
    files = write_search(known, tmp_path, read_journal(tmp_path).manifest)
    result = files.result
    assert result.outcome is Outcome.OTHER
    assert result.chosen.configuration.settings == {TOKENS: 1, SEQS: 32}
    assert result.rows[0] is result.chosen
    assert result.chosen.to_own.low > 1
    assert len(surface.starts) < 3 * len(known.search.space.configurations)
    written = load_recipe(tmp_path / "recipe.toml")
    assert (written.name, written.grade) == ("qwen3.8-27b-mtp-tuned", "tuned here")
    assert (written.flags[SEQS], written.speculative["num_speculative_tokens"]) == (32, 1)
    named = {*written.flags, *written.environment, *(f"speculative.{key}" for key in written.speculative)}
    assert named == written.why.keys()
    assert re.search(r"with 3 the objective is .* %", written.why["speculative.num_speculative_tokens"])
    assert "tok/s" in written.evidence[0].source
    assert all(one.differs for one in written.evidence[1:])
    assert not incompatibilities(written, "0.24.0")
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(?:src|href)=.https?:|<script", page)
    assert {"Serve another configuration", "Throughput against latency"} <= set(
        re.findall(r"<h[13][^>]*>([^<]*)</h[13]>", page)
    )
    assert page.count("<h3>Throughput against latency</h3>") == 1
    told = json.loads((tmp_path / "tune.json").read_text())
    assert (told["to-serve"], told["outcome"]) == (result.chosen.configuration.key, "other")
    assert "cells.csv" in {path.name for path, _, _ in files.files}


def test_equal_configurations_keep_the_recipe(known_of, tmp_path) -> None:
    for seed in range(3):
        known = known_of(Surface(seed=seed), str(seed), vary={SEQS: (16, 24, 32, 48)})
        result = conclude_search(known)
        assert result.outcome is Outcome.KEEP
        assert result.chosen.configuration.own
        assert "no difference was found" in result.said or "surely slower" in result.said
        assert sum(len(row.trial.starts) for row in result.rows) <= 3 * len(result.rows)
        assert bool(result.open) == (f"equal within {100 * result.within:.1f} %" in result.said)
        assert result.bounded == ("ended at the grid's number of starts" in result.said)
    folder = tmp_path / "2"
    files = write_search(known, folder, read_journal(folder).manifest)
    assert load_recipe(folder / "recipe.toml").flags[SEQS] == 16
    assert "Keep the recipe as it is" in files.folder.joinpath("report.html").read_text()


# What is left out ---------------------------------------------------------------------------------------


def refused_of(result: TuneResult) -> list[Any]:
    return [row for row in result.rows if row.standing.state is State.REFUSED]


def test_one_that_does_not_start_is_left_out_with_the_reason(known_of) -> None:
    surface = Surface(slower=best, refuses=lambda settings: settings[TOKENS] == 1)
    result = conclude_search(known_of(surface))
    assert {place for place, state in states(result).items() if state is State.REFUSED} == {(1, 16), (1, 32)}
    refused = refused_of(result)
    assert all("CUDA out of memory" in row.standing.why for row in refused)
    key = refused[0].configuration.key
    assert [place for place in surface.starts if place.startswith(key)] == [f"{key}-0"]
    assert result.chosen is not None


def test_the_line_of_the_log_is_told_where_the_cause_has_no_words_of_its_own(tmp_path: Path) -> None:
    line = "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'nonsense'"
    log = f"INFO starting\n{line}"
    error = ServerFailedError("the server ended", diagnose(log, 2), 2, log, tmp_path)
    assert _reason(error) == f"vLLM refused its options ({line})"
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    error = ServerFailedError("the server ended", diagnose(memory, 1), 1, memory, tmp_path)
    assert _reason(error) == f"CUDA out of memory ({memory})"


def test_what_the_release_refuses_is_never_started(known_of, monkeypatch) -> None:
    def ask(python: Path, recipes: Sequence[Recipe]) -> list[str]:
        assert python == Path(sys.executable)
        return ["unknown choice" if one.flags[SEQS] == 32 else "" for one in recipes]

    made = Environment(Path(sys.executable), "digest", "this one")
    monkeypatch.setattr(setup, "environment_of", lambda *_, **__: (made, {"wheel": "none"}))
    surface = Surface()
    asked = {"simulator": False, "python": sys.executable, "vary": {SEQS: (16, 24, 32)}}
    (refused,) = refused_of(conclude_search(known_of(surface, ask=ask, **asked)))
    assert (refused.configuration.settings[SEQS], refused.standing.why) == (32, "unknown choice")
    assert not any(place.startswith(refused.configuration.key) for place in surface.starts)

    def never(python: Path, recipes: Sequence[Recipe]) -> list[str]:
        raise AssertionError("it was asked before")

    known_of(Surface(), ask=never, **asked)


def test_a_release_that_cannot_be_asked_refuses_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path))
    assert _refusals(Path(sys.executable), [load_recipe("smoke")], offline=True) == [""]


def test_one_that_breaks_a_limit_is_left_out(known_of) -> None:
    late = Surface(slower=best, later=lambda settings: 40.0 if settings[SEQS] == 32 else 1.0)
    result = conclude_search(known_of(late, slo="ttft_p95=2s"))
    assert {state for (_, seqs), state in states(result).items() if seqs == 32} == {State.BREAKS}
    assert result.chosen.configuration.settings[SEQS] == 16


def test_one_with_worse_answers_is_left_out(known_of) -> None:
    wrong = Surface(slower=best, wrong=lambda settings: settings[TOKENS] == 1)
    asked = {"quality": True, "max_tokens": 64}
    result = conclude_search(known_of(wrong, "wrong", **asked))
    assert states(result)[1, 32] is State.WORSE
    assert result.chosen.configuration.settings.get(TOKENS) != 1
    sound = conclude_search(known_of(Surface(slower=best), "sound", **asked)).chosen
    assert (sound.configuration.settings[TOKENS], sound.checked) == (1, True)


def test_answers_of_made_up_weights_are_not_judged(known_of) -> None:
    faster = Surface(
        slower=lambda settings: 0.5 if settings[SEQS] == 32 else 1.0, wrong=lambda settings: True
    )
    chosen = conclude_search(known_of(faster, recipe="smoke", vary={SEQS: (32, 64)}, quality=True)).chosen
    assert (chosen.configuration.settings[SEQS], chosen.checked) == (32, False)


def test_nothing_is_recommended_where_nothing_starts(known_of, tmp_path) -> None:
    known = known_of(Surface(refuses=lambda settings: True))
    files = write_search(known, tmp_path, read_journal(tmp_path).manifest)
    assert files.result.outcome is Outcome.NONE
    assert "6 untestable" in files.result.said
    assert not (tmp_path / "recipe.toml").exists()
    assert "No configuration can be recommended" in (tmp_path / "report.html").read_text()


# Interruption -------------------------------------------------------------------------------------------


def test_a_stopped_search_goes_on_without_measuring_anything_twice(known_of) -> None:
    expected = conclude_search(known_of(Surface(slower=best), "whole"))
    cells: list[tuple[str, int, str]] = []
    for stop in (1, 4, 9):
        part = Surface(slower=best, stop_after=stop)
        with pytest.raises(StoppedError):
            known_of(part, "parts")
        cells += part.cells
    last = Surface(slower=best)
    result = conclude_search(known_of(last, "parts"))
    cells += last.cells
    assert len(cells) == len(set(cells))
    assert states(result) == states(expected)
    again = Surface(slower=best)
    known_of(again, "parts")
    assert again.starts == []


def test_another_search_is_refused_in_the_same_folder(known_of) -> None:
    known_of(Surface(), vary={SEQS: (16, 32)})
    with pytest.raises(ConfigError, match="something else"):
        known_of(Surface(), vary={SEQS: (16, 48)})


# Speculation --------------------------------------------------------------------------------------------


def payoffs(*ratios: tuple[int, float, float]) -> list[Payoff]:
    return [Payoff(level, Ratio((low + high) / 2, low, high)) for level, low, high in ratios]


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        (((1, 1.5, 2.0), (8, 1.1, 1.3), (32, 0.7, 0.8)), r"pays up to c = 8.*from c = 32 it costs: .25.0 %"),
        (((1, 1.5, 2.0), (8, 0.9, 1.1), (32, 0.7, 0.8)), r"pays up to c = 1,.*from c = 32.*found at c = 8"),
        (((1, 0.7, 0.8), (8, 0.5, 0.6)), r"^from c = 1 it costs: .*, at c = 8 .45.0 %"),
        (((1, 1.5, 2.0), (8, 1.1, 1.3)), r"^speculation pays up to c = 8, where it gives \+20.0 %[^;]*$"),
        (((1, 0.9, 1.1), (8, 1.1, 1.3)), r"^at c = 8 it pays.*no difference was found at c = 1"),
    ],
)
def test_the_sentence_on_speculation(ratios: tuple[tuple[int, float, float], ...], said: str) -> None:
    assert re.search(said, say_payoff(payoffs(*ratios)))


def test_where_drafts_stop_paying_is_measured(known_of) -> None:
    (own,) = conclude_search(known_of(Surface(), vary={TOKENS: (0, 3)})).speculation
    assert (own.configuration, own.without) == ("the recipe as it is", "num-speculative-tokens 0")
    assert [one.level for one in own.payoffs] == [1, 8]
    assert all(one.ratio.low > 1.5 for one in own.payoffs)
    assert own.said.startswith("speculation pays up to c = 8")
    assert conclude_search(known_of(Surface(), "without", vary={SEQS: (16, 32)})).speculation == ()


def test_the_front_holds_what_nothing_beats(known_of) -> None:
    result = conclude_search(known_of(Surface(slower=best)))
    figures = [one for row in result.rows for one in row.levels]
    front = [one for one in figures if one.on_front]
    assert front
    for one in figures:
        beaten = any(other.rate > one.rate and other.tpot_p50 < one.tpot_p50 for other in figures)
        assert not (one.on_front and beaten)
        assert one.on_front or any(
            other.rate >= one.rate and other.tpot_p50 <= one.tpot_p50 for other in front
        )


def test_goodput_counts_tokens_of_requests_that_kept_the_objective(known_of) -> None:
    late = Surface(later=lambda settings: 14.0 if settings[SEQS] == 32 else 1.0)
    asked = {"vary": {SEQS: (16, 32)}, "objective": "goodput", "slo": "ttft_p50=2s"}
    result = conclude_search(known_of(late, **asked))
    rates = {row.configuration.settings[SEQS]: row.levels[0].rate for row in result.rows}
    assert rates[32] < 0.9 * rates[16]
