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
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    try:
        names = ("nvfp4_kv", "nvfp4.record", "nvfp4.report", "nvfp4.serve")
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path[:] = before


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
