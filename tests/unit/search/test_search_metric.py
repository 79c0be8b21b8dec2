"""A slowdown is found under noise, what cannot be decided is never good, and figures are taken whole."""

import math
import random
from pathlib import Path

import pytest
from search_kit import problem, run

from sparkwright.base.errors import BisectionError, ConfigError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.search.metric import MetricJudge, parse_figure
from sparkwright.search.model import StepVerdict, UntestableError

SEEDS = range(20)
NOWHERE = Path()


class Bench:
    """Samples with 3 % noise, on a machine that slows down by a third over 500 samples."""

    name = "tokens a second"

    def __init__(self, seed: int, slow: str, factor: float = 0.95, noise: float = 0.03) -> None:
        self.random, self.slow, self.factor, self.noise = random.Random(seed), slow, factor, noise
        self.taken = 0

    def sample(self, applied: frozenset[str], folder: Path) -> float:
        assert folder.name.startswith("sample-")
        self.taken += 1
        drift = 1 - min(self.taken, 500) / 1500
        return 100 * drift * (self.factor if self.slow in applied else 1.0) * self.random.gauss(1, self.noise)


class MetricSearch(MetricJudge):
    """Counts what the kit's searches count."""

    def evaluate(self, applied, *, attempt, folder):
        self.asked = [*getattr(self, "asked", []), (applied, attempt)]
        return super().evaluate(applied, attempt=attempt, folder=folder)


def judged(bench: Bench, applied: set[str], **rest):
    judge = MetricJudge(bench, **({"worse_by": 0.05, "higher_is_better": True} | rest))
    return judge.evaluate(frozenset(applied), attempt=1, folder=NOWHERE)


def test_a_slowdown_of_5_percent_under_3_percent_noise_is_named() -> None:
    right, samples = 0, []
    for seed in SEEDS:
        culprit = f"c{seed * 7 % 17 + 1}"
        bench = Bench(seed, culprit)
        try:
            result = run(problem(), MetricSearch(bench, 0.05, higher_is_better=True))
        except BisectionError:  # an end was not decided: no answer, and no wrong one
            continue
        assert result.kind != "culprit" or result.changes == (culprit,)
        right += result.changes == (culprit,)
        samples.append(bench.taken)
    assert right >= 19
    assert sum(samples) / len(samples) < 600


def test_a_healthy_pair_names_no_culprit() -> None:
    for seed in SEEDS:
        with pytest.raises(BisectionError):
            run(problem(), MetricSearch(Bench(seed, "none"), 0.05, higher_is_better=True))


@pytest.mark.parametrize(("higher", "factor", "verdict"), [
    (True, 0.9, StepVerdict.BAD),
    (True, 1.1, StepVerdict.GOOD),
    (True, 1.0, StepVerdict.GOOD),
    (False, 1.1, StepVerdict.BAD),
    (False, 0.9, StepVerdict.GOOD),
    (False, 1.0, StepVerdict.GOOD),
])  # fmt: skip
def test_the_worse_side_of_a_metric_is_bad(higher, factor, verdict) -> None:
    found = judged(Bench(3, "c1", factor), {"c1"}, higher_is_better=higher)
    assert found.verdict is verdict
    assert found.value == pytest.approx(factor, rel=0.03)
    assert bool(found.signature) == (verdict is StepVerdict.BAD)


def test_more_noise_asks_for_more_samples_and_no_decision_is_not_good() -> None:
    taken = []
    for noise in (0.001, 0.03):
        bench = Bench(1, "c1", noise=noise)
        assert judged(bench, {"c1"}).verdict is StepVerdict.BAD
        taken.append(bench.taken)
    assert taken[0] == 8 < taken[1]
    bench = Bench(1, "c1", noise=0.3)
    assert judged(bench, {"c1"}, most_samples=12).verdict is StepVerdict.UNSTABLE
    assert bench.taken == 24


def test_a_candidate_that_cannot_be_measured_is_untestable() -> None:
    class Broken(Bench):
        def sample(self, applied, folder) -> float:
            if applied:
                raise UntestableError("it does not boot")
            return super().sample(applied, folder)

    with pytest.raises(UntestableError, match="it does not boot"):
        judged(Broken(1, "c1"), {"c1"})


@pytest.mark.parametrize("cut", [0, 5])
def test_a_killed_evaluation_takes_no_finished_pair_again(tmp_path: Path, cut) -> None:
    class Killed(Bench):
        def sample(self, applied, folder) -> float:
            if folder.name == "sample-12":
                raise KeyboardInterrupt
            return super().sample(applied, folder)

    whole = judged(Bench(1, "c1"), {"c1"}, kept=tmp_path / "whole")
    killed = Killed(1, "c1")
    with pytest.raises(KeyboardInterrupt):
        judged(killed, {"c1"}, kept=tmp_path / "cut")
    (path,) = (tmp_path / "cut").iterdir()
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    resumed = Bench(1, "c1")
    for number in range(killed.taken - killed.taken % 2 - (2 if cut else 0)):  # the machine goes on as it was
        resumed.sample(frozenset(), NOWHERE / f"sample-{number}")
    before = resumed.taken
    again = judged(resumed, {"c1"}, kept=tmp_path / "cut")
    assert again.verdict is whole.verdict
    assert before == (8 if cut else 10)
    (kept,) = (tmp_path / "cut").iterdir()
    assert len(kept.read_text().splitlines()) * 2 == resumed.taken


# Figures by name, of a sweep's findings


def finding(category: str, verdict: Verdict = Verdict.PASS, **measured: float) -> Finding:
    return Finding(
        check="sweep",
        name=f"{category}: served at every level",
        definition="",
        verdict=verdict,
        cause="a request failed",
        measured={name.replace("_", " ").replace(" per ", "/"): value for name, value in measured.items()},
    )


def rates(category: str, rate: float, **rest) -> Finding:
    return finding(category, **{"c=1_decode_tok_per_s": rate, "c=8_decode_tok_per_s": 1.0}, **rest)


def test_categories_count_alike() -> None:
    other = Finding(check="sweep", name="the client kept up", definition="", verdict=Verdict.FAIL, cause="")
    found = parse_figure("decode-tok-s@1").value([rates("code", 40.0), rates("prose", 10.0), other])
    assert found == pytest.approx(20)


@pytest.mark.parametrize(
    "findings",
    [
        [],
        [rates("code", 40.0, verdict=Verdict.FAIL)],
        [rates("code", 40.0), rates("prose", 40.0, verdict=Verdict.INVALID)],
        [rates("code", 40.0), finding("prose")],
        [rates("code", 0.0)],
        [rates("code", math.nan)],
    ],
)
def test_what_was_not_measured_in_full_has_no_value(findings) -> None:
    with pytest.raises(UntestableError):
        parse_figure("decode-tok-s@1").value(findings)


@pytest.mark.parametrize(
    "text", ["decode-tok-s", "decode-tok-s@0", "decode-tok-s@", "speed@1", "ttft-ms@1@2"]
)
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_figure(text)
