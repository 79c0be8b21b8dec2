"""Settings compared on arithmetic servers: what was planted is found, and nothing by luck."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from settings_kit import TOKENS, Surface, compared, options
from verify_kit import Server, context, profile

from sparkwright.engine.environment import Environment
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import HostSample
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.recipes.rules import incompatibilities
from sparkwright.verify import setup
from sparkwright.verify.checks.settings import BEST, STANDING, SettingsComparison
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.plan import plan_of
from sparkwright.verify.results import Results

SEQS = "max-num-seqs"


def best(settings: Mapping[str, Any]) -> float:
    """Return the planted surface: one draft and 32 requests at a time are 25 % faster than anything."""
    return 0.5 if (settings[TOKENS], settings[SEQS]) == (1, 32) else 1.0


def rows(results: Results) -> dict[str, Finding]:
    """Return the finding of each configuration by its name, the best first."""
    return {one.name: one for one in results.run.findings[1:]}


def served(results: Results) -> str:
    """Return the name of the configuration to serve."""
    key = results.run.findings[0].measured[BEST]
    keys = {"main": "the recipe as it is", "": ""}
    return keys.get(key) or next(one.name for one in options().configurations if one.key == key)


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Results]:
    """Compare settings on a surface; in a folder of its own where one is named."""

    def run(surface: Surface, folder: str = "run", /, *, judged: bool = False, **asked: Any) -> Results:
        return compared(tmp_path / folder, surface, monkeypatch, options(**asked), judged=judged)

    return run


def test_the_planted_best_is_found_and_written_as_a_recipe(compare, tmp_path) -> None:
    surface = Surface(slower=best)
    results = compare(surface)
    found = rows(results)
    name = next(iter(found))
    assert name == served(results) == f"{TOKENS} 1, {SEQS} 32"
    assert results.verdict is Verdict.PASS
    assert found[name].measured["low"] > 1
    assert len(surface.starts) < 3 * 6
    written = load_recipe(results.folder / "recipe.toml")
    assert (written.name, written.grade) == ("qwen3.8-27b-mtp-tuned", "tuned here")
    assert (written.flags[SEQS], written.speculative["num_speculative_tokens"]) == (32, 1)
    named = {*written.flags, *written.environment, *(f"speculative.{key}" for key in written.speculative)}
    assert named == written.why.keys()
    assert re.search(r"tuned here: best, \+.* against the recipe", written.why[SEQS])
    (evidence,) = written.evidence
    assert "tok/s c=1" in evidence.source
    assert not incompatibilities(written, "0.24.0")
    assert "recipe.toml" in {path.name for path, _, _ in results.files}
    page = results.report.read_text()
    assert name in page
    assert "Tested server against baseline" in page


def test_equal_configurations_keep_the_recipe(compare) -> None:
    for seed in range(3):
        results = compare(Surface(seed=seed), str(seed), vary={SEQS: (16, 24, 32, 48)})
        assert served(results) == "the recipe as it is"
        told = results.run.findings[0].cause
        assert "no difference was shown" in told or "surely slower" in told
        assert results.run.findings[0].measured["starts"] <= 3 * 4
    assert load_recipe(results.folder / "recipe.toml").flags[SEQS] == 16


def test_one_that_does_not_start_is_left_out_with_the_reason(compare) -> None:
    surface = Surface(slower=best, refuses=lambda settings: settings[TOKENS] == 1)
    results = compare(surface)
    out = [one for one in rows(results).values() if one.measured[STANDING] == "left out"]
    assert {one.name for one in out} == {f"{TOKENS} 1, {SEQS} {seqs}" for seqs in (16, 32)}
    assert all("CUDA out of memory" in one.cause for one in out)
    keys = [one.key for one in options().configurations if one.settings[TOKENS] == 1]
    assert sorted(place for place in surface.starts if place[:8] in keys) == sorted(f"{k}-0" for k in keys)
    again = Surface(slower=best, refuses=lambda settings: settings[TOKENS] == 1)
    assert served(compare(again)) == served(results) != ""
    assert again.starts == []


def test_what_the_release_refuses_is_never_started(tmp_path, monkeypatch) -> None:
    def refusal(recipe: Recipe, python: Path) -> str:
        assert python == Path(sys.executable)
        return "unknown choice" if recipe.flags[SEQS] == 32 else ""

    made = Environment(Path(sys.executable), "digest", "this one")
    monkeypatch.setattr(setup, "environment_of", lambda *_, **__: (made, {"wheel": "none"}))
    plan = plan_of(options(simulator=False, python=sys.executable, vary={SEQS: (16, 32)}))
    prepared, _, _ = setup._by_recipe(plan, tmp_path, offline=True, refusal=refusal)
    assert len(prepared.arms) == 2
    (other,) = prepared.arms.keys() - {"main"}
    with pytest.raises(setup.ServerError, match="unknown choice"):
        prepared.arms[other](0)


def test_one_that_breaks_a_limit_is_left_out(compare) -> None:
    late = Surface(slower=best, later=lambda settings: 40.0 if settings[SEQS] == 32 else 1.0)
    results = compare(late, slo="ttft_p95=2s")
    out = {one.name: one.cause for one in rows(results).values() if one.measured[STANDING] == "left out"}
    assert len(out) == 3
    assert all(name.endswith(f"{SEQS} 32") and "TTFT p95" in cause for name, cause in out.items())
    assert f"{SEQS} 32" not in served(results)


@pytest.mark.parametrize(("left", "source"), [(500.0, "vllm"), (500.0, "simulator"), (9000.0, "vllm")])
def test_one_that_leaves_too_little_memory_is_left_out(left: float, source: str) -> None:
    comparison = SettingsComparison(options().configurations[:1], (1,), simulated=source == "simulator")
    there = replace(context(profile(max_tokens=48)), corpus=load_corpus())
    seen = {}
    for cell in comparison.cells(there, {}):
        host = (HostSample(at=1, memory_available_mib=left),)
        seen[cell.key] = msgspec.structs.replace(Server().measure(cell), host=host)
    (trial,) = comparison.trials(there, seen)
    assert (trial.starts, bool(trial.scores)) == (1, True)
    expected = "0.5 GiB of memory stay available, below 4" if (left, source) == (500.0, "vllm") else ""
    assert trial.out == expected


def test_one_with_worse_answers_is_left_out(compare) -> None:
    wrong = Surface(slower=best, wrong=lambda settings: settings[TOKENS] == 1)
    results = compare(wrong, "wrong", judged=True, max_tokens=64)
    row = rows(results)[f"{TOKENS} 1, {SEQS} 32"]
    assert row.measured[STANDING] == "left out"
    assert f"{TOKENS} 1" not in served(results)
    sound = compare(Surface(slower=best), "sound", judged=True, max_tokens=64)
    assert served(sound) == row.name


def test_answers_of_made_up_weights_are_not_judged(compare) -> None:
    faster = Surface(slower=lambda settings: 0.5 if settings[SEQS] == 32 else 1.0, wrong=lambda _: True)
    results = compare(faster, recipe="smoke", vary={SEQS: (32, 64)}, judged=True)
    assert results.run.findings[0].cause.startswith(f"{SEQS} 32: +")


def test_nothing_is_recommended_where_the_recipe_alone_starts_and_is_wrong(compare) -> None:
    late = Surface(later=lambda _: 40.0, refuses=lambda settings: settings[SEQS] == 32)
    results = compare(late, vary={SEQS: (16, 32)}, slo="ttft_p95=2s")
    assert results.verdict is Verdict.FAIL
    assert "none of 2 configurations" in results.run.findings[0].cause
    assert not (results.folder / "recipe.toml").exists()
