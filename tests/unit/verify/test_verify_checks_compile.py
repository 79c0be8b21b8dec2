"""Compilers after the warm-up: the reader on real processes and folders, the check on what it read."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import Bench, by_name, context

from sparkwright.base.config import to_builtins
from sparkwright.engine.cell import Load
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation
from sparkwright.engine.server.compiling import CompileWatch
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.boot import KINDS

CHECK = ALL["compile"]
BENCH = Bench(CHECK)
NAME = "nothing is compiled after the warm-up"
# A server that starts what its input says, and ends with it.
SERVER = (
    "import subprocess, sys\nprint('ready', flush=True)\n"
    "for line in sys.stdin:\n    subprocess.Popen(line.split())\n    print('started', flush=True)\n"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={"HOME": str(tmp_path), "FLASHINFER_WORKSPACE_BASE": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def start(server: subprocess.Popen[str], *argv: str) -> None:
    server.stdin.write(" ".join(argv) + "\n")
    server.stdin.flush()
    assert server.stdout.readline() == "started\n"


def test_other_processes_and_older_files_are_not(server: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / ".triton" / "cache" / "old"
    folder.mkdir(parents=True)
    (folder / "kernel.cubin").write_bytes(b"")
    with CompileWatch(server.pid) as watch:
        start(server, sys.executable, "-c", "pass")
        (folder / "kernel.lock").write_bytes(b"")
        time.sleep(0.3)
    assert watch.compiled == ()


def seen(again: Any = (), first: Any = ()) -> tuple[Observation, ...]:
    """Observations in whose cells *first* was compiled in the first round, and *again* in the second."""
    return tuple(
        replace(one, compiled=again if one.cell.tags["round"] == "again" else first)
        for one in BENCH.healthy()
    )


def verdict(observations: tuple[Observation, ...], **changes: Any) -> tuple[Verdict, str]:
    found = by_name(CHECK.judge(context(**changes), observations))[NAME]
    return found.verdict, found.cause


def test_each_kind_is_sent_twice_with_other_prompts() -> None:
    cells = CHECK.cells(context())
    assert [cell.tags["round"] for cell in cells] == ["first"] * len(KINDS) + ["again"] * len(KINDS)
    assert len({prompt.text for cell in cells for prompt in cell.prompts}) == sum(
        len(c.prompts) for c in cells
    )


def test_a_quiet_server_passes_and_its_warm_up_is_a_remark() -> None:
    assert verdict(seen())[0] is Verdict.PASS
    found = by_name(CHECK.judge(context(), seen(first=("nvcc (1)",))))[NAME]
    assert found.verdict is Verdict.PASS
    assert any("nvcc" in warning for warning in found.warnings)


def test_processes_that_were_not_watched_decide_nothing() -> None:
    assert verdict(seen(again=None))[0] is Verdict.INCONCLUSIVE
    assert verdict(seen()[:-1])[0] is Verdict.INCONCLUSIVE


def test_a_kind_that_ends_the_server_in_the_first_round_fails_with_its_name() -> None:
    at = list(KINDS).index("sampled c=4")
    log = ("RuntimeError: CPU Generator does not use offset", "EngineDeadError: see above")
    ended = replace(seen()[at], died=1, log=log)
    found, cause = verdict((*seen()[:at], ended))
    assert found is Verdict.FAIL
    assert "the server ended in sampled c=4 first" in cause
    assert "a request with a seed whose prompt is read in several pieces" in cause


def test_cells_without_top_p_keep_their_keys() -> None:
    assert "top-p" not in to_builtins(Load())
    assert to_builtins(Load(top_p=0.9))["top-p"] == 0.9
