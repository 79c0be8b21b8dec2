"""The judge of quantised drafts on a GPU fires on each planted fault, and is silent on the healthy twin."""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import quantised_draft
from pair import mixes
from pair.mixes import CASES, QUICK, Case

PLAIN = Case("v1", eager=True, target="nvfp4")
REFERENCE = Case("v1", eager=True, target="nvfp4", draft="bfloat16")
WINDOWS = Case("v2", eager=True, target="nvfp4", windows=True)


def layer(dtype: str, *, draft: bool = False, window: int | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "backend": "TRITON_ATTN", "window": window, "draft": draft}


def view(case: Case) -> dict[str, Any]:
    """What a healthy engine says of itself."""
    target = {f"t{index}": layer(case.target) for index in range(3)}
    windows = {"w": layer("auto" if case.mixed else case.target, window=64)} if case.windows else {}
    drafts = {f"d{index}": layer(case.stored, draft=True) for index in range(2)}
    return {
        "kind": "view",
        "run": case.name,
        "layers": {**target, **windows, **drafts},
        "groups": [{"mode": "NVFP4", "block": 64, "page": 36864, "values": 36864}],
        "zeroed": {"calls": 3, "blocks": 9 if case.mixed else 0, "missed": 0, "touched": 0},
        "logits": {whose: {"rows": 30, "nan": 0} for whose in ("target", "drafter")},
        "drafts": {"first": [1.0, 2.0, 3.0], "second": [3.0, -1.0, 0.5]},
    }


def healthy() -> dict[str, dict[str, Any]]:
    return {case.name: view(case) for case in (PLAIN, REFERENCE, WINDOWS)}


def put(line: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split("/")
    for key in way:
        line = line[int(key)] if isinstance(line, list) else line[key]
    line[last] = value


@pytest.mark.parametrize("case", [PLAIN, REFERENCE, WINDOWS], ids=lambda case: case.name)
def test_a_healthy_engine_has_no_fault(case: Case) -> None:
    lines = healthy()
    assert mixes.faults(case, lines[case.name], lines) == []


@pytest.mark.parametrize(
    ("case", "path", "value", "said"),
    [
        (PLAIN, "layers/d0/dtype", "auto", "d0 stores auto instead of nvfp4"),
        (PLAIN, "layers/t1/dtype", "fp8", "t1 stores fp8 instead of nvfp4"),
        (PLAIN, "layers/d1/backend", "FLASHINFER", "d1 is read by FLASHINFER"),
        (PLAIN, "layers/t0/draft", True, "not two drafter layers"),
        (REFERENCE, "layers/d0/dtype", "nvfp4", "d0 stores nvfp4 instead of bfloat16"),
        (WINDOWS, "layers/w/dtype", "nvfp4", "w stores nvfp4 instead of auto"),
        (WINDOWS, "groups/0/page", 65536, "take 65536"),
        (PLAIN, "logits/target/nan", 1, "1 of 30 rows of the target's logits are NaN"),
        (PLAIN, "logits/drafter/nan", 2, "2 of 30 rows of the drafter's logits are NaN"),
        (PLAIN, "logits/drafter/rows", 0, "the drafter computed no logits"),
        (PLAIN, "zeroed/blocks", 4, "4 blocks were zeroed without need"),
        (WINDOWS, "zeroed/blocks", 0, "no block was zeroed"),
        (WINDOWS, "zeroed/missed", 1, "1 new blocks stay stale"),
        (WINDOWS, "zeroed/touched", 1, "1 others were touched"),
        (PLAIN, "drafts/first", [3.0, -1.0, 0.5], "have a cosine of"),
        (PLAIN, "drafts/first", [math.nan, 2.0, 3.0], "cosine of nan"),
        (PLAIN, "drafts/second", [1.0, 2.0, 3.0], "another prompt are as close"),
    ],
)
def test_each_fault_is_found(case: Case, path: str, value: object, said: str) -> None:
    lines = healthy()
    put(lines[case.name], path, value)
    found = mixes.faults(case, lines[case.name], lines)
    assert [fault for fault in found if said in fault], found


def test_drafts_in_graphs_of_v2_need_not_be_seen() -> None:
    case = Case("v2", eager=False, target="nvfp4")
    line = view(case)
    line["logits"]["drafter"]["rows"] = 0
    assert mixes.faults(case, line, {}) == []


def test_every_quick_case_is_a_case_and_can_be_judged() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) == 40
    assert set(QUICK) < set(CASES)
    assert {case.judges for case in QUICK} - {None} <= set(QUICK)
    assert {case.judges for case in CASES} - {None} <= set(CASES)


def test_the_target_with_windows_keeps_two_drafter_layers_in_one_group(tmp_path: Path) -> None:
    pairs = mixes.write_pairs(tmp_path)
    target, drafter = (json.loads((folder / "config.json").read_text()) for folder in pairs[True])
    full = target["layer_types"].count("full_attention") + drafter["num_hidden_layers"]
    assert target["layer_types"].count("sliding_attention") == full
    assert len(target["layer_types"]) == target["num_hidden_layers"]


def judged(
    tmp_path: Path, case: Case, lines: list[dict[str, Any]], log: str, status: int | None
) -> list[str]:
    (tmp_path / f"{case.name}.log").write_text(log)
    return quantised_draft.judge(case, status, lines, argparse.Namespace(out=tmp_path, levels=[3]))


def test_an_engine_is_judged_by_its_lines_log_and_end(tmp_path: Path) -> None:
    case = Case("v1", eager=False, target="fp8")
    line = view(case)
    whole = [
        {"kind": "boot", "run": case.name, "canary": True},
        {"kind": "level", "run": case.name, "c": 3, "faults": []},
        line,
        {"kind": "end", "run": case.name},
    ]
    assert judged(tmp_path, case, whole, "INFO all is well", 0) == []
    assert judged(tmp_path, case, whole, "CUDA error: an illegal memory access", 0)
    assert judged(tmp_path, case, whole, "", 1)
    assert judged(tmp_path, case, whole, "", None)
    for index in range(len(whole)):
        assert judged(tmp_path, case, whole[:index] + whole[index + 1 :], "", 0), whole[index]
    faulty = copy.deepcopy(whole)
    faulty[1]["faults"] = ["request 3-0-0 did not finish"]
    assert judged(tmp_path, case, faulty, "", 0) == ["c=3: request 3-0-0 did not finish"]
