"""How launches of Triton kernels that were compiled for a GB10 are judged, shown and kept."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import load_file
from msgspec.structs import replace

from sparkwright.nightly import building
from sparkwright.probe.launches import LIMIT, KernelLaunch, KernelReport, KernelSurvey, _compiled

PAGE = load_file(Path(__file__).parents[2] / "scripts" / "triton_kernels.py")

READ = KernelLaunch(
    kernel="vllm.ops.read", origin="decode", constants={}, warps=4, stages=2, tuning=0, shared=LIMIT
)


def report(*launches: KernelLaunch, **changes: object) -> KernelReport:
    functions = {"vllm.ops.read": ("vllm/ops.py", ""), "vllm.ops.helper": ("vllm/ops.py", "")}
    functions |= {"vllm.amd.read": ("vllm/amd.py", "for AMD cards"), "vllm.ops.other": ("vllm/ops.py", "")}
    found = KernelReport("3.7.1", functions, {}, 0, {str(number): one for number, one in enumerate(launches)})
    return replace(found, **changes)


BIG = replace(READ, shared=LIMIT + 1)


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ([BIG], "101377 bytes of shared memory, more than 101376 (decode)"),
        ([READ, replace(READ, refused="CompilationError: no")], "CompilationError: no (decode)"),
        ([replace(BIG, tuning=1), replace(BIG, tuning=1, shared=200_000)], "no configuration fits"),
        ([replace(BIG, tuning=1), replace(READ, tuning=2)], "no configuration fits"),
    ],
)
def test_what_a_gb10_cannot_launch_is_a_fault(launches, words):
    (fault,) = report(*launches).faults()
    assert words in fault


@pytest.mark.parametrize(
    "launches",
    [
        [READ],
        [replace(BIG, tuning=1), replace(READ, tuning=1)],  # tuning passes over the first
        [replace(BIG, origin="upstream's test_read.py")],  # a shape of no recipe
    ],
)
def test_what_fits_is_none(launches):
    assert report(*launches).faults() == []


def test_what_could_not_be_asked_for_is_a_fault():
    assert report(READ, failed={"prefill": "TypeError: x"}).faults() == [
        "prefill could not be asked for: TypeError: x"
    ]


def test_every_function_is_compiled_or_named_with_the_reason():
    found = report(replace(READ, helpers=("vllm.ops.helper", "elsewhere.helper")))
    assert found.compiled() == {"vllm.ops.read", "vllm.ops.helper"}
    assert found.left() == {
        "for AMD cards": ["vllm.amd.read"],
        "no launch of it is known": ["vllm.ops.other"],
    }
    refused = report(replace(READ, refused="no"))
    assert "vllm.ops.read" in refused.left()["refused by the compiler"]
    page = PAGE.page_section("Series", found)
    assert "**2 of 4 functions compiled**" in page
    assert "Not compiled: for AMD cards (1); no launch of it is known (1)." in page
    assert "* refused: `ops.read`" in PAGE.page_section("Series", refused)


def test_results_of_a_child_that_was_killed_are_kept(tmp_path):
    lines = tmp_path / "report.jsonl"
    assert _compiled(lines) == {}
    good = json.dumps(["one", {"shared": 1}])
    lines.write_text(f'{good}\n{json.dumps(["two", {"refused": "no"}])}\n["three", {{"sha', encoding="utf-8")
    assert _compiled(lines) == {"one": {"shared": 1}}


def test_a_night_names_kernels_that_do_not_fit(monkeypatch):
    faults = {f"case {number}": "no" for number in range(7)}
    job = SimpleNamespace(store=None, repository=None, options=SimpleNamespace(offline=False))
    target = SimpleNamespace(version="0.33.0")
    monkeypatch.setattr(KernelSurvey, "survey", lambda *_: report(READ, failed=faults))
    found = building.survey_kernels(job, target, "tree")
    assert found.status == "failed"
    assert found.reason.endswith("; and 2 more")
    monkeypatch.setattr(KernelSurvey, "survey", lambda *_: report(READ))
    found = building.survey_kernels(job, target, "tree")
    assert (found.status, found.reason) == ("passed", "1 launches, 1 of 4 functions")
