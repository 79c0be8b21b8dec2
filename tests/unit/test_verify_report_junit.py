"""The JUnit file of a run: valid by both schemas in use, with each finding's outcome, cause and duration."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
import report_kit

from sparkwright.verify.report import render_junit
from sparkwright.verify.run import Run

parse = ET.fromstring  # our own XML


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


@pytest.fixture(scope="module")
def unhealthy() -> Run:
    return report_kit.unhealthy()


SUITE = {"name", "id", "package", "hostname", "timestamp", "tests", "failures", "errors", "skipped", "time"}


def violations(xml: str) -> list[str]:
    """Return the parts of *xml* that JUnit.xsd (Ant) and junit-10.xsd (Jenkins) both forbid."""
    root = parse(xml)
    found = ["root"] if root.tag != "testsuites" or root.attrib else []
    for index, suite in enumerate(root):
        found += _of_suite(index, suite)
        for case in suite.findall("testcase"):
            if not {"name", "classname", "time"} <= set(case.attrib) or len(case) > 1:
                found.append("case")
            if any(one.tag != "skipped" and "type" not in one.attrib for one in case):
                found.append("type")
    return found


def _of_suite(index: int, suite: ET.Element) -> list[str]:
    cases = len(suite.findall("testcase"))
    counts = {"tests": cases}
    for outcome, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        counts[name] = len(suite.findall(f"testcase/{outcome}"))
    order = ["properties", *["testcase"] * cases, "system-out", "system-err"]
    wrong = {
        "suite": suite.tag != "testsuite" or set(suite.attrib) != SUITE or suite.get("id") != str(index),
        "timestamp": not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", "")),
        "order": [one.tag for one in suite] != order,
        "counts": any(suite.get(name) != str(count) for name, count in counts.items()),
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


def test_junit_is_valid(healthy: Run, unhealthy: Run) -> None:
    for run in (healthy, unhealthy, report_kit.hostile(), Run()):
        assert violations(render_junit(run)) == []


@pytest.mark.parametrize(
    ("old", "new", "which"),
    [
        ('failures="1"', 'failures="0"', "counts"),
        ("T09:30:00", " 09:30", "timestamp"),
        ("<system-err />", "", "order"),
        ('type="fail"', "", "type"),
        ('id="0"', 'id="7"', "suite"),
    ],
)
def test_a_planted_violation_is_seen(unhealthy: Run, old: str, new: str, which: str) -> None:
    xml = render_junit(unhealthy)
    assert old in xml
    assert which in violations(xml.replace(old, new))


def test_junit_tells_how_long_the_measuring_took(healthy: Run) -> None:
    seconds = {seen.cell.key: seen.seconds for seen in healthy.observations}
    suites = {suite.get("name"): suite for suite in parse(render_junit(healthy).encode())}
    for check, findings in healthy.by_check.items():
        cases = suites[check].findall("testcase")
        for case, finding in zip(cases, findings, strict=True):
            took = sum(seconds[key] for key in finding.evidence)
            assert float(case.get("time", "")) == pytest.approx(took, abs=0.001)
    assert float(suites["sweep"].get("time", "")) > 0


def test_junit_tells_outcomes_and_causes(unhealthy: Run) -> None:
    root = parse(render_junit(unhealthy))
    outcomes = {
        (case.get("classname", ""), case.get("name")): [one.tag for one in case]
        for case in root.iter("testcase")
    }
    assert outcomes["sparkwright.verify.crash", "survives every load"] == ["failure"]
    assert outcomes["sparkwright.verify.sweep", "the client kept up"] == ["error"]
    assert outcomes["sparkwright.verify.lossless", "no token is lost"] == ["skipped"]
    assert outcomes["sparkwright.verify.context", "acceptance holds at 33k"] == []
    failure = root.find(".//testcase[@classname='sparkwright.verify.soak']/failure")
    assert failure is not None
    assert "18 minutes" in failure.get("message", "")
    assert "threshold: at most 10 %" in (failure.text or "")
    assert "onset s: 1,080" in (failure.text or "")
    assert "prose is 31 % below" in "".join(one.text or "" for one in root.iter("system-out"))
