"""Servers are started, found ready, watched and ended, for real: programs with an engine of their own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from boot_logs import Boot

from sparkwright.base.errors import ServerError, ToolError
from sparkwright.base.events import subscribe
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server import lifecycle
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import ServerProcess

FAKE = Path(__file__).parents[2] / "support" / "fake_server.py"
DEADLINES = Deadlines(connect_s=5, canary_s=20)
PATIENCE_S = 300.0


def server(tmp_path: Path, *arguments: str, **options: Any) -> ServerProcess:
    options = {"deadlines": DEADLINES, "boot_s": 120.0, "end_s": 20.0} | options
    return start_server(
        [sys.executable, FAKE, "--port", "{port}", *arguments], folder=tmp_path / "run", **options
    )


def faulty(tmp_path: Path, *names: str, said: Path | None = None, **options: Any) -> ServerProcess:
    arguments = [part for name in names for part in ("--fault", name)]
    return server(tmp_path, *arguments, *(["--say", str(said)] if said else []), **options)


def boot(this: ServerProcess) -> None:
    async def once() -> None:
        async with this:
            pass

    asyncio.run(once())


def fails(this: ServerProcess) -> ServerFailedError:
    with pytest.raises(ServerFailedError) as caught:
        boot(this)
    assert engines(this) == []
    return caught.value


def engine_of(this: ServerProcess) -> int:
    """Process id of its engine, by what it said."""
    words = this.log.read_text(encoding="utf-8").split()
    return int(words[words.index("engine-process") + 1])


async def engine_up(this: ServerProcess) -> int:
    """The same, once it has said so."""
    await until(lambda: "engine-process" in this.log.read_text(encoding="utf-8"))
    return engine_of(this)


def engines(this: ServerProcess) -> list[int]:
    """Its processes that are alive, whoever their parent is."""
    alive = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("SPARKWRIGHT_SERVER") == this._marker
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
        except psutil.Error:
            continue
    return alive


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.05)


# Ready -------------------------------------------------------------------------------------


def test_a_server_is_ready_when_it_has_answered_and_is_gone_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "said"
    log.write_text(Boot("0.33").text, encoding="utf-8")

    async def use() -> ServerProcess:
        async with server(tmp_path, "--say", str(log)) as this:
            assert this.died is None
            assert this.model == "fake"
            assert this.url == f"http://127.0.0.1:{this.launch.port}"
            assert psutil.pid_exists(await engine_up(this))
            assert len(engines(this)) == 3, "guard, server and engine"
        return this

    this = asyncio.run(use())
    assert engines(this) == []
    assert this.orphans == 0
    assert this.died is None, "it was ended by us"
    assert "goodbye" in this.log.read_text(encoding="utf-8"), "it was asked before it was killed"
    assert (this.facts.version, this.facts.runner) == ("0.33.0", "v1")
    assert this.facts.kv_tokens == 1_069_056, "from /metrics rather than from the log"
    assert this.facts.max_concurrency == 26.1
    assert this.facts.seconds > 0
    assert not list((tmp_path / "run").glob("incident-*"))


def test_boot_time_is_in_the_servers_seconds(tmp_path: Path) -> None:
    plain, fast = server(tmp_path / "a"), server(tmp_path / "b", speed=1000.0)
    boot(plain)
    boot(fast)
    assert 0 < plain.facts.seconds < 60
    assert fast.facts.seconds > 60


def test_what_is_known_beforehand_fills_what_the_log_does_not_say(tmp_path: Path) -> None:
    this = server(tmp_path, known=BootFacts(total_gib=119.68, utilization=0.1))
    boot(this)
    assert this.facts.total_gib == 119.68
    assert this.facts.utilization == 0.7, "it said so itself"


def test_errors_are_those_since_a_mark(tmp_path: Path) -> None:
    async def use() -> None:
        async with server(tmp_path) as this:
            mark = this.mark
            assert this.errors_since(mark) == ()
            with this.log.open("a", encoding="utf-8") as stream:
                stream.write("fine\nERROR 07-01 10:00:00 [a.py:1] bad\n")
            assert this.errors_since(mark) == ("ERROR 07-01 10:00:00 [a.py:1] bad",)
            assert this.errors_since(this.mark) == ()

    asyncio.run(use())


def test_the_environment_is_ours_with_what_was_given(tmp_path: Path) -> None:
    async def use() -> None:
        async with server(tmp_path, environment={"EXTRA": "1"}) as this:
            seen = psutil.Process(await engine_up(this)).environ()
            assert (seen["EXTRA"], seen["PYTHONUNBUFFERED"]) == ("1", "1")
            assert seen["PATH"] == os.environ["PATH"]

    asyncio.run(use())


# A simulated vLLM --------------------------------------------------------------------------

SIMULATOR = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--port", "{port}"]
SPEED = 60.0


def simulator(tmp_path: Path, *arguments: str, **options: Any) -> ServerProcess:
    command = [*SIMULATOR, "--speed", str(SPEED), *arguments]
    build = str(Path(__file__).parents[3] / "build")
    return start_server(
        command, folder=tmp_path / "run", speed=SPEED, environment={"PYTHONPATH": build}, **options
    )


@pytest.mark.parametrize(("host", "root"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")])  # noqa: S104
def test_a_server_at_another_address_is_reached(tmp_path: Path, host: str, root: str) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    this = simulator(tmp_path, "--host", "{host}", host=host, boot_s=600.0)
    boot(this)
    assert this.url == f"http://{root}:{this.launch.port}"


# Not ready ---------------------------------------------------------------------------------


def test_a_boot_that_fails_is_named_with_the_logs_end_and_evidence(tmp_path: Path) -> None:
    log, line = tmp_path / "said", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    log.write_text(f"{Boot().text}{line}\n", encoding="utf-8")
    error = fails(server(tmp_path, "--say", str(log), "--exit", "1"))
    assert (error.cause.name, error.status, error.exit_code) == ("cuda-out-of-memory", 1, 77)
    assert "(cuda-out-of-memory)" in error.what
    assert line in error.because
    assert str(error.evidence) in error.next_step
    summary = json.loads((error.evidence / "incident.json").read_text(encoding="utf-8"))
    assert (summary["cause"], summary["exit_status"]) == ("cuda-out-of-memory", 1)
    assert line in (error.evidence / "log-tail.txt").read_text(encoding="utf-8")
    assert "MemTotal" in (error.evidence / "meminfo.txt").read_text(encoding="utf-8")


def test_a_server_that_was_killed_says_137(tmp_path: Path) -> None:
    error = fails(faulty(tmp_path, "killed"))
    assert (error.cause.name, error.status) == ("killed", -signal.SIGKILL)
    error = fails(server(tmp_path / "shell", "--exit", "137"))
    assert (error.cause.name, error.status) == ("killed", 137)


@pytest.mark.parametrize(
    ("fault", "why", "boot_s"),
    [
        ("never-listens", "nothing listens at its port", 2.0),
        # These listen, so that a few canaries end it long before the boot's time does.
        ("no-tokens", "", 300.0),
        ("error-500", "status", 300.0),
    ],
)
def test_a_server_that_never_answers_runs_out_of_time(tmp_path, fault, why, boot_s):
    deadlines = Deadlines(connect_s=5, canary_s=1)
    error = fails(faulty(tmp_path, fault, "deaf", boot_s=boot_s, end_s=0.5, deadlines=deadlines))
    assert error.cause.name == "boot-timeout"
    assert error.status is None, "it still ran"
    assert why in error.cause.because
    assert (error.evidence / "incident.json").exists()


@pytest.mark.slow
def test_the_last_lines_of_a_log_are_shown_where_time_ran_out(tmp_path: Path) -> None:
    said = tmp_path / "said"
    lines = [
        "ImportError: an optional module is missing",
        *(f"loading {number} of 40" for number in range(41)),
    ]
    said.write_text("\n".join(lines), encoding="utf-8")
    error = fails(faulty(tmp_path, "never-listens", "deaf", boot_s=6.0, end_s=0.5, said=said))
    assert error.cause.name == "boot-timeout"
    assert "loading 40 of 40" in error.log_excerpt
    assert "optional module" not in error.log_excerpt


# FlashInfer's first compilation ----------------------------------------------------------------


def compiling(tmp_path: Path, *arguments: str) -> ServerProcess:
    """A server whose FlashInfer compiles at first, and that may take 6 s after each file."""
    return server(
        tmp_path, *arguments, boot_s=6.0, end_s=0.5, environment={"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / ".cache" / "flashinfer"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.slow
def test_each_file_of_flashinfers_compilers_starts_the_limit_again(tmp_path: Path, cache: Path) -> None:
    this = compiling(tmp_path, "--compile", str(cache), "9")
    boot(this)
    assert this.facts.seconds > 6, "it is time of the boot"


@pytest.mark.slow
def test_a_compiler_that_hangs_is_no_compilation(tmp_path: Path, cache: Path) -> None:
    error = fails(compiling(tmp_path, "--fetch", str(cache / "a.o"), "60", "--fault", "never-listens"))
    assert error.cause.name == "boot-timeout"


# The key -----------------------------------------------------------------------------------


def test_the_key_of_the_shell_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-the-shell")
    this = server(tmp_path)
    assert this.endpoint.api_key == "sk-of-the-shell"
    boot(this)


@pytest.mark.parametrize(
    ("model", "key", "because"),
    [
        ("fake", "", "its requests have none"),
        ("", "", "its requests have none"),
        ("fake", "sk-b", "is not the"),
    ],
)
def test_a_key_that_is_refused_ends_a_start_at_once(tmp_path, model, key, because):
    began = time.monotonic()
    error = fails(server(tmp_path, environment={"FAKE_KEY": "sk-a"}, model=model, api_key=key))
    assert (error.cause.name, error.status) == ("key-refused", None)
    assert because in error.because
    assert "VLLM_API_KEY" in error.next_step
    assert time.monotonic() - began < 60, "of 120 s"
    assert "sk-" not in f"{error} {(error.evidence / 'incident.json').read_text(encoding='utf-8')}"


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        this = server(tmp_path, port=port)
        with pytest.raises(ServerError, match="port-in-use") as caught:
            boot(this)
    assert f"port {port} is already in use by {psutil.Process().name()} (process {os.getpid()})" in (
        caught.value.because
    )
    assert this.pid is None
    assert not this.log.exists()


@pytest.mark.parametrize("fault", ["never-listens", "shares-its-port"])
def test_another_server_that_takes_the_port_meanwhile_does_not_answer_for_ours(tmp_path, fault):
    """One that listens there alone, and one beside which ours listens by SO_REUSEPORT."""
    this = faulty(tmp_path, fault, "waits")
    other = [sys.executable, FAKE, "--port", str(this.launch.port), "--fault", "shares-its-port"]

    async def use() -> None:
        start = asyncio.create_task(this.__aenter__())
        await until(this.log.exists)
        await engine_up(this)
        with subprocess.Popen(other, stdout=subprocess.DEVNULL) as taking:  # noqa: ASYNC220 - no waiting
            try:
                with pytest.raises(ServerFailedError, match="port-in-use") as caught:
                    await start
            finally:
                taking.kill()
        assert f"(process {taking.pid})" in caught.value.because

    asyncio.run(use())
    assert engines(this) == []


@pytest.mark.parametrize(
    "shell",
    [
        'exec env -i PYTHONUNBUFFERED=1 "$@"',
        '(env -i PYTHONUNBUFFERED=1 "$@" &); exec sleep 600',
        '(setsid "$@" &); exec sleep 600',
    ],
    ids=["child", "session", "environment"],
)
def test_a_server_is_known_as_ours_by_ancestors_session_or_environment(tmp_path, shell):
    this = start_server(
        ["sh", "-c", shell, "sh", sys.executable, FAKE, "--port", "{port}"],
        folder=tmp_path / "run",
        deadlines=DEADLINES,
        boot_s=120.0,
        end_s=0.5,
    )
    boot(this)
    assert this.facts.seconds > 0


def test_a_program_that_does_not_exist_is_a_tool_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError):
        boot(start_server(["no-such-server", "{port}"], folder=tmp_path))


# The end -----------------------------------------------------------------------------------


@pytest.fixture
def hasty_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on processes that are said to be on their way out."""
    monkeypatch.setattr(lifecycle, "_DYING_S", 0.5)


def test_what_does_not_hear_is_killed(tmp_path: Path) -> None:
    this = faulty(tmp_path, "deaf", end_s=0.5)
    boot(this)
    assert engines(this) == []
    assert "goodbye" not in this.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("deaf", [False, True])
def test_an_engine_that_left_the_group_is_found_and_killed(tmp_path, deaf, hasty_end):
    faults = ["engine-escapes", *(["deaf"] if deaf else [])]
    heard: list[str] = []

    async def use() -> ServerProcess:
        with subscribe(lambda event: heard.append(event.kind)):
            async with faulty(tmp_path, *faults, end_s=0.5 if deaf else 20.0) as this:
                engine = await engine_up(this)
                await until(lambda: os.getsid(engine) == engine)
        return this

    this = asyncio.run(use())
    assert this.orphans == 1
    assert engines(this) == []
    assert "warning" in heard


def test_an_engine_that_outlives_the_server_is_counted_and_killed(tmp_path: Path, hasty_end: None) -> None:
    async def use() -> ServerProcess:
        async with faulty(tmp_path, "orphan") as this:
            await engine_up(this)
        return this

    this = asyncio.run(use())
    assert this.orphans == 1
    assert engines(this) == []


def test_a_death_meanwhile_is_noticed_and_leaves_evidence(tmp_path: Path) -> None:
    async def use() -> ServerProcess:
        async with faulty(tmp_path, "die-after-first") as this:
            mark = 0
            await until(lambda: this.died is not None)
            assert this.died == 1
            assert any("illegal memory access" in line for line in this.errors_since(mark))
        return this

    this = asyncio.run(use())
    assert this.died == 1
    assert engines(this) == []
    (evidence,) = (tmp_path / "run").glob("incident-*")
    summary = json.loads((evidence / "incident.json").read_text(encoding="utf-8"))
    assert (summary["cause"], summary["exit_status"]) == ("kernel-fault", 1)
    assert "vllm:generation_tokens_total" in (evidence / "metrics.txt").read_text(encoding="utf-8")


def test_a_server_that_hangs_leaves_evidence_once_while_it_lives(tmp_path: Path) -> None:
    async def use() -> None:
        async with server(tmp_path) as this:
            reason = "no canary was answered"
            found = await asyncio.gather(this.keep_evidence(reason), this.keep_evidence(reason))
            assert found == [tmp_path / "run" / "incident-1"] * 2
            assert await this.keep_evidence("asked again") == found[0]
            summary = json.loads((found[0] / "incident.json").read_text(encoding="utf-8"))
            assert (summary["reason"], summary["exit_status"]) == (reason, None)

    asyncio.run(use())
    assert len(list((tmp_path / "run").glob("incident-*"))) == 1


def test_interrupting_a_boot_leaves_nothing_behind(tmp_path: Path) -> None:
    this = faulty(tmp_path, "never-listens", "engine-escapes", "deaf", end_s=0.5)

    async def use() -> None:
        task = asyncio.create_task(this.__aenter__())
        await until(this.log.exists)
        engine = await engine_up(this)
        await until(lambda: os.getsid(engine) == engine)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    assert engines(this) == []
