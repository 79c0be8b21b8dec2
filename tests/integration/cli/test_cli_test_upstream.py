"""``sparkwright carry prove --upstream-tests``: what it records, when it runs, and what it refuses."""

import json
from typing import Any

import pytest
from kit import seed_test_packages
from tiny_release import ALIGNED, CLAMPED, make_tiny
from world import ALIGN_PROBE, CLAMP_PROBE, World

from sparkwright.base.errors import CarryConflictError, ProofError, ToolError
from sparkwright.native.host import require_isolation
from sparkwright.probe.upstream_tests import UpstreamGate

TESTS = """\
from vllm.clamp import clamp


def test_small():
    assert clamp(3) == 3


def test_large():
    assert clamp(99) == {large}, "99 was changed"
"""


def offer_tests(world: World, *, large: int) -> None:
    """Give the release a test of what the carry ``clamp`` changes."""
    world.pin(make_tiny(changes=(("tests/test_clamp.py", TESTS.format(large=large)),)))
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=CLAMP_PROBE, listed=False)
    world.carry("align", {"vllm/align.py": ALIGNED}, probe=ALIGN_PROBE, listed=False)
    seed_test_packages(world.store)


@pytest.fixture(autouse=True)
def network() -> None:
    try:
        require_isolation()
    except ToolError as error:
        pytest.skip(str(error))


def test_a_regression_is_an_error_and_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_tests(world, large=99)
    world.good("carry", "prove", "clamp")  # whose probe sees nothing of it
    ran = world.call("carry", "prove", "--upstream-tests")
    assert ran.status == ProofError.exit_code
    assert "1 in tests/test_clamp.py" in ran.err
    assert "test_large: AssertionError: 99 was changed" in " ".join(ran.out.split())
    record = json.loads((world.root / "patchsets" / "upstream-tests" / "spark.json").read_bytes())
    assert record["regressions"] == {"tests/test_clamp.py::test_large": "AssertionError: 99 was changed"}
    assert (record["files"], record["passed"], record["version"]) == (1, 1, "1.2.0")

    # What differed may have done so because the machine was busy: that alone is run again.
    alone, run = [], UpstreamGate._run

    def count(*words: Any, **how: Any) -> Any:
        alone.append(how["alone"])
        return run(*words, **how)

    monkeypatch.setattr(UpstreamGate, "_run", count)
    assert world.call("carry", "prove", "--upstream-tests").status == ProofError.exit_code
    assert alone == [True, True]


def test_a_healthy_carry_is_silent_and_a_change_is_run_again(world: World) -> None:
    offer_tests(world, large=10)  # fails on the pristine tree, and so says nothing
    ran = world.good("carry", "prove", "--upstream-tests", "--json")
    assert ran.json["regressions"] == {}
    assert ran.json["unjudged"] == {"fails here": {"tests/test_clamp.py": 1}}
    path = world.root / "patchsets" / "upstream-tests" / "spark.json"
    before = path.read_bytes()
    assert world.good("carry", "prove", "--upstream-tests", "tests/test_clamp.py").out.endswith(
        "trees of 1.2.0\n"
    )
    assert path.read_bytes() == before
    world.list_carries(["align"])
    assert world.good("carry", "prove", "--upstream-tests", "--json").json["files"] == 0
    assert path.read_bytes() != before


def test_a_tree_without_one_of_the_carries_is_not_judged(world: World) -> None:
    offer_tests(world, large=10)
    world.carry("other", {"vllm/clamp.py": CLAMPED.replace("LIMIT)", "11)")}, probe=CLAMP_PROBE)
    ran = world.call("carry", "prove", "--upstream-tests")
    assert ran.status == CarryConflictError.exit_code
    assert "other: conflict" in ran.err
    assert not (world.root / "patchsets" / "upstream-tests").exists()
