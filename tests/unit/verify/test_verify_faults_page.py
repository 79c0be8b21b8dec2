"""What `make test-verify` writes names faults and checks that it did not show."""

from pathlib import Path
from typing import Any

import pytest
from fault_matrix import CASES, Case, Outcome
from kit import load_file

from sparkwright.engine.findings import Verdict
from sparkwright.verify.simulator.faults import FAULTS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> Any:
    return load_file(ROOT / "scripts" / "verify_faults.py")


def seen(case: Case, verdict: Verdict, cause: str) -> tuple[Case, Outcome]:
    return case, Outcome(verdict, (cause,), (), {case.check: verdict}, 1)


def test_the_page_names_faults_and_checks_that_no_row_shows(script: Any) -> None:
    rows = [
        seen(case, case.verdict, "fail status 500 gap leave the other server's")
        for case in CASES
        if case.fault in {"lossy", "status", "orphan"}
    ]
    told = script.not_shown(rows)
    assert "| `lossy` | speculation accepts wrong tokens at this rate | parity |" not in told
    assert any(line.startswith("| `orphan` |") and line.endswith("| server |") for line in told)
    assert sum(line.endswith("| not run |") for line in told) == len(FAULTS) - 3
    missed = [(case, outcome) for case, outcome in rows if case.check != "parity"]
    missed += [
        seen(case, Verdict.PASS, "") for case in CASES if (case.fault, case.check) == ("lossy", "parity")
    ]
    assert "| `lossy` | speculation accepts wrong tokens at this rate | parity |" in script.not_shown(missed)
