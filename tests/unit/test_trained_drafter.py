"""Acceptance of trained drafters is judged by requests, and cells ask engines for what their names say."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import trained_drafter
from trained import cells, judge
from trained.cells import CELLS, Cell, Setting


def setting(folder: Path) -> Setting:
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    for name, extra in (
        ("full", {}),
        ("window", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"num_hidden_layers": 2, **extra}))
    return Setting(folder, folder, "cuda", [4, 2], 16, [[5, 6, 7]] * 4)


def rows(steps: list[list[int]], *, cached: int = 0, tokens: int = 30) -> list[dict[str, Any]]:
    return [
        {"tokens": list(range(tokens)), "steps": [1, *one, 1], "cached": cached,
         "near": [{str(token): 0.0, "99": 0.1} for token in range(tokens)]}
        for one in steps
    ]  # fmt: skip


def wave(steps: list[list[int]], *, cached: int = 0) -> dict[str, Any]:
    accepted = sum(step - 1 for one in steps for step in one)
    return {"rows": rows(steps, cached=cached), "counters": {"accepted": accepted}, "seconds": 1.0}


GOOD, BAD = [[3, 4, 3, 4]] * 8, [[1, 1, 2, 1]] * 8


def line(windows: list[int | None], **waves: Any) -> dict[str, Any]:
    layer = {"backend": "TRITON_ATTN", "cache": "auto"}
    layers = [{**layer, "name": "t", "draft": False, "window": None}]
    layers += [{**layer, "name": f"d{at}", "draft": True, "window": one} for at, one in enumerate(windows)]
    seen = {"stage": "end", "view": {"layers": layers}, "waves": waves}
    return copy.deepcopy({"cell": "x", "status": 0, "seconds": 1.0, "tail": "", "seen": seen})


REFERENCE = line([], **{"8 cold": wave(GOOD)})
HEALTHY = {"8 cold": wave(GOOD), "8 warm": wave(GOOD, cached=64), "beside": wave(GOOD)}


def found(cell: Cell, record: dict[str, Any], **more: Any) -> list[str]:
    told = {"windows": [None, None], "foreseen": {"8 cold": GOOD}, **more}
    return judge.faults(cell, record, REFERENCE, told["windows"], told["foreseen"])


def test_a_healthy_cell_has_no_faults() -> None:
    assert found(Cell("full"), line([None, None], **HEALTHY)) == []


@pytest.mark.parametrize("name", ["8 warm", "beside"])
def test_acceptance_that_falls_behind_the_cold_wave_is_found_but_not_held_against_upstream(name: str) -> None:
    record = line([None, None], **(HEALTHY | {name: wave(BAD, cached=64)}))
    (fault,) = found(Cell("full"), record)
    assert fault.startswith(f"{name}: -2.25")
    assert found(Cell("full", tree="stock"), record) == []


def test_acceptance_that_is_not_the_foreseen_one_is_found() -> None:
    (fault,) = found(Cell("full"), line([None, None], **HEALTHY), foreseen={"8 cold": BAD})
    assert "beside torch" in fault


def test_windows_that_are_not_those_of_the_training_are_found() -> None:
    record = line([None, None], **HEALTHY)
    assert found(Cell("window"), record, windows=[64, None]) == ["windows [None, None], not [64, None]"]


def test_counters_answers_and_the_prefix_cache_are_looked_at() -> None:
    record = line([None, None], **HEALTHY)
    record["seen"]["waves"]["8 cold"]["counters"]["accepted"] += 1000
    record["seen"]["waves"]["8 warm"]["rows"][3]["cached"] = 0
    other = rows(GOOD)
    other[0]["tokens"][4] = 98
    record["seen"]["waves"]["beside"]["rows"] = other
    wrong = found(Cell("full"), record)
    assert [text.split(":")[0] for text in wrong] == ["beside", "8 cold", "8 warm"]
    other[0]["tokens"][4] = 99  # near
    assert not any(text.startswith("beside") for text in found(Cell("full"), record))


def test_a_cold_wave_may_have_from_the_cache_what_an_earlier_prompt_begins_with_and_no_more() -> None:
    begin = list(range(35))
    prompts = [[*begin, 1, 2], [7, 8, 9], [*begin, 3, 4], [*begin[:20], 5]]
    assert judge.shared(prompts) == [0, 0, 32, 16]
    assert judge.shared([begin, begin]) == [0, 32]
    record = line([None, None], **(HEALTHY | {"4 cold": wave(GOOD[:4])}))
    cached = record["seen"]["waves"]["4 cold"]["rows"]
    for row, tokens in zip(cached, (0, 0, 32, 16), strict=True):
        row["cached"] = tokens
    given = (Cell("full"), record, REFERENCE, [None, None], {"8 cold": GOOD, "4 cold": GOOD[:4]})
    several = prompts + [[one] for one in range(4)]
    assert judge.faults(*given, several) == []
    for row, tokens in ((0, 16), (1, 16), (2, 48), (3, 32)):
        healthy, cached[row]["cached"] = cached[row]["cached"], tokens
        (fault,) = judge.faults(*given, several)
        assert fault.startswith("4 cold: 1 prompts came from the prefix cache")
        cached[row]["cached"] = healthy
    assert len(judge.faults(*given)) == 1, "without prompts nothing is allowed"


def rounded(**waves: Any) -> dict[str, Any]:
    record = line([None, None], **(waves or HEALTHY))
    for layer in record["seen"]["view"]["layers"]:
        layer["cache"] = "nvfp4"
    return record


@pytest.mark.parametrize(("others", "far", "sound"), [(1, 1, True), (20, 4, True), (20, 5, False)])
def test_a_few_answers_of_a_rounded_format_may_part_far_off(others: int, far: int, *, sound: bool) -> None:
    # Two waves of an engine over NVFP4, without any drafter, part so at 4 of 60 answers.
    steps = [[3, 4, 3, 4]] * 20
    right, record = line([], **{"20 cold": wave(steps)}), rounded(**{"20 cold": wave(steps)})
    told = zip(
        right["seen"]["waves"]["20 cold"]["rows"], record["seen"]["waves"]["20 cold"]["rows"], strict=True
    )
    for at, (known, row) in enumerate(list(told)[:others]):
        row["tokens"][20] = 98
        if at < far - 1:
            known["near"][20]["98"] = 1.75
        elif at >= far:  # the one between was not kept at all
            known["near"][20]["98"] = 0.75
    faults = judge.faults(Cell("full", "nvfp4"), record, right, [None, None], None)
    wanted = f"{far} of {others} other tokens are more than 1.0 nats below the reference's"
    assert faults == ([] if sound else [wanted])
    assert judge.far_off(record, right, 1.0) == far
    healthy = Cell("full"), record, right, [None, None], None
    assert any("nats below the reference's, allowed 0.25" in one for one in judge.faults(*healthy)), (
        "16 bits may not"
    )


def test_how_a_reference_differs_from_itself_is_counted_each_way() -> None:
    right = line([], **{"8 cold": wave(GOOD), "8 warm": wave(GOOD, cached=64)})
    warm, cold = (right["seen"]["waves"][one]["rows"] for one in ("8 warm", "8 cold"))
    warm[3]["tokens"][9] = 97
    warm[3]["near"][9] = {"9": 2.0, "97": 0.0}
    cold[3]["near"][9]["97"] = 0.5
    assert judge.own_spread(right) == judge.Compared(2 * (7 * 30 + 10), 2, 2.0)


def test_acceptance_over_a_rounded_format_is_compared_over_the_same_answers() -> None:
    record = rounded(**(HEALTHY | {"8 warm": wave(BAD, cached=64)}))
    given = Cell("full", "nvfp4"), record, REFERENCE, [None, None], None
    (fault,) = judge.faults(*given)
    assert fault.startswith("8 warm: -2.25")
    for row in record["seen"]["waves"]["8 warm"]["rows"]:
        row["tokens"][-1] = 99
    assert judge.faults(*given) == [], "other texts"
    sixteen = line([None, None], **record["seen"]["waves"])
    assert "8 warm: -2.25" in " ".join(found(Cell("full"), sixteen)), "16 bits give the same answers"


def test_one_early_other_token_of_four_answers_is_no_fault() -> None:
    record = line([None, None], **{"8 cold": wave(GOOD), "1 cold": wave(GOOD[:4])})
    for row, place in zip(record["seen"]["waves"]["1 cold"]["rows"], (29, 3, 29, 0), strict=True):
        row["tokens"][place] = 99
    told = {"8 cold": GOOD, "1 cold": GOOD[:4]}
    assert found(Cell("full"), record, foreseen=told) == [], "4 of 65"
    for row in record["seen"]["waves"]["8 cold"]["rows"]:
        row["tokens"][1] = 99
    assert found(Cell("full"), record, foreseen=told) == ["8 cold: 8 of 16 compared tokens are others"]


def test_other_answers_of_a_rounded_format_are_counted_over_all_waves() -> None:
    record = rounded()
    rows_ = record["seen"]["waves"]["beside"]["rows"]
    for row in rows_:
        row["tokens"][0] = 99
    given = (Cell("full", "nvfp4"), record, REFERENCE, [None, None], None)
    assert judge.faults(*given) == [], "8 of 488"
    assert "| full-nvfp4-patched | beside | 8 | 8 | 0.10 |" in judge.answer_table([given[:3]])
    for name in ("8 cold", "8 warm"):
        for row in record["seen"]["waves"][name]["rows"]:
            row["tokens"][1] = 99
    assert judge.faults(*given) == ["all waves: 24 of 40 compared tokens are others"]


def test_a_cell_without_its_end_or_its_reference_is_no_pass() -> None:
    record = line([None, None], **HEALTHY)
    assert judge.faults(Cell("full"), record, None, [None, None], None) == [
        "there is no reference to compare answers with"
    ]
    record["seen"]["stage"] = "8 cold"
    (fault,) = found(Cell("full"), record)
    assert fault.startswith("crashed")
    assert found(Cell("full"), line([None, None])) == ["no wave was answered"]


def test_intervals_are_over_requests_and_hold_the_mean() -> None:
    one = judge.acceptance([[1] * 50, [8] * 50, [4] * 50, [2] * 50])
    assert one.tokens == pytest.approx(3.75)
    assert one.places[0] == pytest.approx(0.75)
    assert one.places[6] == pytest.approx(0.25)
    assert one.interval[0] < 2.5  # four requests, however many steps they made
    assert one.interval[1] > 5.0
    assert judge.acceptance([[4] * 50] * 4).interval == (4.0, 4.0)
    assert judge.acceptance([[], []]).requests == 0


def test_differences_are_over_the_same_prompts() -> None:
    mixed = [[2] * 9, [6] * 9, [3] * 9, [7] * 9]
    assert judge.difference(mixed, [[one - 1 for one in row] for row in mixed]).low == pytest.approx(1.0)
    assert not judge.difference(mixed, [[one - 1 for one in row] for row in mixed]).none
    assert judge.difference(mixed, mixed).none


def test_the_first_and_the_last_step_have_no_place_in_acceptance() -> None:
    assert judge.steps_of({"steps": [1, 4, 5, 2]}) == [4, 5]


def test_each_cell_has_its_reference_and_one_name() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS) <= 14
    assert all(cells.reference(cell) in CELLS for cell in CELLS)
    places = {cell: at for at, cell in enumerate(CELLS)}
    assert places[Cell("none")] == 0


def test_engines_are_told_what_the_cell_says(tmp_path: Path) -> None:
    given = setting(tmp_path)
    told = cells.specification(Cell("window", "nvfp4", "bf16"), given, tmp_path / "seen.json")
    assert told["engine"]["kv_cache_dtype"] == "nvfp4"
    assert told["engine"]["speculative_config"] == {
        "num_speculative_tokens": 7, "method": "dflash", "model": str(tmp_path / "window"),
        "attention_backend": "TRITON_ATTN", "kv_cache_dtype": "bfloat16",
    }  # fmt: skip
    assert (told["ends"], told["near"], told["beside"]) == ([2], False, False)
    assert "speculative_config" not in cells.specification(Cell("none"), given, tmp_path / "s")["engine"]
    assert cells.expected_windows(Cell("window"), tmp_path) == [64, None]
    assert cells.expected_windows(Cell("full"), tmp_path) == [None, None]
    assert cells.expected_windows(Cell("ngram"), tmp_path) == []


def test_cells_on_record_are_not_run_again(tmp_path: Path) -> None:
    given = ["serve", "--model", "m", "--drafter", "d", "--out", str(tmp_path)]
    alone = trained_drafter.arguments(given)
    assert trained_drafter.planned(alone) == [cell for cell in CELLS if cell.tree == "patched"]
    both = trained_drafter.arguments([*given, "--tree", "stock=/s", "--retry"])
    trained_drafter.append(tmp_path, "cells.jsonl", line([], **HEALTHY) | {"cell": "none-bf16-patched"})
    trained_drafter.append(
        tmp_path, "cells.jsonl", {"cell": "full-bf16-patched", "status": None, "tail": "", "seen": None}
    )
    assert trained_drafter.planned(both)[0] == Cell("full")
    env = trained_drafter.variables(Cell("full", tree="stock"), both, tmp_path)
    assert env["PYTHONPATH"].startswith("/s:")
    assert not trained_drafter.variables(Cell("full"), both, tmp_path)["PYTHONPATH"].startswith("/s:")
    assert trained_drafter.planned(trained_drafter.arguments([*given, "--tree", "stock=/s"]))[0] == Cell(
        "window"
    )


def test_the_report_names_faults_and_writes_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting(tmp_path)
    args = trained_drafter.arguments(["report", "--out", str(tmp_path), "--drafter", str(tmp_path)])
    assert trained_drafter.report(args) == 1
    trained_drafter.append(tmp_path, "cells.jsonl", REFERENCE | {"cell": "none-bf16-patched"})
    trained_drafter.append(
        tmp_path, "cells.jsonl", line([None, None], **HEALTHY) | {"cell": "full-bf16-patched"}
    )
    assert trained_drafter.report(args) == 0
    assert (
        "| full-bf16-patched | 8 warm | 8 · 32 | 100.0 [100.0, 100.0] |"
        in (tmp_path / "table.md").read_text()
    )
    broken = HEALTHY | {"8 warm": wave(BAD, cached=64)}
    trained_drafter.append(
        tmp_path, "cells.jsonl", line([None, None], **broken) | {"cell": "full-bf16-patched"}
    )
    assert trained_drafter.report(args) == 1
    assert "FAIL full-bf16-patched: 8 warm" in capsys.readouterr().out


def test_the_chart_has_both_trees_and_torch_where_it_computed_them(tmp_path: Path) -> None:
    setting(tmp_path)
    args = ["report", "--out", str(tmp_path), "--drafter", str(tmp_path), "--chart", str(tmp_path / "c.svg")]
    worse = HEALTHY | {"beside": wave(BAD)}
    for name, waves in (("none-bf16-patched", HEALTHY), ("full-bf16-patched", HEALTHY)):
        trained_drafter.append(tmp_path, "cells.jsonl", line([None, None], **waves) | {"cell": name})
    trained_drafter.report(trained_drafter.arguments(args))
    assert (tmp_path / "c.svg").read_text() == "", "nothing to compare with"
    trained_drafter.append(tmp_path, "cells.jsonl", line([None, None], **worse) | {"cell": "full-bf16-stock"})
    trained_drafter.append(
        tmp_path, "foreseen.jsonl", {"cell": "full-bf16-patched", "waves": {"8 cold": GOOD}}
    )
    trained_drafter.report(trained_drafter.arguments(args))
    chart = (tmp_path / "c.svg").read_text()
    assert "no windows: 8 requests, cold: 3.50 patched, 3.50 stock, 3.50 by torch" in chart
    assert "no windows: beside a long request: 3.50 patched, 1.25 stock<" in chart
    assert "+2.25 [2.25, 2.25]" in chart
    assert "warm" not in chart


def test_cells_that_are_named_are_planned_in_the_order_of_their_names(tmp_path: Path) -> None:
    given = ["serve", "--out", str(tmp_path), "--model", "m", "--drafter", "d"]
    asked = trained_drafter.arguments(
        [*given, "--only", "full-fp8-patched", "none-fp8", "window-bf16", "none"]
    )
    names = [cell.name for cell in trained_drafter.planned(asked)]
    assert names == [
        "full-fp8-patched", "none-fp8-patched", "window-bf16-patched",
        "none-bf16-patched", "none-nvfp4-patched",
    ]  # fmt: skip
