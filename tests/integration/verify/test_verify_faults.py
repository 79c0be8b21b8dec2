"""The fault matrix: everything that can be switched on in the simulator is noticed by the check that should,
with the right verdict and a cause that names it; a healthy server passes every check, whatever it draws.

The whole suite runs each time: simulator in its own process, client, counters, journal, checks.
"""

import re

import pytest
from fault_matrix import CASES, SMALL, Case, Outcome, run_cases, seeds

from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks import ALL
from sparkwright.verify.simulator.faults import FAULTS

pytestmark = pytest.mark.slow

# `make test-verify` runs all cases, with twenty healthy servers. Here it is one case for each check, without
# the checks that take most of the time. What other verdicts there are, tests in figures show; those of
# test_verify_soak.py, test_verify_lossless.py and test_verify_compare.py plant the faults of their checks.
LONGEST = {"soak", "lossless", "compare"}
SWEPT = set(SMALL.checks) - LONGEST
HEALTHY = [case for case in seeds(1, without=LONGEST) if case.check not in LONGEST | SWEPT]
_FAULTS_FIRST = sorted(CASES, key=lambda case: case.verdict is Verdict.PASS)
FIRST = {case.check: case for case in reversed(_FAULTS_FIRST) if case.check not in LONGEST}.values()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcomes of the cases that are tested; one worker has this whole file."""
    items = [item.name for item in request.session.items if item.path == request.path]
    tested = {name.partition("[")[2].removesuffix("]") for name in items}
    cases = [case for case in (*CASES, *HEALTHY) if case.name in tested]
    return run_cases(cases, tmp_path_factory.mktemp("faults"))


def test_every_fault_has_a_case() -> None:
    cases: dict[str, list[Case]] = {}
    for case in CASES:
        cases.setdefault(case.fault.partition("=")[0], []).append(case)
    assert cases.keys() == FAULTS.keys()
    for name, fault in FAULTS.items():
        detected = {case.check for case in cases[name] if case.verdict is not Verdict.PASS or case.warns}
        assert detected >= set(fault.noticed_by) - {"server"}, name
        assert fault.noticed_by or not detected, name


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case in FIRST else pytest.mark.walk) for case in CASES],
)
def test_a_fault_is_noticed_and_named(case: Case, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[case.name]
    assert outcome.verdict is case.verdict, outcome.told
    assert any(re.search(case.warns, warning) for warning in outcome.warnings) or not case.warns
    if case.verdict is not Verdict.PASS:
        assert any(re.search(case.says, cause) for cause in outcome.causes), outcome.told


def test_every_check_has_a_fault_and_a_healthy_run() -> None:
    assert {case.check for case in CASES if case.verdict is not Verdict.PASS} >= set(ALL)
    alone = {case.check for case in HEALTHY if case.check}
    assert {*alone, *SWEPT, *LONGEST} == set(ALL)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_server_passes_every_check(case: Case, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[case.name]
    assert outcome.verdict is Verdict.PASS, outcome.told
    assert outcome.checks == ({case.check} if case.check else SWEPT)
    assert outcome.findings > (0 if case.check else 20)
    expected = [one.warns for one in CASES if one.warns and one.check == case.check]
    assert not [said for said in outcome.warnings if any(re.search(one, said) for one in expected)]
