"""``sparkwright verify`` as a person or a machine meets it: results, refusals, kills and resuming."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import machine
from typing import Any

import psutil
import pytest
from command import begin, call
from http_server import Handler, serving
from killed import stopped
from wheelkit import plain_wheel
from world import wait_until

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import PreflightError
from sparkwright.engine.offered import built_wheel

QUICK = ("--demo", "--checks", "boot", "--categories", "code")
KEY = "a key that nobody guesses"
# A clock so slow that a busy machine does not read whole answers at once, which no verdict would stand.
SLOWER = ("--demo", "--speed", "10", "--levels", "1,4", "--checks")


def verify(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return call("verify", *arguments, cwd=cwd, NO_COLOR="1", COLUMNS="200", **environment)


def documents(run: Path) -> list[dict[str, Any]]:
    path = run / "journal.jsonl"
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]  # the last may not be whole yet
    return [json.loads(line) for line in whole]


def cells(run: Path) -> list[str]:
    return [line["id"] for line in documents(run) if line["kind"] == "cell"]


@contextlib.contextmanager
def simulator(folder: Path, *options: str) -> Iterator[str]:
    """The address of a simulated server that others started."""
    ready, log = folder / "ready.json", folder / "log"
    words = ("--port", "0", "--ready-file", ready, "--speed", "40", "--log", log, *options)
    argv = [sys.executable, "-m", "sparkwright.verify.simulator.main", *map(str, words)]
    with subprocess.Popen(argv) as process:
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None)
            yield json.loads(ready.read_text())["url"]
        finally:
            process.terminate()


def test_a_healthy_server_leaves_a_verdict_and_its_evidence(tmp_path: Path) -> None:
    done = verify(*QUICK, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    for line in done.stdout.splitlines():
        if " sha256 " in line:
            name, path, *_, digest = line.split()
            assert Path(path) == run / name
            assert sha256_file(run / name) == digest
    assert done.stdout.splitlines()[-1] == f"next     open {run}/report.html"
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "pass"
    assert "<html" in (run / "report.html").read_text()
    assert (run / "servers" / "main-0" / "server.log").stat().st_size
    left = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if str(run) in line]


def test_a_file_of_prompts_is_swept_and_a_changed_one_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"messages": [{"role": "user", "content": "Sum up the news."}]}\n{"prompt": "Why?"}\n')
    asked = ("--prompts", "own.jsonl", "--max-tokens", "24", "--levels", "1", "--seed", "3")
    run = tmp_path / "run"
    done = verify("--demo", *asked, "--checks", "sweep", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line["observation"]["cell"]["name"] for line in documents(run) if line["kind"] == "cell"]
    assert names == ["own c=1"]
    own.write_text('{"prompt": "Something else."}\n')
    done = verify("--resume", "run", cwd=tmp_path)
    assert done.returncode == 10
    assert "own.jsonl has changed since the run began" in done.stderr


def test_machines_get_one_document(tmp_path: Path) -> None:
    done = verify(*QUICK, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], done.stderr) == (0, "pass", "")
    report = Path(told["files"][0]["path"])
    assert report.parent.parent == tmp_path / "dist" / "evidence"
    assert {finding["check"] for finding in told["findings"]} == {"boot"}
    assert told["failed-requests"] == 0 < told["requests"]


def test_a_fault_fails_and_is_named(tmp_path: Path) -> None:
    done = verify(*QUICK, "--fault", "negative-estimate", "--out", "run", cwd=tmp_path)
    assert done.returncode == 83
    assert "-35.69" in done.stderr
    told = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert told["verdict"] == "fail"


@pytest.mark.slow
def test_a_server_of_others_is_verified_with_its_key_and_left_running(tmp_path: Path) -> None:
    with simulator(tmp_path, "--api-key", KEY) as url:
        quick = ("--url", url, "--profile", "demo", "--checks", "coherence", "--speed", "40", "--out", "run")
        refused = verify(*quick, cwd=tmp_path)
        assert refused.returncode == 10
        assert "key" in refused.stderr
        assert not (tmp_path / "run" / "journal.jsonl").exists()
        done = verify(*quick, cwd=tmp_path, SPARKWRIGHT_API_KEY=KEY)
        assert done.returncode == 0, done.stderr
        again = verify(
            *quick[:-1], "other", "--model", "nobody/nothing", cwd=tmp_path, SPARKWRIGHT_API_KEY=KEY
        )
        assert again.returncode == 10
        assert "nobody/nothing" in again.stderr
        assert "simulated/" in again.stderr  # what is served instead
    everything = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert KEY not in everything


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = (*SLOWER, "boot,coherence", "--out", run)
    stopped(begin("verify", *asked, cwd=tmp_path), signal.SIGKILL, lambda: len(cells(run)) >= 2)
    before = cells(run)
    assert not (run / "report.html").exists()

    done = verify("--resume", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = cells(run)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) > len(before)

    again = verify("--resume", run, cwd=tmp_path)
    assert again.returncode == 0
    assert cells(run) == after


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_and_no_server(tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = begin("verify", *SLOWER, "boot,coherence", "--out", run, cwd=tmp_path)
    ran = stopped(child, signal.SIGINT, lambda: cells(run))
    assert ran.status == 130
    assert f"sparkwright verify --resume {run} continues the run" in ran.err


def test_the_usual_profile_sweeps_all_levels_in_20_minutes_and_says_so_first(tmp_path: Path) -> None:
    plan = json.loads(verify("--python", sys.executable, "--plan", "--json", cwd=tmp_path).stdout)
    assert plan["seconds"] <= 20 * 60
    assert plan["checks"]["sweep"]["measurements"] == 2 * len((1, 2, 4, 8, 16, 32, 64))
    full = json.loads(
        verify("--python", sys.executable, "--plan", "--json", "--profile", "full", cwd=tmp_path).stdout
    )
    assert full["seconds"] > 10 * plan["seconds"]
    done = verify("--python", sys.executable, cwd=tmp_path, PATH=str(tmp_path))  # no nvidia-smi: no card
    told, refused = done.stderr.index("are expected"), done.stderr.index("card")
    assert (done.returncode, told < refused) == (PreflightError.exit_code, True)


REFUSED = {
    "nothing": (("--force",), 10, "holds no wheel of series 0.24 or 0.33 for this machine"),
    "two servers": (("--demo", "--url", "http://localhost:1"), 10, "exclude each other"),
    "fault without simulator": (("--url", "http://localhost:1", "--fault", "inert"), 10, "without --demo"),
    "unknown fault": (("--demo", "--fault", "gremlins"), 10, "gremlins"),
    "unknown check": (("--demo", "--checks", "vibes"), 10, "vibes"),
    "unknown profile": (("--demo", "--profile", "huge"), 10, "huge"),
    "unknown recipe": (("--python", sys.executable, "--recipe", "soup"), 10, "soup"),
    "no vllm there": (("--python", sys.executable, "--force"), 77, "vLLM"),
    "no server": (("--url", "http://127.0.0.1:9"), 10, "127.0.0.1:9"),
    "no address": (("--url", "localhost"), 10, "localhost"),
    "no log": (("--url", "http://127.0.0.1:9", "--log", "gone"), 10, "gone"),
    "no run": (("--resume", "."), 10, "not the folder of a run"),
    "no numbers": (("--demo", "--levels", "1,many"), 2, "1,many"),
    "a password": (("--url", f"http://bob:{KEY}@127.0.0.1:9"), 10, "127.0.0.1:9"),
    "for ever": (("--demo", "--speed=inf"), 2, "--speed"),
    "a file for a folder": (("--demo", "--out", __file__), 70, "name another folder"),
    "no folder": (("--demo", "--out", ""), 2, "it is empty"),
    "a folder whose name is no UTF-8": (("--demo", "--out", "o\udcff"), 10, "UTF-8"),
    "an empty address": (("--url", ""), 2, "it is empty"),
    "a folder in a read-only place": (("--demo", "--out", "/sys/nothing/here"), 70, "name another folder"),
    "a rate without limits": (("--demo", "--checks", "capacity"), 10, "--slo"),
    "a comparison of nothing": (("--demo", "--checks", "compare"), 10, "verify compare BEFORE AFTER"),
    "another objective": (("--demo", "--slo", "ttft_p85=2s"), 10, "p85"),
    "no interpreter": (("--python", "gone/python"), 10, "gone/python"),
    "starts of an address": (("--url", "http://127.0.0.1:9", "--checks", "compare"), 10, "addresses"),
    "no prompts": (("--demo", "--prompts", __file__), 10, "line 1 is not JSON"),
    "nothing to compare": (("compare",), 10, "what to compare"),
    "one recipe to compare": (("compare", "smoke", "--demo"), 10, "--vary SETTING=VALUE"),
    "a wheel and a recipe": (("compare", "gone.whl", "smoke"), 10, "what to compare"),
    "no wheel to compare": (("compare", "gone.whl", "lost.whl"), 10, ".whl cannot be used"),
    "an unknown recipe": (("compare", "soup", "--demo", "--vary", "max-num-seqs=1,2"), 10, "soup"),
    "nothing to serve with": (("compare", "smoke", "--vary", "max-num-seqs=1,2"), 10, "--demo"),
    "what cannot be varied": (("compare", "smoke", "--demo", "--vary", "port=1,2"), 10, "port"),
    "no number": (("compare", "smoke", "--demo", "--vary", "max-num-seqs=1,inf"), 10, "no finite number"),
    "more cards": (("compare", "smoke", "--demo", "--vary", "tensor-parallel-size=1,2"), 10, "one card"),
    "a use of two recipes": (("compare", "smoke", "smoke", "--demo", "--use", "many"), 10, "--use"),
    "a fault of a real server": (
        ("compare", "smoke", "smoke", "--python", sys.executable, "--fault", "inert"), 10, "without --demo"
    ),
    "a setting twice": (
        ("compare", "smoke", "--demo", "--vary", "max-num-seqs=1", "--vary", "max-num-seqs=2,4"),
        10,
        "--vary max-num-seqs=1,2,4",
    ),
    "a use that is none": (("compare", "smoke:soup", "--demo", "--vary", "max-num-seqs=1,2"), 10, "soup"),
    "settings of runs": (("compare", ".", ".", "--vary", "max-num-seqs=1,2"), 10, "leave out --vary"),
    "a fault of no simulator": (
        ("compare", "smoke", "--demo", "--vary", "max-num-seqs=1,2", "--fault", "gremlins@x=1"),
        10,
        "gremlins",
    ),
    "limits of two recipes": (("compare", "smoke", "smoke", "--demo", "--slo", "ttft_p95=2s"), 10, "--slo"),
    "no runs": (("compare", "/gone/one", "/gone/two"), 10, "no run, wheel or recipe '/gone/"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_said_in_one_message(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = verify(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert KEY not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def wheel_file(folder: Path, version: str, platform: str, made_at: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"vllm-{version}-cp38-abi3-{platform}.whl"
    path.write_bytes(b"not a wheel")
    os.utime(path, (made_at, made_at))
    return path


def test_the_newest_wheel_for_this_machine_is_taken(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    ours, others = ("aarch64", "x86_64") if machine() == "aarch64" else ("x86_64", "aarch64")
    wheel_file(dist, "0.24.0+spark.84110ebb", f"manylinux_2_28_{ours}", 1)
    wheel_file(dist, "0.24.0+spark.2.1a2b3c4d", f"manylinux_2_34_{ours}", 3)
    newest = wheel_file(dist, "0.24.0+spark.10.1a2b3c4d", f"manylinux_2_28_{ours}", 2)
    foreign = wheel_file(dist, "0.24.0+spark.11.1a2b3c4d", f"manylinux_2_28_{others}", 4)
    assert built_wheel(dist, ours, (), {}).wheel == newest
    assert built_wheel(dist, others, (), {}).wheel == foreign
    done = verify("--unlocked", "--force", cwd=tmp_path)
    assert done.returncode not in {0, 1, 10}, done.stderr
    assert f"verifying dist/{newest.name}: the highest revision of series 0.24\n" in done.stderr
    newest.unlink()
    assert "verifying dist/vllm-0.24.0+spark.2.1a2b3c4d-" in verify("--profile", "smoke", cwd=tmp_path).stderr


def test_a_run_is_gone_on_with_as_it_was_begun(tmp_path: Path) -> None:
    assert verify(*QUICK, "--out", "run", cwd=tmp_path).returncode == 0
    done = verify("--resume", "run", "--levels", "1,2", cwd=tmp_path)
    assert done.returncode == 10
    assert "--levels" in done.stderr
    other = verify(*QUICK, "--seed", "7", "--out", "run", cwd=tmp_path)
    assert other.returncode == 10


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_journal_that_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make(run / "journal.jsonl")
    done = verify("--resume", "run", cwd=tmp_path)
    assert done.returncode == 10, done.stderr
    assert "journal.jsonl" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "journal.jsonl"]


def test_a_key_is_not_sent_where_only_a_journal_says(tmp_path: Path) -> None:
    with listening(counters=False) as (url, seen):
        options = {"url": url, "profile": "demo"}
        line = {
            "kind": "run",
            "run": "r",
            "created": "now",
            "server": "s",
            "identity": {},
            "options": options,
        }
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "journal.jsonl").write_text(json.dumps(line) + "\n")
        refused = verify("--resume", "run", cwd=tmp_path, SPARKWRIGHT_API_KEY=KEY)
        assert (refused.returncode, seen) == (10, [])
        assert f"--url {url}" in refused.stderr
        assert verify("--resume", "run", "--url", f"{url}/other", cwd=tmp_path).returncode == 10
        assert seen == []
        # With the key the server is contacted; it is another one than the journal's.
        assert verify("--resume", "run", "--url", url, cwd=tmp_path, SPARKWRIGHT_API_KEY=KEY).returncode == 10
        assert set(seen) == {f"Bearer {KEY}"}


@contextlib.contextmanager
def listening(*, counters: bool) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that looks like vLLM, up to its counters, and the keys that it got."""
    seen: list[str] = []

    class Answering(Handler):
        def do_GET(self) -> None:  # noqa: N802
            seen.append(self.headers.get("Authorization", ""))
            pages = {"/v1/models": {"data": [{"id": "m"}]}, "/version": {"version": "0.24.0"}}
            body = json.dumps(pages.get(self.path, {})).encode()
            body = b"vllm:x 1\n" if self.path == "/metrics" and counters else body
            self.reply(200, body)

    with serving(Answering) as server:
        yield server.url, seen


def test_without_a_network_a_wheel_whose_requirements_are_not_cached_is_refused(tmp_path: Path) -> None:
    wheel = plain_wheel(tmp_path, "vllm", "0.24.0", "no-such-distribution==9")
    words = ("--profile", "smoke", "--unlocked", "--offline", "--out", "run")
    done = verify(wheel, *words, cwd=tmp_path, SPARKWRIGHT_HOME=str(tmp_path / "store"))
    assert done.returncode == 20
    assert "no-such-distribution" in done.stderr
    assert not (tmp_path / "run" / "journal.jsonl").exists()
