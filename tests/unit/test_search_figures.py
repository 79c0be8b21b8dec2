"""Figures by name are taken from a sweep's findings, and only from whole ones."""

from __future__ import annotations

import math

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.search.figures import FIGURES, parse_figure
from sparkwright.search.metric import UntestableError


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


def test_times_are_worse_where_they_are_longer() -> None:
    for name in FIGURES:
        assert parse_figure(f"{name}@8").higher_is_better != name.endswith("-ms")


@pytest.mark.parametrize(
    "text", ["decode-tok-s", "decode-tok-s@0", "decode-tok-s@", "speed@1", "ttft-ms@1@2"]
)
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_figure(text)
