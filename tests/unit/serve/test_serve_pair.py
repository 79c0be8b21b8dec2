"""The judge of the serving proof on a GPU fires on each planted fault, and is silent on the healthy twin."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import serve_pair
from pair import install, load
from pair.load import Observed

CARRIES = ["dflash-query-buffers", "tie-weights"]
VERSION = "0.24.0+spark.0123abcd"


# --- what is installed


def lay_out(root: Path, carries: list[str] = CARRIES, version: str = VERSION) -> install.Installed:
    """An installation with a file for each carry, as `pip` or an unpacked wheel leaves it."""
    info = root / f"vllm-{version}.dist-info"
    (root / "vllm").mkdir(parents=True)
    (info / "sparkwright").mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (root / "vllm" / "__init__.py").write_text("")
    for name in carries:
        (root / "vllm" / f"{name}.py").write_text(f"carry = {name!r}\n")
    described = [{"name": name, "outcome": "applied", "paths": [f"vllm/{name}.py"]} for name in carries]
    if carries:
        (info / "sparkwright" / "providers.json").write_text("[]")
        (info / "sparkwright" / "carries.json").write_text(json.dumps({"carries": described}))
    rows = [
        f"{file.relative_to(root)},{install.digest(file)},{file.stat().st_size}\n"
        for file in sorted(root.rglob("*"))
        if file.is_file()
    ]
    (info / "RECORD").write_text("".join(rows) + f"{info.name}/RECORD,,\n")
    return install.find([str(root)])


def failed(checks: list[install.Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def test_a_healthy_installation_passes(tmp_path: Path) -> None:
    patched = lay_out(tmp_path / "patched")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == []
    assert sorted(install.carried_files(patched)) == [f"vllm/{name}.py" for name in CARRIES]
    stock = lay_out(tmp_path / "stock", carries=[], version="0.24.0")
    assert failed(install.inspect(stock, "0.24.0", [], [])) == []


def test_faults_of_an_installation_are_found(tmp_path: Path) -> None:
    patched = lay_out(tmp_path)
    assert failed(install.inspect(patched, "0.24.0", CARRIES, [])) == ["version"]
    assert failed(install.inspect(patched, VERSION, [], [])) == ["carries"]
    assert failed(install.inspect(patched, VERSION, [*CARRIES, "uma-clamp"], [])) == ["carries"]
    (tmp_path / "vllm" / "stray.py").write_text("")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == ["no other Python files"]
    (tmp_path / "vllm" / "stray.py").unlink()
    (tmp_path / "vllm" / "tie-weights.py").write_text("# upstream's\n")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == ["files are the wheel's"]


# --- what booted, and how it ended


def boot(installed: install.Installed, run: str = "v1-graphs", **view: Any) -> dict[str, Any]:
    runner, drafter, sampler = serve_pair.RUNNERS[run[:2]]
    seen = {
        "vllm": VERSION,
        "vllm_file": str(installed.root / "vllm/__init__.py"),
        "runner": runner,
        "drafter": drafter,
        "rejection_sampler": sampler,
        "capture_sizes": [4, 8, 256, 272],
        "captured": 30,
        "graph_memory_estimate": 1 << 30,
        "drafter_rows": {"positions": 512, "_slot_mapping_buffer": 512},
        "card": "a",
        "attention": {},
        "cudagraph_mode": "FULL",
    }
    carried = install.carried_files(installed).items()
    modules = {path: [str(installed.root / path), digest] for path, digest in carried}
    native = install.native_binaries(installed).items()
    binaries = {
        path: {"files": [[str(installed.root / path), digest]], "before": "_C" in path}
        for path, digest in native
    }
    return {
        "kind": "boot",
        "run": run,
        "seconds": 9.0,
        "view": seen | view,
        "others": [],
        "modules": modules,
        "binaries": binaries,
        "canary": True,
    }


def options(out: Path, **given: Any) -> argparse.Namespace:
    defaults = {"version": VERSION, "carries": CARRIES, "levels": [1, 17], "max_num_seqs": 65}
    defaults |= {"cards": 1, "cache": "auto", "windows": False}
    return argparse.Namespace(out=out, **defaults | given)


def check_boot(installed: install.Installed, line: dict[str, Any]) -> list[str]:
    args = options(installed.root)
    return failed(serve_pair.boot_checks(line["run"], line, args, installed))


def test_a_healthy_boot_passes_on_both_runners(tmp_path: Path) -> None:
    installed = lay_out(tmp_path)
    assert check_boot(installed, boot(installed)) == []
    assert check_boot(installed, boot(installed, "v2-graphs", drafter_rows={})) == []
    rows = {"positions": 260, "_slot_mapping_buffer": 260}
    assert (
        check_boot(installed, boot(installed, "v1-eager", capture_sizes=[], captured=0, drafter_rows=rows))
        == []
    )


@pytest.mark.parametrize(
    ("view", "check"),
    [
        ({"runner": serve_pair.RUNNERS["v2"][0]}, "model runner"),
        ({"drafter": "builtins.NoneType"}, "drafter"),
        ({"rejection_sampler": "builtins.NoneType"}, "rejection sampler"),
        ({"vllm": "0.24.0"}, "vllm.__version__"),
        ({"vllm_file": "/elsewhere/vllm/__init__.py"}, "imported from"),
        ({"captured": 0}, "graphs captured"),
        ({"graph_memory_estimate": -1}, "graph memory estimate"),
        ({"drafter_rows": {"positions": 260, "_slot_mapping_buffer": 512}}, "drafter's rows"),
        ({"drafter_rows": {}}, "drafter's rows"),
    ],
)
def test_each_fault_of_a_boot_is_found(tmp_path: Path, view: dict[str, Any], check: str) -> None:
    installed = lay_out(tmp_path)
    assert check_boot(installed, boot(installed, **view)) == [check]


def judge(tmp_path: Path, lines: list[dict[str, Any]], log: str = "", status: int | None = 0) -> list[str]:
    installed = lay_out(tmp_path / "site")
    (tmp_path / "lines.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [boot(installed), *lines])
    )
    (tmp_path / "v1-graphs.log").write_text(log)
    return failed(serve_pair.run_checks("v1-graphs", status, options(tmp_path), installed))


def level(c: int, *found: str) -> dict[str, Any]:
    return {"kind": "level", "run": "v1-graphs", "c": c, "faults": list(found)}


END = {"kind": "end", "run": "v1-graphs", "errored": False}


@pytest.mark.parametrize(
    ("lines", "log", "status", "found"),
    [
        ([level(1), level(17), END], "INFO all is well", 0, []),
        ([level(1), level(17, "gone wrong"), END], "", 0, ["c=17"]),
        ([level(1), END], "", 0, ["c=17"]),
        ([level(1), level(17)], "", 0, ["came to its end"]),
        ([level(1), level(17), END | {"errored": True}], "", 0, ["came to its end"]),
        ([level(1), level(17), END], "", 1, ["came to its end"]),
        ([level(1), level(17), END], "", None, ["came to its end"]),
        ([level(1), level(17), END], "CUDA error: an illegal memory access", 0, ["log"]),
        ([level(1), level(17), END], "vllm.v1.engine.exceptions.EngineDeadError", 0, ["log"]),
        ([level(1), level(17), END | {"run": "v2-graphs"}], "", 0, ["came to its end"]),
    ],
)
def test_a_run_is_judged_by_its_lines_log_and_status(tmp_path, lines, log, status, found):
    assert judge(tmp_path, lines, log, status) == found


LEVEL = 17


def healthy(level: int = LEVEL) -> Observed:
    received = {request.name: request.output for client in load.workload(level) for request in client}
    return Observed(
        level=level,
        seconds=1.0,
        received=received,
        chunks=10 * len(received),
        counters=load.expected(level),
        peak=level,
        sizes=level,
        replays=100,
        canary=True,
    )


def altered(seen: Observed, **counters: Any) -> Observed:
    return replace(seen, counters=replace(seen.counters, **counters))


# --- a level


@pytest.mark.parametrize("level", [1, 17, 65])
def test_a_healthy_level_has_no_faults(level: int) -> None:
    assert load.faults(healthy(level), graphs=True) == []
    assert load.faults(replace(healthy(level), replays=0), graphs=False) == []


def lost(seen: Observed) -> Observed:
    return replace(seen, received={k: v for k, v in seen.received.items() if k != "17-3-1"})


def short(seen: Observed) -> Observed:
    return replace(seen, received=seen.received | {"17-3-1": seen.received["17-3-1"] - 1})


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (lost(healthy()), "request 17-3-1 did not finish"),
        (short(healthy()), "request 17-3-1 gave"),
        (replace(healthy(), received=healthy().received | {"x": 1}), "request x was never asked"),
        (replace(healthy(), errors=("request 17-0-0: EngineDeadError()",)), "EngineDeadError"),
        (replace(healthy(), chunks=2 * LEVEL), "nothing was streamed"),
        (altered(healthy(), drafts=load.expected(LEVEL).drafts + 1), "drafts rose by"),
        (altered(healthy(), accepted=load.expected(LEVEL).accepted - 1), "accepted rose by"),
        (altered(healthy(), per_position=(1, 1, 1)), "per_position rose by"),
        (altered(healthy(), generated=0), "generated rose by 0"),
        (altered(healthy(), preempted=1), "preempted rose by 1"),
        (replace(healthy(), peak=16), "at most 16 requests ran at once instead of 17"),
        (replace(healthy(), replays=0), "no CUDA graph was replayed"),
        (replace(healthy(), canary=False), "did not answer"),
    ],
)
def test_each_planted_fault_is_found(sick: Observed, words: str) -> None:
    found = load.faults(sick, graphs=True)
    assert len(found) == 1
    assert words in found[0]


def test_a_replayed_graph_is_a_fault_in_eager_mode() -> None:
    assert load.faults(healthy(), graphs=False) == ["100 CUDA graphs were replayed in eager mode"]
