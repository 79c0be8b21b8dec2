"""A whole native wheel: what is in it, and what a change costs afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from edits import edit_patch
from native import CARRY, KERNEL, wheel

from sparkwright.pipeline.checkout import open_checkout

ARCH = "sm_121a"
CARD_ONLY = {"vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"}


@pytest.fixture(scope="session")
def audited(root, made):
    command = [
        sys.executable,
        "-m",
        "sparkwright",
        "audit",
        "--json",
        "--root",
        str(root),
        made.wheel["path"],
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)[0]


def test_the_audit_passes_every_check(audited):
    status, report = audited
    assert {check["name"]: check["detail"] for check in report["checks"] if check["verdict"] != "pass"} == {}
    assert status == 0


def test_every_unit_that_is_compiled_for_the_card_has_its_code_in_the_wheel(audited):
    """The audit holds the counts against the commands; this holds that they are not nought."""
    binaries = {one["member"]: one for one in audited[1]["binaries"]}
    for member in CARD_ONLY:
        cubins = binaries[member]["cubins"]
        assert cubins[ARCH] > 25
        assert set(cubins) <= {ARCH, "sm_89"}


def test_the_wheel_is_a_good_deal_smaller_than_upstreams(made):
    assert made.wheel["size"] < 200_000_000


def test_nothing_is_compiled_or_made_twice(root, made):
    again = wheel(root)
    assert again.units == ()
    assert again.wheel["sha256"] == made.wheel["sha256"]


def test_a_python_change_starts_no_compiler(root, made):
    edit_patch(root, CARRY)
    changed = wheel(root, "--allow-unproved", CARRY)
    assert changed.units == ()
    assert changed.wheel["sha256"] != made.wheel["sha256"]
    assert changed.wheel["compiled"] == made.wheel["compiled"]


def test_a_changed_kernel_compiles_one_unit(root, made):
    edit_patch(root, CARRY, KERNEL, "//")
    changed = wheel(root, "--allow-unproved", CARRY)
    assert [Path(unit).name for unit in changed.units] == [Path(KERNEL).name]
    mixed = set(made.wheel["compiled"]) != set(open_checkout(root).lock.native.extensions)
    assert ("error" in changed.wheel) == mixed, "upstream's binaries are not of that kernel"
