"""The expectation for a card that is not here: counters whose truth is known, and what it is read from."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def modules():
    """The scripts, imported from their folders."""
    before = list(sys.path)
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "gpu")]
    try:
        names = ("gb10_model", "nvfp4.floor", "nvfp4.geometry", "nvfp4.sass")
        yield {name.partition(".")[2] or name: importlib.import_module(name) for name in names}
    finally:
        sys.path[:] = before


RATES = {"issue": 4.0, "alu": 2.0, "lsu": 1.0}


def cards(floor):
    """A card with much bandwidth for its cores, and one with little of both."""
    return floor.Card("big", 100, 2.0, 4000, RATES), floor.Card("small", 50, 1.0, 200, RATES)


def work(floor, **changes):
    fields = {
        "bytes": 40e6,
        "per_block": {"alu": 40_000.0, "lsu": 1000.0},
        "blocks": 400,
        "resident": 4,
        "shared": {},
        "kernels": 1,
    }
    return floor.Work(**(fields | changes))


def truth(floor, card, some, reach, delay):
    """The time of a card that has exactly this reach, and cases that have exactly this delay."""
    least = floor.least(some, card)
    return card.launch_us + delay * max(us / reach[name] for name, us in least.items())


def test_least_times_are_work_over_rates(modules):
    floor = modules["floor"]
    big, _ = cards(floor)
    found = floor.least(work(floor), big)
    # 400 blocks on 100 multiprocessors: four each. 40 MB at 4 TB/s: 10 µs.
    assert found == pytest.approx(
        {
            "memory": 10.0,
            "alu": 4 * 40_000 / 2 / 2e3,
            "lsu": 4 * 1000 / 1 / 2e3,
            "issue": 4 * 41_000 / 4 / 2e3,
        }
    )


def test_a_block_too_many_takes_as_long_as_a_full_card(modules):
    floor = modules["floor"]
    big, _ = cards(floor)
    assert floor.least(work(floor, blocks=401), big)["alu"] == pytest.approx(5 * 40_000 / 2 / 2e3)
    assert floor.least(work(floor, blocks=500), big)["alu"] == pytest.approx(5 * 40_000 / 2 / 2e3)


def measured(floor, card, reach, delays):
    """Cases of several kinds, with the times that the card would show."""
    kinds = {
        "by memory": work(floor, bytes=400e6),
        "by arithmetic": work(floor, bytes=1e6),
        "delayed": work(floor, blocks=10),
        "several kernels": work(floor, kernels=2, shared={"alu": 1e5}),
    }
    found = []
    for (name, some), delay in zip(kinds.items(), delays, strict=True):
        extra = (some.kernels - 1) * floor.KERNEL_US
        found.append(floor.Case(name, some, extra + truth(floor, card, some, reach, delay)))
    return found


REACH = {"memory": 0.9, "alu": 0.8, "lsu": 1.0, "issue": 0.9}
DELAYS = (1.0, 1.0, 3.0, 1.2)


def test_the_truth_is_found_again(modules):
    floor = modules["floor"]
    big, small = cards(floor)
    cases = measured(floor, big, REACH, DELAYS)
    shares = floor.reach(cases, big)
    assert shares["memory"] == pytest.approx(0.9)
    assert shares["alu"] == pytest.approx(0.8)
    wanted = {case.name: case.us for case in measured(floor, small, REACH, DELAYS)}
    for case in cases:
        found = floor.predict(case, big, case.work, small, shares)
        assert found.us == pytest.approx(wanted[case.name])
        assert found.low <= found.us <= found.high
    limits = {case.name: floor.predict(case, big, case.work, small, shares).limit for case in cases}
    assert limits["by memory"] == "memory"
    assert limits["by arithmetic"] == "alu"


def test_a_limit_that_changes_is_told(modules):
    floor = modules["floor"]
    big, small = cards(floor)
    cases = measured(floor, big, REACH, DELAYS)
    shares = floor.reach(cases, big)
    middling = floor.Case("middling", work(floor), truth(floor, big, work(floor), REACH, 1.0))
    found = floor.predict(middling, big, middling.work, small, shares)
    assert (found.limit_before, found.limit, found.carries) == ("alu", "memory", False)
    assert floor.predict(cases[0], big, cases[0].work, small, shares).carries


def test_the_check_is_silent_on_a_model_that_holds(modules):
    floor = modules["floor"]
    big, small = cards(floor)
    found = floor.check(
        big, measured(floor, big, REACH, DELAYS), small, measured(floor, small, REACH, DELAYS)
    )
    assert len(found.rows) == 4
    assert found.error == pytest.approx(1.0)
    assert found.typical == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_the_check_finds_a_card_that_does_otherwise_and_widens_the_bar(modules, factor):
    floor = modules["floor"]
    big, small = cards(floor)
    before, after = (measured(floor, card, REACH, DELAYS) for card in (big, small))
    after[1] = replace(after[1], us=after[1].us * factor)
    found = floor.check(big, before, small, after)
    assert found.error == pytest.approx(1.5)
    assert 1.0 < found.typical < 1.5
    shares = floor.reach(before, big)
    plain, wide = (
        floor.predict(before[0], big, before[0].work, small, shares, error=error)
        for error in (1.0, found.error)
    )
    assert wide.low == pytest.approx(plain.low / 1.5)
    assert wide.high == pytest.approx(plain.high * 1.5)


def test_nothing_measured_is_no_model(modules):
    floor = modules["floor"]
    big, small = cards(floor)
    cases = measured(floor, big, REACH, DELAYS)
    with pytest.raises(ValueError, match="no case"):
        floor.reach([], big)
    with pytest.raises(ValueError, match="less than the start"):
        floor.reach([floor.Case("fast", work(floor), 1.0)], big)
    with pytest.raises(ValueError, match="both"):
        floor.check(big, cases, small, [])


LISTING = """
\t.section\t.text.kernel,"ax",@progbits
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/              @!P0 EXIT ;
.L_x_1:
        /*0020*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_2:
        /*0030*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0040*/                   HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
        /*0050*/                   HFMA2.BF16_V2 R5, R5, R6, -RZ ;
        /*0060*/             @P1   LOP3.LUT R5, R5, 0x7, RZ, 0xc0, !PT ;
        /*0070*/                   MUFU.EX2 R5, R5 ;
        /*0080*/                   UIADD3 UR4, UR4, 0x1, URZ ;
        /*0090*/              @P0  BRA `(.L_x_2) ;
        /*00a0*/              @P2  BRA `(.L_x_1) ;
        /*00b0*/                   STG.E [R2], R4 ;
        /*00c0*/                   EXIT ;
.L_x_3:
        /*00d0*/                   BRA `(.L_x_3);
        /*00e0*/                   NOP;
        /*00f0*/                   NOP;
"""


def test_instructions_of_the_innermost_loop_are_counted_by_pipe(modules):
    found = modules["sass"].count(LISTING)
    wanted = {"lsu": 1, "tensor": 1, "fma": 1, "alu": 1, "xu": 1, "uniform": 1, "control": 1}
    assert found.loop == wanted
    assert found.issued == 7
    assert found.opcodes["HMMA"] == 1
    assert found.outside["lsu"] == 2  # LDC and STG
    assert found.outside["alu"] == 1  # of the outer loop


def test_a_kernel_without_a_loop_is_all_outside_and_an_empty_one_is_an_error(modules):
    sass = modules["sass"]
    found = sass.count("        /*0000*/                   FADD R1, R1, R2 ;\n")
    assert (found.loop, found.outside) == ({}, {"fma": 1})
    with pytest.raises(ValueError, match="no instruction"):
        sass.count("nothing of the kind")


@pytest.mark.parametrize(
    ("opcode", "pipe"),
    [
        ("LDGSTS", "lsu"), ("LDGDEPBAR", "control"), ("REDUX", "uniform"), ("RED", "lsu"),
        ("IMAD", "fma"), ("IADD3", "alu"), ("F2FP", "alu"), ("F2F", "xu"), ("HGMMA", "tensor"),
        ("UTMALDG", "lsu"), ("WARPGROUP", "control"), ("QZZZ", "other"),
    ],
)  # fmt: skip
def test_an_instruction_has_the_pipe_of_its_longest_prefix(modules, opcode, pipe):
    assert modules["sass"].pipe(opcode) == pipe


def kernel(**changes):
    """A reader in a report of the compile script."""
    fields = {
        "arch": 121,
        "cache": "nvfp4",
        "launch": "drafts of 16, split, heads of 128",
        "kernel": "kernel_unified_attention",
        "constants": "BLOCK_M=32 TILE_SIZE=32 HEAD_SIZE=128 IS_3D=True",
        "warps": 4,
        "resident": 12,
        "instructions": {"loop": {"alu": 10}, "outside": {"alu": 5, "lsu": 2}, "opcodes": {}},
    }
    return fields | changes


def test_work_is_counted_from_shapes_and_code(modules):
    geometry = modules["geometry"]
    step = geometry.Step(requests=2, context=32768, queries=16)
    assert str(step) == "drafts of 16, 32k x 2, 32/8 heads of 128"
    found = geometry.work(step, kernel(), segments=8)
    # 16 queries of 4 heads in blocks of 32 rows: 2 blocks of queries, 8 KV heads, 2 requests, 8 segments.
    assert found.blocks == 2 * 8 * 2 * 8
    tiles = -(-32784 // 32)
    assert found.per_block == {"alu": 4 * (5 + 10 * -(-tiles // 8)), "lsu": 8}
    assert found.bytes == 2 * 32784 * 8 * 144 + 2 * 2 * 16 * 32 * 128 * 2
    assert (found.resident, found.kernels) == (3, 2)
    assert geometry.work(step, kernel(), segments=1).kernels == 1


def test_a_kernel_that_was_not_compiled_is_missed(modules):
    geometry = modules["geometry"]
    step = geometry.Step(1, 4096, 16)
    assert geometry.find([kernel()], 121, step, split=True)["arch"] == 121
    for arch, split in ((90, True), (121, False)):
        with pytest.raises(LookupError, match="drafts of 16"):
            geometry.find([kernel()], arch, step, split=split)
    with pytest.raises(LookupError, match="no TILE_SIZE"):
        geometry.value(kernel(constants="BLOCK_M=32"), "TILE_SIZE")


def printed(model, launches):
    """Return ncu's output for *launches* (kernel, instructions of the ALU)."""
    columns = ["ID", "Kernel Name", *model.METRICS]
    rows = [columns, ["", "", *("unit" for _ in model.METRICS)]]
    for number, (name, alu) in enumerate(launches):
        values = dict.fromkeys(model.METRICS, "8") | {
            "sm__inst_executed_pipe_alu.sum": alu,
            "sm__inst_executed.sum": "2,000",
            "launch__grid_size": "10",
        }
        rows.append([str(number), f"{name}(int, float)", *values.values()])
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f"==PROF== Connected\n{json.dumps({'case': 'one'})}\n{table}\n==PROF== Report\n"


def test_counters_are_read_by_launch_and_grouped_by_case(modules):
    model = modules["gb10_model"]
    text = printed(model, [(model.MAIN, "1,200"), (model.REDUCTION, "7"), (model.MAIN, "100")])
    found = model.by_case(model.read_counters(text), ["split", "whole"])
    assert [len(some) for some in found.values()] == [2, 1]
    assert found["split"][0]["alu"] == 1200
    assert found["split"][1]["kernel"] == model.REDUCTION


@pytest.mark.parametrize("kernels", [["MAIN"], ["MAIN", "MAIN", "MAIN"], ["REDUCTION", "MAIN"], ["other"]])
def test_launches_that_are_not_the_cases_are_an_error(modules, kernels):
    model = modules["gb10_model"]
    launches = [{"kernel": getattr(model, name, name)} for name in kernels]
    with pytest.raises(ValueError, match=r"launched for|no kernel of a case"):
        model.by_case(launches, ["one", "two"])


def test_a_profiler_that_lacks_a_counter_is_an_error(modules):
    model = modules["gb10_model"]
    text = printed(model, [(model.MAIN, "1")]).replace("dram__bytes_read.sum", "dram__other")
    with pytest.raises(ValueError, match="dram__bytes_read"):
        model.read_counters(text)
    with pytest.raises(ValueError, match="no table"):
        model.read_counters("==ERROR== permission denied")


def test_counted_instructions_take_the_place_of_compiled_ones(modules):
    model, floor = modules["gb10_model"], modules["floor"]
    launches = model.read_counters(printed(model, [(model.MAIN, "1,200"), (model.REDUCTION, "7")]))
    found = model.with_counters(work(floor), launches)
    assert found.per_block["alu"] == 120
    assert sum(found.per_block.values()) == 200  # all that were issued, of ten blocks
    assert found.shared["alu"] == 7
    assert (found.blocks, found.bytes) == (10, 16)


def test_expectations_come_with_the_check_where_two_cards_were_measured(modules):
    model, floor = modules["gb10_model"], modules["floor"]
    works = {card: {"one": asdict(work(floor))} for card in model.ARCHITECTURES}
    both = {"H200": {"one": 60.0}, "H100": {"one": 60.0}}
    found, checked, shares = model.expectations(works, both, {})
    assert checked is not None
    assert len(found) == len(checked.rows) == 1
    assert 0 < shares["alu"] <= 1
    alone, none, _ = model.expectations(works, {"H200": {"one": 60.0}}, {})
    assert none is None
    assert alone[0].high <= found[0].high


def test_the_record_s_figures_come_of_its_files(modules):
    """The page says: 36 cases, typically 4 % off, at most 10 %, and what a GB10 is expected to take."""
    folder = ROOT / "docs" / "evidence"
    works, times, counters = (
        json.loads((folder / f"2026-11-nvfp4-{name}.json").read_text(encoding="utf-8"))
        for name in ("model-work", "model-times", "counters")
    )
    assert set(counters["cases"]) < set(works["H200"])
    found, checked, _ = modules["gb10_model"].expectations(works, times, counters)
    plain, _, _ = modules["gb10_model"].expectations(works, times, {})
    without = {one.name: one.us for one in plain}
    assert checked is not None
    assert len(checked.rows) == 36
    assert checked.typical == pytest.approx(1.04, abs=0.005)
    assert checked.error == pytest.approx(1.10, abs=0.005)
    page = (folder / "2026-11-nvfp4-model.md").read_text(encoding="utf-8")
    said = [one for one in found if one.name.endswith("heads of 128")]
    assert len(said) == 18
    for one in said:
        row = f"| **{one.us:,.0f}** | {without[one.name]:,.0f} | {one.low:,.0f} to {one.high:,.0f} |"
        assert row in page
