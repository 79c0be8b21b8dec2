"""The parts of the NVFP4 proof that need neither torch nor a card: what they read, judge, run and draw."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def modules():
    """The scripts, imported from their folders."""
    before = list(sys.path)
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "gpu")]
    try:
        names = ("nvfp4_compile", "nvfp4_kv", "nvfp4.record", "nvfp4.report", "nvfp4.serve")
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path[:] = before


PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kernel' for 'sm_121a'
ptxas info    : Function properties for kernel
    24 bytes stack frame, 40 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size
"""


def test_what_ptxas_says_is_read(modules):
    assert modules["nvfp4_compile"].parse(PTXAS) == (255, 24, 56)


def test_a_compiler_that_says_nothing_is_no_clean_kernel(modules):
    with pytest.raises(ValueError, match="did not say"):
        modules["nvfp4_compile"].parse("ptxas info    : 0 bytes gmem")


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "resident"),
    [
        (32, 4, 0, 48),  # the card's own limit
        (255, 4, 49408, 8),  # registers: two blocks of 4 warps
        (64, 4, 30976, 12),  # shared memory: three blocks in 100 KB
        (64, 4, 200_000, 0),  # not one
    ],
)
def test_warps_that_fit_a_gb10(modules, registers, warps, shared, resident):
    compiler = modules["nvfp4_compile"]
    assert compiler.resident_warps(compiler.CARDS[121], registers, warps, shared) == resident


def usage(compiler, **changes):
    fields = {
        "arch": 121,
        "cache": "nvfp4",
        "launch": "decode",
        "kernel": "kernel",
        "constants": "",
        "warps": 4,
        "stages": 3,
        "registers": 128,
        "stack": 0,
        "spills": 0,
        "shared": 30_000,
        "resident": 12,
    }
    return compiler.Usage(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared": 99 * 1024 + 1}, "shared memory"),
        ({"spills": 9}, "bytes of spills"),
        ({"resident": 0}, "does not fit"),
    ],
)
def test_too_much_is_a_fault(modules, changes, words):
    compiler = modules["nvfp4_compile"]
    found = compiler.faults(usage(compiler, **changes), 8)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    "changes", [{}, {"shared": 99 * 1024}, {"spills": 8}, {"arch": 90, "shared": 227 * 1024}]
)
def test_the_limit_itself_is_none(modules, changes):
    compiler = modules["nvfp4_compile"]
    assert compiler.faults(usage(compiler, **changes), 8) == []


READER = "kernel_unified_attention"
DRAFTER = "drafts of 16, not causal, window, heads of 256"  # the one launch of a GB10 that may spill 44 bytes
OTHER = "drafts of 16, not causal, heads of 256"


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": 121, "launch": DRAFTER, "spills": 45},
        {"arch": 121, "launch": DRAFTER, "spills": 60},
        {"arch": 121, "launch": OTHER, "spills": 44},
        {"arch": 121, "launch": f"{DRAFTER}, float16", "spills": 44},
        {"arch": 121, "launch": DRAFTER, "kernel": "reduce_segments", "spills": 44},
        {"arch": 120, "launch": DRAFTER, "spills": 44},
        {"arch": 90, "constants": "BLOCK_M=64 TILE_SIZE=64", "spills": 181},
        {"arch": 90, "constants": "BLOCK_M=128 TILE_SIZE=64", "spills": 265},
        {"arch": 90, "constants": "BLOCK_M=32 TILE_SIZE=64", "spills": 172},
        {"arch": 90, "kernel": "reduce_segments", "spills": 172},
        {"arch": 121, "constants": "BLOCK_M=64 TILE_SIZE=64", "spills": 172},
    ],
)
def test_spills_beyond_what_is_known_are_a_fault(modules, changes):
    compiler = modules["nvfp4_compile"]
    found = compiler.faults(usage(compiler, **{"kernel": READER} | changes), 40)
    assert len(found) == 1
    assert "bytes of spills" in found[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": 121, "launch": DRAFTER, "spills": 44},
        {"arch": 121, "launch": OTHER, "spills": 40},
        {"arch": 90, "constants": "BLOCK_M=64 TILE_SIZE=64", "spills": 180},
        {"arch": 90, "constants": "BLOCK_M=128 TILE_SIZE=64", "spills": 264},
    ],
)
def test_known_spills_are_none(modules, changes):
    compiler = modules["nvfp4_compile"]
    assert compiler.faults(usage(compiler, **{"kernel": READER} | changes), 40) == []


def test_the_worst_of_each_head_size_is_told(modules):
    compiler = modules["nvfp4_compile"]
    found = [
        usage(compiler, launch="decode, heads of 64", registers=72, resident=28),
        usage(compiler, launch="prefill, heads of 64, float16", registers=108, spills=8, resident=16),
        usage(compiler, launch="decode, heads of 128", shared=40_000),
    ]
    rows = compiler.worst(found).splitlines()[2:]
    assert rows == [
        "| sm_121 | nvfp4 | 64 | `kernel` | 2 | 108 | 8 | 30000 | 16 of 48 |",
        "| sm_121 | nvfp4 | 128 | `kernel` | 1 | 128 | 0 | 40000 | 12 of 48 |",
    ]


def test_processes_that_fail_or_hang_are_told_from_those_that_end(modules, tmp_path):
    python = sys.executable
    commands = {
        "good": ([python, "-c", "print('fine')"], {}),
        "bad": ([python, "-c", "raise SystemExit(3)"], {}),
        "slow": ([python, "-c", "import time; time.sleep(600)"], {}),
    }
    done = modules["nvfp4.serve"].processes(commands, tmp_path, at_once=2, seconds=3)
    assert done == {"good": 0, "bad": 3, "slow": -1}
    assert (tmp_path / "good.log").read_text() == "fine\n"


def test_a_case_that_raises_is_a_failed_check(modules, tmp_path):
    record = modules["nvfp4.record"]
    recorder = record.Recorder(tmp_path / "lines.jsonl", "pack")

    def broken() -> None:
        raise RuntimeError("no kernel")

    recorder.case("one", broken)
    recorder.case("two", lambda: recorder.check("two", ok=True))
    lines = record.read(tmp_path / "lines.jsonl")
    assert [(line["name"], line["ok"]) for line in lines] == [("one", False), ("two", True)]
    assert "no kernel" in lines[0]["detail"]


def timed(cache, context, microseconds):
    return {
        "part": "speed",
        "kind": "speed",
        "case": f"decode, {context // 1024}k x 8",
        "context": context,
        "batch": 8,
        "queries": 1,
        "cache": cache,
        "us": [microseconds, microseconds - 1, microseconds + 1],
        "floor": {"bytes": microseconds / 2, "products": 1.0},
        "of_floor": 2.0,
        "to_16_bit": 1.5,
    }


def test_charts_and_tables_show_every_cache(modules):
    report = modules["nvfp4.report"]
    lines = [
        timed(cache, context, 10.0 * step * (index + 1))
        for index, context in enumerate((4096, 32768))
        for step, cache in enumerate(("nvfp4", "fp8", "auto"), start=1)
    ]
    drawn = report.charts(lines)
    assert list(drawn) == ["decode-8"]
    root = ET.fromstring(drawn["decode-8"])  # noqa: S314 - our own drawing
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(root.itertext())
    assert all(name in words for name in ("16 bits", "FP8", "NVFP4", "NVFP4's floor", "32k 20 µs"))
    table = report.tables(lines)
    assert table.startswith("## Speed")
    assert table.count("\n| decode, ") == 6


def test_no_lines_make_no_tables(modules):
    report = modules["nvfp4.report"]
    assert report.tables([]) == ""
    assert report.charts([]) == {}


def test_capacity_is_judged_by_bytes(modules, tmp_path):
    record, serve = modules["nvfp4.record"], modules["nvfp4.serve"]
    file = tmp_path / "lines.jsonl"
    for half, ok in ((1000, True), (1500, False)):
        file.unlink(missing_ok=True)
        recorder = record.Recorder(file, "serve")
        for run, tokens in (("v1-plain-graphs", 3556), ("v1-plain-fp8", 2000), ("v1-plain-auto", half)):
            recorder.write("capacity", run=run, tokens=tokens, gib=1.0)
        serve.capacity(recorder)
        checks = {line["name"]: line["ok"] for line in record.read(file) if line["kind"] == "check"}
        assert checks == {"tokens against fp8": True, "tokens against 16 bits": ok}


def test_sanitizing_plants_an_error_first(modules, tmp_path):
    runner = modules["nvfp4_kv"]
    args = runner.argparse.Namespace(
        device="cuda",
        series="0.24",
        seed=1,
        out=tmp_path,
        workers=3,
        runs=[],
        cases="",
        speed_seconds=1.0,
        train_seconds=1.0,
    )
    specs = runner.specifications("sanitize", args)
    assert [spec.get("planted", False) for spec in specs.values()] == [True, False]
    command, env = runner.command("sanitize", specs["sanitize"], args)
    assert Path(command[0]).name == "compute-sanitizer"
    assert env["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert json.loads((tmp_path / "sanitize.json").read_text())["part"] == "sanitize"
    assert len(runner.specifications("attention", args)) == 3
