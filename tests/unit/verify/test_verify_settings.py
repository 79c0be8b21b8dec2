"""Settings compared on arithmetic servers: what was planted is found, and nothing by luck."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from verify_kit import Server, boot_facts, context, costly, profile

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ServerError
from sparkwright.engine.cell import Cell
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.environment import Environment
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, HostSample, Observation
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.recipes.rules import incompatibilities
from sparkwright.verify import setup, suite
from sparkwright.verify.checks.settings import (
    BEST,
    OWN,
    STANDING,
    SettingsComparison,
    State,
    Trial,
    arm_of,
    contenders,
    next_start,
    recommended,
    spread_of,
    standings,
)
from sparkwright.verify.compare import SPREAD
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.profiles import PROFILES, Profile
from sparkwright.verify.results import Results, write_results
from sparkwright.verify.runner import write_tuned
from sparkwright.verify.setup import prepare

RECIPE = "qwen3.8-27b-mtp"
TOKENS = "num-speculative-tokens"


class StoppedError(Exception):
    """Stands for a kill between two cells."""


def nothing(settings: Mapping[str, Any]) -> bool:
    """Tell that no configuration is affected."""
    return False


def same(settings: Mapping[str, Any]) -> float:
    """Return the same for all configurations."""
    return 1.0


@dataclass
class Surface:
    """The servers of a comparison."""

    slower: Callable[[Mapping[str, Any]], float] = same
    later: Callable[[Mapping[str, Any]], float] = same
    refuses: Callable[[Mapping[str, Any]], bool] = nothing
    wrong: Callable[[Mapping[str, Any]], bool] = nothing
    short: Callable[[Mapping[str, Any]], bool] = nothing
    luck: float = 0.01
    seed: int = 0
    stop_after: int = 10_000
    starts: list[str] = field(default_factory=list)
    cells: list[tuple[str, int, str]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def start(self, arm: str, recipe: Recipe, boot: int) -> AsyncIterator[StartedServer]:
        self.starts.append(f"{arm}-{boot}")
        settings = effective(recipe)
        if self.refuses(settings):
            raise ServerError("the server ended while it started", because="CUDA out of memory")
        number = int(digest_of([arm, boot, self.seed])[:8], 16)
        factor = float(np.random.default_rng(number).lognormal(0, self.luck)) if self.luck else 1.0
        server = Server(
            seed=number if self.luck else 0,
            k=int(settings[TOKENS]),
            step_ms=50 * factor * self.slower(settings),
            ttft_ms=120 * self.later(settings),
        )
        yield StartedServer(self, server, settings)


@dataclass
class StartedServer:
    """One start of an arithmetic server, as the suite sees it."""

    surface: Surface
    server: Server
    settings: Mapping[str, Any]
    facts: BootFacts = field(default_factory=boot_facts)
    restartable: bool = True
    died: int | None = None
    pid: int | None = None
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("http://localhost:9", "m"))

    def measure(self, cell: Cell) -> Observation:
        if len(self.surface.cells) >= self.surface.stop_after:
            raise StoppedError
        self.surface.cells.append((cell.arm, cell.boot, cell.name))
        seen = self.server.measure(cell)
        if self.surface.wrong(self.settings):
            samples = tuple(msgspec.structs.replace(one, text="the list of keys") for one in seen.samples)
            seen = msgspec.structs.replace(seen, samples=samples)
        left = 500.0 if self.surface.short(self.settings) else 9000.0
        return msgspec.structs.replace(seen, host=(HostSample(at=1, memory_available_mib=left),))


def effective(recipe: Recipe) -> dict[str, Any]:
    """Return the flags of *recipe*, and its drafted tokens."""
    tokens = recipe.speculative.get("num_speculative_tokens", 0)
    return {**recipe.flags, TOKENS: tokens, "method": recipe.speculative.get("method", "none")}


def options(**changes: Any) -> VerifyOptions:
    """Return options of a small comparison; simulators are replaced by a `Surface`."""
    usual: dict[str, Any] = {
        "profile": "demo",
        "recipe": RECIPE,
        "simulator": True,
        "vary": {TOKENS: (0, 1, 3), "max-num-seqs": (16, 32)},
        "levels": (1, 8),
        "max_tokens": 48,
        "categories": ("code", "prose"),
    }
    return VerifyOptions(**{**usual, **changes})


def compared(
    folder: Path, surface: Surface, monkeypatch: pytest.MonkeyPatch, asked: VerifyOptions, *, judged: bool
) -> Results:
    """Compare settings on *surface* in *folder*, or what is left to measure; answers only where *judged*."""

    async def measure(server: StartedServer, cell: Cell, profile: Profile) -> Observation:
        return server.measure(cell)

    monkeypatch.setattr(suite, "measure", measure)
    plan = plan_of(asked, msgspec.structs.replace(PROFILES["demo"], speed=1.0, comparison_requests=8))
    plan = dataclasses.replace(
        plan, context=dataclasses.replace(plan.context, made_up=plan.context.made_up or not judged)
    )
    found = asked.configurations
    arms = {
        arm_of(found, index): functools.partial(surface.start, arm_of(found, index), one.recipe)
        for index, one in enumerate(found)
    }

    async def run() -> None:
        prepared, manifest = await prepare(plan, folder)
        await suite.run_plan(dataclasses.replace(prepared, arms=arms), manifest, folder)

    asyncio.run(run())
    return write_tuned(write_results(folder), asked)


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
        results = compare(Surface(seed=seed), str(seed), vary={SEQS: (16, 32, 48)})
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
    asked: dict[str, Any] = {"judged": True, "max_tokens": 64, "vary": {TOKENS: (1, 3), SEQS: (16, 32)}}
    results = compare(wrong, "wrong", **asked)
    row = rows(results)[f"{TOKENS} 1, {SEQS} 32"]
    assert row.measured[STANDING] == "left out"
    assert f"{TOKENS} 1" not in served(results)
    sound = compare(Surface(slower=best), "sound", **asked)
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


# Which arm is started next, and what may be said of each ----------------------------------------------------


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
