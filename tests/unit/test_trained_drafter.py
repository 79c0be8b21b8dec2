"""Acceptance of trained drafters is judged by requests, and cells ask engines for what their names say."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import trained_drafter
from trained import judge
from trained.cells import REFERENCE, Cell


def drafters(folder: Path) -> Path:
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    for name, extra in (("full", {}), ("window", windows)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"num_hidden_layers": 2, **extra}))
    return folder


def wave(steps: list[list[int]], *, cached: int = 0, tokens: int = 30) -> dict[str, Any]:
    rows = [
        {"tokens": list(range(tokens)), "steps": [1, *one, 1], "cached": cached,
         "near": [{str(token): 0.0, "99": 0.1} for token in range(tokens)]}
        for one in steps
    ]  # fmt: skip
    return {"rows": rows, "counters": {"accepted": sum(step - 1 for one in steps for step in one)}}


GOOD, BAD = [[3, 4, 3, 4]] * 8, [[1, 1, 2, 1]] * 8
HEALTHY = {"cold": wave(GOOD), "warm": wave(GOOD, cached=64), "beside": wave(GOOD)}


def line(**waves: Any) -> dict[str, Any]:
    layer = {"backend": "TRITON_ATTN", "cache": "auto", "window": None}
    layers = {name: {**layer, "draft": name != "target"} for name in ("target", "one", "two")}
    seen = {"stage": "end", "view": {"layers": layers}, "waves": waves}
    return copy.deepcopy({"status": 0, "seconds": 1.0, "tail": "", "seen": seen})


RIGHT = line(cold=wave(GOOD))
RIGHT["seen"]["view"]["layers"] = {"target": RIGHT["seen"]["view"]["layers"]["target"]}


def found(cell: Cell, record: dict[str, Any], *, foreseen: Any = GOOD, windows: Any = (None, None)) -> Any:
    return judge.faults(cell, record, RIGHT, list(windows), foreseen)


def test_a_healthy_cell_has_no_faults() -> None:
    assert found(Cell("full"), line(**HEALTHY)) == []


@pytest.mark.parametrize("name", ["warm", "beside"])
def test_acceptance_that_falls_behind_the_cold_wave_is_found_but_not_held_against_upstream(name: str) -> None:
    record = line(**(HEALTHY | {name: wave(BAD, cached=64)}))
    (fault,) = found(Cell("full"), record)
    assert fault.startswith(f"{name}: -2.25")
    assert found(Cell("full", tree="stock"), record) == []


def test_acceptance_that_is_not_the_foreseen_one_is_found() -> None:
    (fault,) = found(Cell("full"), line(**HEALTHY), foreseen=BAD)
    assert fault.startswith("cold beside torch: +2.25")
    assert found(Cell("full"), line(**HEALTHY), foreseen=None) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 64}, "windows [64, None], not [None, None]"),
        ({"backend": "FLASH_ATTN"}, "layers attend by FLASH_ATTN"),
        ({"cache": "fp8"}, "caches ['fp8'] of the drafter, not bf16"),
    ],
)
def test_a_drafter_that_is_not_served_as_it_was_asked_for_is_found(change: Any, words: str) -> None:
    record = line(**HEALTHY)
    record["seen"]["view"]["layers"]["one"] |= change
    assert found(Cell("full"), record) == [words]


def test_counters_answers_and_the_prefix_cache_are_looked_at() -> None:
    record = line(**HEALTHY)
    record["seen"]["waves"]["cold"]["counters"]["accepted"] += 1000
    record["seen"]["waves"]["warm"]["rows"][3]["cached"] = 0
    other = record["seen"]["waves"]["beside"]["rows"][0]
    other["tokens"][4] = 98
    wrong = found(Cell("full"), record)
    assert [text.split(":")[0] for text in wrong] == ["beside", "cold", "warm"]
    other["tokens"][4] = 99  # near
    assert not any(text.startswith("beside") for text in found(Cell("full"), record))
    for row in record["seen"]["waves"]["beside"]["rows"]:
        row["tokens"][1] = 99
    assert "beside: 8 of 16 compared tokens are others" in found(Cell("full"), record)


def test_answers_over_a_rounded_format_are_not_compared() -> None:
    record = line(**HEALTHY)
    for layer in record["seen"]["view"]["layers"].values():
        layer["cache"] = "nvfp4"
    for row in record["seen"]["waves"]["cold"]["rows"]:
        row["tokens"][0] = 98
    assert found(Cell("full", "nvfp4"), record) == []


def test_a_cell_without_its_end_or_its_reference_is_no_pass() -> None:
    record = line(**HEALTHY)
    assert judge.faults(Cell("full"), record, None, [None, None], None) == [
        "there is no reference to compare answers with"
    ]
    record["seen"]["stage"] = "cold"
    (fault,) = found(Cell("full"), record)
    assert fault.startswith("crashed")
    assert found(Cell("full"), line()) == ["no wave was answered"]


def test_intervals_are_over_requests_and_differences_over_the_same_prompts() -> None:
    low, high = judge.bootstrap([[1] * 50, [8] * 50, [4] * 50, [2] * 50], judge.mean)
    assert low < 2.5  # four requests, however many steps they made
    assert high > 5.0
    mixed = [[2] * 9, [6] * 9, [3] * 9, [7] * 9]
    apart = judge.difference(mixed, [[one - 1 for one in row] for row in mixed])
    assert (apart.low, apart.none) == (pytest.approx(1.0), False)
    assert judge.difference(mixed, mixed).none
    assert judge.steps_of({"steps": [1, 4, 5, 2]}) == [4, 5]  # neither the prefill's nor the last


def put(out: Path, cell: Cell, record: dict[str, Any]) -> None:
    (out / "cells").mkdir(exist_ok=True)
    (out / "cells" / f"{cell.name}.json").write_text(json.dumps(record))


def test_the_report_names_faults_and_compares_trees(tmp_path, capsys):
    drafters(tmp_path)
    args = trained_drafter.arguments(["report", "--out", str(tmp_path), "--drafter", str(tmp_path)])
    assert trained_drafter.report(args) == 1
    put(tmp_path, REFERENCE, RIGHT)
    put(tmp_path, Cell("full"), line(**HEALTHY))
    put(tmp_path, Cell("full", tree="stock"), line(**(HEALTHY | {"beside": wave(BAD)})))
    (tmp_path / "foreseen.json").write_text(json.dumps({"full-bf16-patched": GOOD}))
    assert trained_drafter.report(args) == 0
    rows = (tmp_path / "table.md").read_text()
    assert (
        "| full-bf16-patched | cold | 8 · 32 | 100.0 | 3.50 [3.50, 3.50] | +0.00 [+0.00, +0.00] | 3.50 |"
        in rows
    )
    assert (
        "| full-bf16-patched | beside | 8 · 32 | 100.0 | 3.50 [3.50, 3.50] | +2.25 [+2.25, +2.25] |" in rows
    )
    put(tmp_path, Cell("full"), line(**(HEALTHY | {"warm": wave(BAD, cached=64)})))
    assert trained_drafter.report(args) == 1
    assert "FAIL full-bf16-patched: warm" in capsys.readouterr().out
