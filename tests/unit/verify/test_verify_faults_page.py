"""The page on faults says nothing of the machine or the run that made it."""

import sys
import tempfile
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


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"{sys.prefix}/bin/python -m x", "python -m x"),
        (f"see {tempfile.gettempdir()}/tmp1/3/servers/main-0/server.log, please", "see server.log, please"),
        (f"its log ends: …{str(ROOT)[3:]}/bin/python -m x", "its log ends: …python -m x"),
        ("--port 44703 --k 7, http://127.0.0.1:5123/v1", "--port … --k 7, http://127.0.0.1:…/v1"),
        ("(EngineCore pid=19020) ERROR 11-21 23:02:59 [core.py:1174] x", "ERROR [core.py:1174] x"),
        ("POST /v1/completions is 2 / 3 of it", "POST /v1/completions is 2 / 3 of it"),
    ],
)
def test_what_is_of_here_and_now_alone_is_left_out(script: Any, said: str, left: str) -> None:
    assert script.impersonal(said) == left


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
