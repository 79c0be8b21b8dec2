"""Run the fault matrix, and write which check noticed which fault and how: dist/verify-faults.md.

python scripts/verify_faults.py [--seeds 20] [--faults NAME,…] [--out FILE]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fault_matrix import CASES, Case, Outcome, run_cases, seeds  # noqa: E402 - found by the path above

from sparkwright.engine.findings import Verdict  # noqa: E402
from sparkwright.verify.simulator.faults import FAULTS  # noqa: E402

# Head of a finding's cause; a server that does not start has none.
_FINDING = re.compile(r"^(?:fail|invalid|inconclusive) [a-z-]+: [^:]+: ")

PAGE = ROOT / "dist" / "verify-faults.md"
_TESTED = "`server` stands for the server's start and end, which is no check: tests of its processes show it."


def main() -> int:
    """Run the cases; return 0 if each had the expected result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="number of healthy servers")
    parser.add_argument("--faults", default="", help="only these faults, and healthy servers of their checks")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    given = parser.parse_args()
    cases = _chosen([name for name in given.faults.split(",") if name], given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_cases(cases, Path(folder)).values()
    found = list(zip(cases, outcomes, strict=True))
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(page(found), encoding="utf-8")
    odd = [(case, outcome) for case, outcome in found if not as_expected(case, outcome)]
    for case, outcome in odd:
        causes = "; ".join(outcome.causes) or "no cause"
        print(
            f"{case.fault or 'healthy'}, {case.check}: {outcome.verdict} in place of {case.verdict}: {causes}"
        )
    return 1 if odd else 0


def _chosen(names: list[str], count: int) -> tuple[Case, ...]:
    """Return the cases of these faults with *count* healthy servers for their checks; all without names."""
    if unknown := [name for name in names if name not in FAULTS]:
        raise SystemExit(f"there is no fault {unknown[0]!r}; they are in verify/simulator/faults.toml")
    faulty = tuple(case for case in CASES if not names or case.fault.partition("=")[0] in names)
    checks = {case.check for case in faulty}
    return (*faulty, *(case for case in seeds(count) if not names or case.check in checks))


def as_expected(case: Case, outcome: Outcome) -> bool:
    """Tell if *outcome* is the expected one of *case*."""
    named = case.verdict is Verdict.PASS or any(re.search(case.says, cause) for cause in outcome.causes)
    warned = not case.warns or any(re.search(case.warns, warning) for warning in outcome.warnings)
    return outcome.verdict is case.verdict and named and warned


def page(found: list[tuple[Case, Outcome]]) -> str:
    """Return the page in Markdown."""
    faulty = [(case, outcome) for case, outcome in found if case.fault]
    healthy = [outcome for case, outcome in found if not case.fault]
    return "\n".join([*_confusion(faulty, healthy), *not_shown(faulty), "", *_faults(faulty), ""])


def not_shown(faulty: list[tuple[Case, Outcome]]) -> list[str]:
    """Return what no row shows: faults without a case, and checks that should notice one and were not run."""
    shown: dict[str, set[str]] = {}
    for case, outcome in faulty:
        noticed = shown.setdefault(case.fault.partition("=")[0], set())
        if as_expected(case, outcome) and not _harmless(case):
            noticed.add(case.check)
    left = [f"| `{name}` | {fault.does} | not run |" for name, fault in FAULTS.items() if name not in shown]
    left += [
        f"| `{name}` | {FAULTS[name].does} | {', '.join(missing)} |"
        for name in shown
        if (missing := [check for check in FAULTS[name].noticed_by if check not in shown[name]])
    ]
    head = ["", "| not shown | what it does | by |", "|---|---|---|"]
    return [*head, *left, "", _TESTED] if left else []


def _confusion(faulty: list[tuple[Case, Outcome]], healthy: list[Outcome]) -> list[str]:
    detected, missed = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for case, outcome in faulty:
        if not _harmless(case):
            verdict = "" if case.verdict is Verdict.FAIL else f" ({'warned' if case.warns else case.verdict})"
            (detected if as_expected(case, outcome) else missed)[case.check].append(
                f"`{case.fault}`{verdict}"
            )
    alarms: list[str] = []
    judged = 0
    for outcome in healthy:
        judged += len(outcome.verdicts)
        alarms += [f"`{name}`" for name, found in outcome.verdicts.items() if found is not Verdict.PASS]
    odd = {f"`{case.fault}`": as_expected(case, outcome) for case, outcome in faulty if _harmless(case)}
    alarms += [name for name, right in odd.items() if not right]
    wrong = [f"{', '.join(names)} (`{check}`)" for check, names in sorted(missed.items())]
    return [
        "| check | faults detected |",
        "|---|---|",
        *(f"| `{check}` | {', '.join(names)} |" for check, names in sorted(detected.items())),
        "",
        f"Missed: {'; '.join(wrong) or 'none'}. Odd, but right: {', '.join(odd)}.",
        f"False alarms on these and in {judged} checks of healthy servers: {', '.join(alarms) or 'none'}.",
    ]


def _harmless(case: Case) -> bool:
    return case.verdict is Verdict.PASS and not case.warns


def _faults(faulty: list[tuple[Case, Outcome]]) -> list[str]:
    rows = ["| fault | what it does | check | verdict | as expected | cause |", "|---|---|---|---|---|---|"]
    for case, outcome in faulty:
        said, pattern = (outcome.warnings, case.warns) if case.warns else (outcome.causes, case.says)
        matching = [cause for cause in said if re.search(pattern, cause)]
        cause = _FINDING.sub("", matching[0]) if matching else ""
        does = FAULTS[case.fault.partition("=")[0]].does
        expected = "yes" if as_expected(case, outcome) else "**no**"
        row = (f"`{case.fault}`", does, case.check, str(outcome.verdict), expected, _short(cause))
        rows.append(f"| {' | '.join(row)} |")
    return rows


def _short(cause: str) -> str:
    text = " ".join(cause.split()).replace("|", "\\|")
    return text if len(text) <= 160 else f"{text[:159]}…"  # noqa: PLR2004 - what a table's cell holds


if __name__ == "__main__":
    sys.exit(main())
