"""Reports: what they say in every format, and that nothing in them can break out."""

import html
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
import report_kit
import verify_kit
from msgspec.structs import replace
from page_kit import PageReader
from report_kit import shown

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.journal import Run
from sparkwright.verify.report import render_html
from sparkwright.verify.report.figures import cells, comparison_rows, consequences, levels, number
from sparkwright.verify.report.html import load_chart, round_values

parse = ET.fromstring  # our own XML
FORBIDDEN = {*("script", "img", "iframe", "object"), *("embed", "base", "form")}


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


@pytest.fixture(scope="module")
def unhealthy() -> Run:
    return report_kit.unhealthy()


@pytest.fixture(scope="module")
def good(healthy: Run) -> PageReader:
    return PageReader(render_html(healthy))


@pytest.fixture(scope="module")
def bad(unhealthy: Run) -> PageReader:
    return PageReader(render_html(unhealthy))


@pytest.fixture(scope="module")
def hostile() -> PageReader:
    return PageReader(render_html(report_kit.hostile()))


# One golden run of each format -----------------------------------------------------------------------------

GOLDEN = Path(__file__).parent / "golden" / "report"


def words_of(run: Run) -> str:
    """The words of the page, a line for each element."""
    page = re.sub(r"<style\b.*?</style>", "", render_html(run), flags=re.DOTALL)
    lines = (" ".join(line.split()) for line in re.sub(r"<[^>]*>", "\n", page).splitlines())
    return html.unescape("\n".join(filter(None, lines))) + "\n"


@pytest.mark.parametrize(
    ("name", "render"), [("page.txt", words_of), ("terminal.txt", lambda run: shown(run, terminal=False))]
)
def test_a_run_is_written_as_before(unhealthy: Run, name: str, render: Callable[[Run], str]) -> None:
    """With UPDATE_GOLDEN=1 what is written now is kept; look at the difference before it is committed."""
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(render(unhealthy), encoding="utf-8")
    assert render(unhealthy) == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("run", ["good", "bad", "hostile"])
def test_a_page_is_whole_and_loads_nothing(request: pytest.FixtureRequest, run: str) -> None:
    page: PageReader = request.getfixturevalue(run)
    for tag in ("header", "nav", "main", "footer", "h1"):
        assert len(page.all(tag)) == 1
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for section in page.all("section"):
        assert section.get("aria-label") or section["aria-labelledby"] in ids
    assert {link[1:] for one in page.all("a") if (link := one["href"]).startswith("#")} <= set(ids)
    assert not {tag for tag, _ in page.elements} & FORBIDDEN
    for _, attributes in page.elements:
        for name in ("src", "href", "data", "action", "xlink:href"):
            assert not urlsplit(attributes.get(name, "")).netloc
    styles = "".join(re.findall(r"<style>(.*?)</style>", render_html(Run()), re.DOTALL))
    assert not re.search(r"url\(|@import", styles)


# The chart -----------------------------------------------------------------------------------------------


def test_the_chart_shows_the_key_figures(healthy: Run) -> None:
    found = levels(cells(healthy), 1.0)
    drawing = parse(load_chart(found))
    panels = {group.find("text").text: group for group in drawing.iter("g")}
    for title, name in (("tokens/s", "tok_s"), ("TTFT ms", "ttft_p50_ms"), ("TPOT ms", "tpot_p50_ms")):
        paths = {path.attrib["class"]: path.attrib["d"] for path in panels[title].iter("path")}
        heights = [112 - float(place.partition(",")[2]) for place in paths["line"][1:].split("L")]
        assert len(heights) == len(found)
        values = [getattr(one, name) for one in found]
        for height, value in zip(heights, values, strict=True):
            assert height / heights[0] == pytest.approx(value / values[0], rel=0.02)
        assert ("dashed" in paths) is (title != "tokens/s")
    assert panels["tokens/s"].findall("text")[1].text == "0"


def test_without_a_course_there_is_no_chart(healthy: Run) -> None:
    found = levels(cells(healthy), 1.0)
    assert load_chart(found[:1]) == load_chart([]) == ""
    assert "<figure" in render_html(healthy)
    assert "<figure" not in render_html(Run())


@pytest.mark.parametrize(("high", "labels"), [(1, [0, 0.5, 1]), (1456, [0, 500, 1000]), (7.9, [0, 2, 4, 6])])
def test_labels_are_round(high: float, labels: list[float]) -> None:
    assert round_values(high) == labels


# What the page says --------------------------------------------------------------------------------------


def at_level(observation: Observation, level: int) -> Observation:
    """Return *observation* as an edited journal may have it."""
    load = replace(observation.cell.load, concurrency=level)
    return replace(observation, cell=replace(observation.cell, load=load))


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(manifest={"model": "m"}),
        Run(manifest={"started": "0001-01-01T00:00:00+14:00"}),
        Run(findings=report_kit.healthy_findings(())),
        Run(
            observations=tuple(
                at_level(one, level) for one in report_kit.healthy().observations[:4] for level in (0, 1, 2)
            )
        ),
    ],
)
def test_little_is_enough(run: Run) -> None:
    assert "Findings" in PageReader(render_html(run)).text


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (("pass", "inconclusive"), "inconclusive"),
        (("inconclusive", "invalid", "pass"), "invalid"),
        (("pass", "invalid", "fail", "inconclusive"), "fail"),
        (("pass", "pass"), "pass"),
    ],
)
def test_the_worst_verdict_speaks_for_all(verdicts: tuple[str, ...], said: str) -> None:
    findings = [report_kit.finding("c", "n", "x", Verdict(verdict)) for verdict in verdicts]
    assert Run(findings=findings).verdict == said


# Real checks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, [("n", "1.10", "1", "1.20")]),
        ({"high": "inf", "low": None}, [("n", "1.10", "\N{EN DASH}", "inf")]),
        ({"speed over the baseline's": None}, []),
    ],
)
def test_intervals_of_a_comparison(changes: dict[str, Any], rows: list[tuple[str, ...]]) -> None:
    measured = report_kit.comparison("n", 1.1, 1.0, 1.2).measured | changes
    known = {name: value for name, value in measured.items() if value is not None}
    finding = report_kit.finding("compare", "n", "x", measured=known)
    run = Run(findings=(finding,))
    assert [row[:4] for row in comparison_rows(run)] == rows
    assert ("Tested server against baseline" in PageReader(render_html(run)).shown) == bool(rows)


# Hostile words -------------------------------------------------------------------------------------------


def test_hostile_words_stay_words(hostile: PageReader) -> None:
    tags = {tag for tag, _ in hostile.elements}
    assert not tags & {"script", "img", "textarea"}
    assert len(hostile.all("style")) == 1
    for _, attributes in hostile.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes.get("href", "").casefold().startswith("javascript:")
    assert "<script>alert(1)</script>" in hostile.text  # as words
    assert "{{ 7 * 7 }}" in hostile.text


def test_hostile_words_cannot_steer() -> None:
    page = render_html(report_kit.hostile())
    for character in ("\x1b", "\x07", "\x00", "\x08", "\u202e", "\u2066", "\ud800", "\ufffe", "\u2028"):
        assert character not in page
    assert r"\u202e" in page
    page.encode()


# Figures that are not there ------------------------------------------------------------------------------


def test_counters_that_began_anew_cost_only_what_they_say() -> None:
    seen = report_kit.sweep(report_kit.Server(), (1,))[0]
    restarted = verify_kit.counted(seen, start_s=9.0, drafts=0)
    whole, broken = cells(Run(observations=(seen, restarted)))
    assert whole.trouble == ()
    assert math.isfinite(whole.mal)
    assert math.isnan(broken.mal)
    assert broken.ttft_ms == whole.ttft_ms
    assert "started again" in broken.trouble[0]
    render_html(Run(observations=(restarted,)))


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_figures_are_in_the_servers_time(speed: float) -> None:
    seen = report_kit.sweep(report_kit.Server(seed=4, speed=speed), (2,))
    found = cells(Run(manifest={"speed": speed}, observations=seen))
    expected = cells(Run(observations=report_kit.sweep(report_kit.Server(seed=4), (2,))))
    for one, other in zip(found, expected, strict=True):
        assert one.steady_tok_s == pytest.approx(other.steady_tok_s, rel=1e-3)
        assert one.step_ms == pytest.approx(other.step_ms, rel=1e-3)


def test_what_is_not_applicable_is_said_once_and_counts_for_nothing() -> None:
    why = "this server does not speculate"
    lacking = [report_kit.finding(check, "n", why, Verdict.NOT_APPLICABLE) for check in ("boot", "sweep")]
    run = Run(
        manifest={"checks": ("boot", "sweep", "soak")},
        findings=(report_kit.finding("boot", "starts", "it does"), *lacking),
    )
    assert run.verdict is Verdict.PASS
    assert str(run.coverage) == "1 of 3 checks, 1 of 3 conclusions, without: sweep, soak"
    assert not run.coverage.whole
    page = render_html(run)
    assert page.count(f"Not applicable: {why}") == 1
    assert "What did not pass" not in page
    assert Run(findings=lacking).verdict is Verdict.INCONCLUSIVE  # of a run of nothing else


# What shows at once --------------------------------------------------------------------------------------


def test_a_broken_drafter_is_told_once() -> None:
    def told(check: str, cause: str, verdict: Verdict, key: str) -> Finding:
        return replace(report_kit.finding(check, "x", cause, verdict), evidence=(key,))

    causes = ["acceptance decays: from 6 min on", "drafter inert: 0 tokens of 200 drafts were accepted"]
    run = Run(
        findings=[
            told("soak", causes[0], Verdict.FAIL, "a"),
            told("sweep", causes[1], Verdict.FAIL, "b"),
            told("sweep", "it may be 0.5 to 2", Verdict.INCONCLUSIVE, "b"),
            told("crash", "2 requests failed", Verdict.FAIL, "c"),
        ]
    )
    assert consequences(run) == {1, 2}
    shown = PageReader(render_html(run)).shown
    assert causes[0] in shown
    assert "2 requests failed" in shown
    assert causes[1] not in shown
    assert "Because of these: 2 further conclusions" in shown


def test_a_comparison_names_both_sides_at_the_top() -> None:
    run = Run(manifest={"title": "x", "before": "vllm-1.whl", "after": "vllm-2.whl"})
    text = PageReader(render_html(run)).text
    assert "A, before vllm-1.whl B, after vllm-2.whl" in text
    seen = report_kit.sweep(report_kit.Server(), (1,))[:1]
    cell = replace(seen[0].cell, check="compare", arm="baseline")
    live = Run(
        manifest={"title": "recipe", "wheel": {"name": "new.whl", "sha256": "0"}, "against-file": "old.whl"},
        observations=[replace(seen[0], cell=cell)],
    )
    assert "A, new new.whl B, baseline old.whl" in PageReader(render_html(live)).text
    assert "baseline old.whl" not in PageReader(render_html(Run(manifest=live.manifest))).text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (3.0, "3"),
        (1234567.0, "1,234,567"),
        (1872.4, "1,872"),
        (41.04, "41.0"),
        (0.6104, "0.610"),
        (-35.69, "\N{MINUS SIGN}35.7"),
        (0.0000123, "1.23e\N{MINUS SIGN}05"),
        (math.nan, "\N{EN DASH}"),
        (None, "\N{EN DASH}"),
        (math.inf, "∞"),
        (-math.inf, "\N{MINUS SIGN}∞"),
        (99.99, "100"),
    ],
)
def test_numbers(value: float | None, words: str) -> None:
    assert number(value).removesuffix(".0") == words.removesuffix(".0")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_the_reports_path_is_never_broken(healthy: Run, width: int) -> None:
    for terminal in (False, True):
        assert "report: /runs/2026-11-21/report.html\n" in shown(healthy, terminal=terminal, width=width)


def test_a_server_cannot_steer_the_terminal() -> None:
    plain = shown(report_kit.hostile(), terminal=False)
    assert not set(plain) & {"\x1b", "\x07", "\x00", "\x08", "\u202e", "\ud800"}
    styled = shown(report_kit.hostile(), terminal=True, width=400)
    assert "\x1b]0;" not in styled
    assert "[bold red]x[/]" in styled  # as words, not as markup
    assert "\x1b[1;31m✗ Failed" in shown(report_kit.unhealthy(), terminal=True)


def test_without_cells_that_count_there_is_no_table_of_speed(healthy: Run) -> None:
    spoilt = [replace(seen, canary="first-token: none") for seen in healthy.observations]
    for seen in ((), spoilt):
        other = Run(healthy.manifest, healthy.facts, seen, healthy.findings)
        assert "tok/s  TTFT" not in shown(other, terminal=False)
