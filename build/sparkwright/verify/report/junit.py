"""Findings as JUnit XML, for CI systems.

There is no standard; the output is valid against the schemas of Jenkins' xUnit plug-in
(junit-10.xsd) and of Ant's task (JUnit.xsd by Windy Road), which most readers accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET

from sparkwright.base.text import clean
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.report.text import figure
from sparkwright.verify.run import Run

_OUTCOMES = {
    Verdict.FAIL: "failure",
    Verdict.INVALID: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.NOT_APPLICABLE: "skipped",
}
_TIMESTAMP = "1970-01-01T00:00:00"  # the schemas require one, also where none is known
_TIMESTAMP_LENGTH = len(_TIMESTAMP)


def render_junit(run: Run) -> str:
    """Return a test suite for each check and a test case for each finding.

    A failed finding is a failure, an invalid one an error; one that is inconclusive or not applicable is
    skipped. Each has its cause, and its evidence as text. Warnings are the suite's output.
    Times are those of the cells that a finding rests on; findings may share theirs.
    """
    root = ET.Element("testsuites")
    seconds = {observation.cell.key: observation.seconds for observation in run.observations}
    for index, (check, findings) in enumerate(run.by_check.items()):
        root.append(_suite(run, index, check, findings, seconds))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(
    run: Run, index: int, check: str, findings: list[Finding], seconds: Mapping[str, float]
) -> ET.Element:
    counts = {
        outcome: sum(_OUTCOMES.get(finding.verdict) == outcome for finding in findings)
        for outcome in _OUTCOMES.values()
    }
    suite = ET.Element(
        "testsuite",
        {
            "name": clean(check),
            "id": str(index),
            "package": "sparkwright.verify",
            "hostname": clean(str(run.manifest.get("host") or "localhost")).strip() or "localhost",
            "timestamp": _timestamp(run),
            "tests": str(len(findings)),
            "failures": str(counts["failure"]),
            "errors": str(counts["error"]),
            "skipped": str(counts["skipped"]),
            "time": _time({key for finding in findings for key in finding.evidence}, seconds),
        },
    )
    ET.SubElement(suite, "properties")
    suite.extend(_case(finding, seconds) for finding in findings)
    warned = [f"{finding.name}: {warning}" for finding in findings for warning in finding.warnings]
    ET.SubElement(suite, "system-out").text = clean("\n".join(warned))
    ET.SubElement(suite, "system-err")
    return suite


def _time(cells: Iterable[str], seconds: Mapping[str, float]) -> str:
    """Return the seconds that measuring *cells* took, by the client's clock."""
    return f"{sum(seconds.get(key, 0.0) for key in cells):.3f}"


def _timestamp(run: Run) -> str:
    """Return the start in ISO 8601 without a zone, as the schemas require."""
    stamp = str(run.manifest.get("started", ""))[:_TIMESTAMP_LENGTH]
    shape = "".join("0" if character in "123456789" else character for character in stamp)
    return stamp if shape == "0000-00-00T00:00:00" else _TIMESTAMP


def _case(finding: Finding, seconds: Mapping[str, float]) -> ET.Element:
    case = ET.Element(
        "testcase",
        {
            "name": clean(finding.name),
            "classname": f"sparkwright.verify.{clean(finding.check)}",
            "time": _time(finding.evidence, seconds),
        },
    )
    if outcome := _OUTCOMES.get(finding.verdict):
        element = ET.SubElement(case, outcome, {"message": clean(finding.cause)})
        if outcome != "skipped":
            element.set("type", finding.verdict.value)
        element.text = _details(finding)
    return case


def _details(finding: Finding) -> str:
    """Return the definition, threshold, measurements and evidence of a finding, one a line."""
    parts = [finding.definition]
    if finding.threshold:
        parts.append(f"threshold: {finding.threshold}")
    parts.extend(f"{name}: {figure(value)}" for name, value in finding.measured.items())
    if finding.evidence:
        parts.append(f"cells: {', '.join(finding.evidence)}")
    parts.extend(f"warning: {warning}" for warning in finding.warnings)
    return "\n".join(map(clean, parts))
