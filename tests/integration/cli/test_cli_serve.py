"""``sparkwright serve``: the merged Python in miniature, served by the simulator as real processes."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from rehearsal_kit import rehearsed, stage
from world import World, finish, wait_until

from sparkwright.base.errors import ConfigError, ServerEndedError, ServerError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE = "rehearsal-smollm2"
PATIENCE_S = 180.0


@pytest.fixture
def staged(world: World) -> World:
    world.list_carries([])
    stage(world)
    world.carry("words", {"vllm/words.py": "WORDS = ('uno',)\n"})
    return world


class Serving:
    """A running ``sparkwright serve --json``, with the lines that it has printed."""

    def __init__(self, world: World, number: int, *words: str | Path) -> None:
        self.out = world.folder / f"serve-{number}.jsonl"
        script = (
            "import sys; from sparkwright.cli.main import main; "
            f"sys.stdout = open({str(self.out)!r}, 'w', buffering=1); sys.exit(main(sys.argv[1:]))"
        )
        self.child = world.start("serve", RECIPE, "--json", "--port", "0", *words, script=script)
        self.family: list[psutil.Process] = []

    def lines(self) -> list[dict[str, Any]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The first line of *kind*."""

        def found() -> dict[str, Any] | None:
            line = next((line for line in self.lines() if line["kind"] == kind), None)
            if line is None and self.child.poll() is not None:
                raise AssertionError(finish(self.child).said + self.out.read_text())
            return line

        line: dict[str, Any] = wait_until(found, patience_s=PATIENCE_S)
        self.family = psutil.Process(self.child.pid).children(recursive=True)
        return line

    def end(self) -> tuple[int, str]:
        """Status and standard error once it has ended, with all its processes."""
        _, errors = self.child.communicate(timeout=PATIENCE_S)
        _, alive = psutil.wait_procs(self.family, timeout=30)
        assert not alive, alive
        return self.child.returncode, errors


@pytest.fixture
def serving(staged: World) -> Iterator[Any]:
    started: list[Serving] = []

    def start(*words: str | Path) -> Serving:
        started.append(Serving(staged, len(started), *words))
        return started[-1]

    yield start
    for one in started:
        if one.child.poll() is None:
            one.child.kill()
            one.child.communicate()


def key_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text("sk-quite-secret-1\n")
    path.chmod(mode)
    return path


def everything_said(world: World, serving: Serving) -> str:
    """Output, events and logs of a server."""
    runs = world.store.home / "serve" / "runs"
    files = [*runs.rglob("*.log"), *runs.rglob("*.jsonl"), *runs.rglob("*.json"), serving.out]
    assert len(files) >= 3
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_it_answers_reports_and_leaves_nothing(staged: World, serving: Any, tmp_path: Path) -> None:
    key = key_file(tmp_path)
    this = serving("--interval", "0.2", "--api-key-file", key)
    ready = this.wait_for("serve.ready")
    assert ready["model"] == RECIPE
    assert ready["warm_up_requests"] > 16, "as many at a time as the recipe lets run"
    body = {"model": RECIPE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    asked = urllib.request.Request(
        f"{ready['url']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key.read_text().strip()}"},
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        assert json.load(response)["choices"][0]["message"]["content"]
    state = this.wait_for("serve.status")
    assert state["running"] >= 0
    assert state["available_gib"] > 0
    assert len(this.family) >= 2, "guard and server"
    secret = key.read_text().strip()
    for process in (psutil.Process(this.child.pid), *this.family):
        assert secret not in " ".join(process.cmdline())
    this.child.send_signal(signal.SIGTERM)
    status, errors = this.end()
    assert status == 0, errors
    assert this.lines()[-1]["kind"] == "serve.stopped"
    assert this.lines()[-1]["orphans"] == 0
    assert secret not in everything_said(staged, this) + errors
    caches = list((staged.store.home / "serve" / "caches").iterdir())
    assert len(caches) == 1
    again = serving("--no-warm-up")
    assert again.wait_for("serve.ready")["warm_up_s"] is None
    again.child.send_signal(signal.SIGINT)
    assert again.end()[0] == 0
    assert list((staged.store.home / "serve" / "caches").iterdir()) == caches, "a second start reuses them"


def test_a_server_that_ends_by_itself_is_an_error_of_its_own(staged: World, serving: Any) -> None:
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    (engine,) = (one for one in this.family if any("engine_process" in word for word in one.cmdline()))
    os.kill(engine.pid, signal.SIGKILL)
    status, errors = this.end()
    assert status == ServerEndedError.exit_code
    failed = this.lines()[-1]
    assert (failed["kind"], failed["error"]) == ("serve.failed", "ServerEndedError")
    assert "ended by itself" in errors
    assert "(engine-died)" in errors
    assert list((staged.store.home / "serve" / "runs").glob("*/incident-1/incident.json"))


def test_killed_it_leaves_no_engine(serving: Any) -> None:
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    this.child.kill()
    assert this.end()[0] == -signal.SIGKILL


def test_a_second_signal_kills_a_server_that_ignores_the_first(staged: World, serving: Any) -> None:
    staged.carry("deaf", {"vllm/words.py": DEAF})
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    this.child.send_signal(signal.SIGINT)
    this.wait_for("serve.stopping")
    assert this.child.poll() is None
    this.child.send_signal(signal.SIGINT)
    wait_until(lambda: sum(line["kind"] == "serve.stopping" for line in this.lines()) == 2)
    assert this.lines()[-1]["kind"] in {"serve.stopping", "serve.stopped"}
    assert this.end()[0] == 0


DEAF = """\
WORDS = ('due',)
import asyncio
import signal

asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = lambda *_: None
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def test_a_server_that_does_not_start_says_why(staged: World, serving: Any) -> None:
    staged.carry("broken", {"vllm/fault.py": "FAULT = 'does-not-start'\n"})
    this = serving()
    _, errors = this.child.communicate(timeout=PATIENCE_S)
    assert this.child.returncode == ServerError.exit_code
    assert "ImportError: cannot import name 'gone_" in errors
    assert this.lines()[-1]["kind"] == "serve.failed"


def test_a_dry_run_starts_nothing_and_gives_reasons(staged: World, tmp_path: Path) -> None:
    ran = staged.good(
        "serve", RECIPE, "--dry-run", "--json", "--set", "max-num-seqs=3", "--api-key-file",
        key_file(tmp_path),
    )  # fmt: skip
    plan = ran.json
    flags = {flag["name"]: (flag["value"], flag["why"]) for flag in plan["flags"]}
    assert flags["--max-num-seqs"] == ("3", "set on the command line")
    assert flags["--enforce-eager"][0] == ""
    assert all(why for _, why in flags.values())
    assert "--max-num-seqs 3" in plan["command"]
    variables = {one["name"]: one["value"] for one in plan["variables"]}
    assert variables["VLLM_API_KEY"] == "***"
    assert "sk-quite-secret-1" not in ran.said
    assert not (staged.store.home / "serve").exists()
    assert not staged.store.environments.exists() or not list(staged.store.environments.glob("*/vllm"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--set", "port=1"), ConfigError),
        (("--use", "many"), UnknownNameError),
        (("--wheel", __file__), ConfigError),
    ],
)
def test_refusals_come_before_anything_is_made(
    staged: World, words: tuple[str, ...], error: type[ConfigError]
) -> None:
    ran = staged.call("serve", RECIPE, *words)
    assert ran.status == error.exit_code, ran.said
    assert not (staged.store.home / "serve").exists()


def test_a_key_that_others_may_read_is_refused(staged: World, tmp_path: Path) -> None:
    ran = staged.call("serve", RECIPE, "--api-key-file", key_file(tmp_path, 0o644))
    assert ran.status == ConfigError.exit_code
    assert "chmod 600" in ran.said
    assert "sk-quite-secret-1" not in ran.said


def test_a_wheel_without_a_locked_runtime_is_refused(staged: World) -> None:
    staged.good("wheel", "--allow-unproved", "words", "--platform", "x86_64")
    ran = staged.call("serve", "smoke", "--wheel", staged.wheels[0])
    assert ran.status == ConfigError.exit_code
    assert "locked runtime" in ran.said
    assert "sparkwright lock runtime" in ran.said
