"""Bands warn and never decide; physics does."""

import functools
from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import SEEDS, Server, boot_facts, context, judge, profile, run

from sparkwright.engine.observations import Observation
from sparkwright.recipes.evidence import load_references
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL, bands
from sparkwright.verify.checks.bands import capacity_of, load_bands

BANDS = ALL["bands"]
KEY = "qwen3.6-27b/dflash/k12/fp8"
LIKE = "figures are near published ones"
PHYSICS = "no result exceeds the memory-bandwidth bound"


def to(band: str = KEY, k: int = 12, **changes: Any) -> Context:
    return context(profile(**changes), facts=boot_facts(speculative_tokens=k), band=band)


def server(seed: int = 1, **changes: Any) -> Server:
    return Server(**{"seed": seed, "k": 12, "step_ms": 124.6, **changes})


def test_every_figure_has_a_source_and_a_grade() -> None:
    known = load_bands().band
    assert {band.key for band in known if band.grade.startswith("A")} == {
        "gemma-4-26b/dflash/k10/fp8",
        "qwen3.6-35b-a3b/dflash/k12/fp8",
        "qwen3.6-27b/dflash/k12/fp8",
    }
    assert all(len(band.source) > 20 for band in known)
    assert capacity_of("qwen3.6-27b/mtp/k3/nvfp4") == pytest.approx(525_000 / 35.7, rel=0.001)
    assert capacity_of(KEY) == capacity_of("qwen3.6-27b/mtp/k3/nvfp4"), "the body decides"
    assert capacity_of("gemma-4-26b/dflash/k10/fp8") == capacity_of("") == 0


@functools.cache
def measured(seed: int) -> tuple[Observation, ...]:
    return tuple(run(BANDS, to(), server(seed)))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_here_fails_a_server_that_is_possible(seed: int) -> None:
    found = {finding.name: finding for finding in BANDS.judge(to(), measured(seed))}
    assert found[LIKE].verdict == found[PHYSICS].verdict == "pass"
    assert not any("verify step" in warning for warning in found[LIKE].warnings)


def test_another_k_is_not_compared() -> None:
    found = judge(BANDS, to(k=7), server(k=7))
    assert found[LIKE].cause == "0 figures were compared, with 1 warnings"
    assert "7 tokens are drafted here, and 12" in found[LIKE].warnings[0]


PLAIN = "nemotron-3-nano/nvfp4/none/stock-0.26"  # 63.1 tok/s, so that a step takes 15.8 ms


@pytest.mark.parametrize(("step_ms", "far"), [(15.8, 0), (30.0, 3)])
def test_one_published_rate_without_speculation_holds_for_every_category(step_ms, far) -> None:
    found = judge(BANDS, to(PLAIN, 0), server(k=0, step_ms=step_ms))[LIKE]
    assert (found.verdict, len(found.warnings)) == ("pass", far)
    assert all("decode tok/s" in said and "published 63.1" in said for said in found.warnings)
    assert "3 figures were compared" in found.cause


@pytest.mark.parametrize("change", [{"grade": "B"}, {"speculative": True}, {"values": {"c=8": 63.1}}])
def test_figures_of_a_lower_grade_of_drafts_or_of_more_requests_are_no_bands(monkeypatch, change) -> None:
    figures = load_references()[PLAIN]
    monkeypatch.setattr(bands, "load_references", lambda: {PLAIN: figures})
    assert BANDS.cells(to(PLAIN, 0))
    monkeypatch.setattr(bands, "load_references", lambda: {PLAIN: replace(figures, **change)})
    assert BANDS.cells(to(PLAIN, 0)) == ()


def test_without_a_band_nothing_is_asked() -> None:
    assert BANDS.cells(to(band="")) == ()
    found = judge(BANDS, to(band=""), server())
    assert list(found) == [LIKE]
    assert found[LIKE].cause == "no reference band is known for what is served"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_beyond_the_memory_s_bandwidth_is_an_artefact(seed: int) -> None:
    """273 GB/s give 18 steps a second of 15.2 GB each, so no step takes less than 55.7 ms."""
    found = judge(BANDS, to(), server(seed, step_ms=40.0))
    assert found[PHYSICS].verdict == "invalid"
    assert found[PHYSICS].cause.startswith("artefact: code c=1 has ")
