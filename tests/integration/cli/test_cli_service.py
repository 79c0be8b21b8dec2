"""``sparkwright service`` from installation to removal, with a program in place of systemctl."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import wheelkit
from channel_kit import POLICY, ChannelWorld, now
from command import call
from service_kit import vllm_wheel

from sparkwright.base.machine import free_port
from sparkwright.cli import service
from sparkwright.serve.service import change

# Starts the service as systemd would: by the link, with the key, and ready once it answers.
SYSTEMCTL = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path
from urllib.request import urlopen
words = [word for word in sys.argv[1:] if not word.startswith("-")]
with open({calls!r}, "a") as calls:
    calls.write(" ".join(words) + "\\n")
pid = Path({pid!r})
if words[0] == "show":
    print("ActiveState=" + ("active\\nStatusText=healthy" if pid.exists() else "inactive"))
if words[0] == "stop" and pid.exists():
    os.kill(int(pid.read_text()), signal.SIGTERM)
    pid.unlink()
    time.sleep(0.5)
if words[0] == "start":
    key = Path({key!r}).read_text().strip()
    server = [{link!r} + "/bin/python", "-m", "vllm.server", "--port", "{port}", "--api-key", key]
    quiet, simulator = subprocess.DEVNULL, {{**os.environ, "SIMULATOR": {python!r}}}
    child = subprocess.Popen(server, stdout=quiet, stderr=quiet, env=simulator)
    pid.write_text(str(child.pid))
    for _ in range(300):
        if child.poll() is not None:
            pid.unlink()
            sys.exit("Job failed")
        try:
            urlopen("http://127.0.0.1:{port}/health", timeout=5).close()
            sys.exit(0)
        except OSError:
            time.sleep(0.1)
    sys.exit("timeout")
"""


def canary(url: str, key: str, seconds: float = 5.0) -> str:
    """Request two tokens from the server at *url*; return empty once they came, else the failure."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        listed = requests.get(f"{url}/v1/models", headers=headers, timeout=seconds)
        body = {"model": listed.json()["data"][0]["id"], "prompt": "one two", "max_tokens": 2}
        answer = requests.post(f"{url}/v1/completions", json=body, headers=headers, timeout=seconds)
    except (requests.RequestException, LookupError, ValueError) as error:
        return str(error)
    return "" if answer.ok else answer.text


class Machine:
    """A user's home with a systemd of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port("127.0.0.1")
        self.state = folder / ".local/state/sparkwright/services/chat"
        self.config = folder / ".config/sparkwright"
        self.calls, self.pid = folder / "calls", folder / "pid"
        program = folder / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(
            SYSTEMCTL.format(
                python=sys.executable, calls=str(self.calls), pid=str(self.pid),
                key=str(self.config / "chat.key"), link=str(self.state / "current"), port=self.port,
            )
        )  # fmt: skip
        program.chmod(0o755)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.sparkwright("service", *words)

    def sparkwright(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for module in (service, change):
                patch.setattr(module, "has_systemd", lambda _: True)
            for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "SPARKWRIGHT_API_KEY_FILE"):
                patch.delenv(name, raising=False)
            path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
            store = str(self.folder / "store")
            return call(*words, cwd=self.folder, HOME=str(self.folder), PATH=path, SPARKWRIGHT_HOME=store)

    def install(self, wheel: Path) -> subprocess.CompletedProcess[str]:
        words = ("--name", "chat", "--user", "--port", str(self.port), "--unlocked", "--force")
        return self.run("install", self.recipe(), *words, "--wheel", wheel)

    def recipe(self) -> Path:
        path = self.folder / "chat.toml"
        path.write_text('format = 1\nname = "chat"\ntitle = "Chat"\nmodel = "org/chat"\n')
        return path

    @property
    def status(self) -> Any:
        return json.loads(self.run("status", "chat", "--user", "--json").stdout)[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    if made.pid.exists():
        psutil.Process(int(made.pid.read_text())).kill()


def test_a_service_from_its_installation_to_its_removal(machine: Machine) -> None:
    wheels = machine.folder / "wheels"
    done = machine.install(vllm_wheel(wheels, "1.0"))
    assert done.returncode == 0, done.stderr
    key = (machine.config / "chat.key").read_text().strip()
    assert canary(f"http://127.0.0.1:{machine.port}", key) == ""
    assert canary(f"http://127.0.0.1:{machine.port}", "") != ""
    unit = "sparkwright-chat.service"
    called = machine.calls.read_text().splitlines()
    assert called == [
        "daemon-reload",
        f"stop {unit}",
        f"reset-failed {unit}",
        f"start {unit}",
        f"enable {unit}",
    ]
    shown = machine.status
    assert (shown["wheel"], shown["serves"]) == ("vllm-1.0-py3-none-any.whl", True)

    done = machine.run(
        "upgrade", "chat", "--user", "--unlocked", "--wheel", vllm_wheel(wheels, "2.0", "boot-engine")
    )
    assert done.returncode == 77
    assert "the environment before it serves again" in done.stderr
    assert canary(f"http://127.0.0.1:{machine.port}", key) == ""
    assert machine.status["wheel"] == "vllm-1.0-py3-none-any.whl"

    done = machine.run("upgrade", "chat", "--user", "--unlocked", "--wheel", vllm_wheel(wheels, "3.0"))
    assert done.returncode == 0, done.stderr
    assert "vllm-3.0" in done.stdout
    assert len(list((machine.state / "environments").glob("*/bin/python"))) == 2, "the failed one is pruned"
    done = machine.run("upgrade", "chat", "--previous", "--user", "--json")
    assert json.loads(done.stdout)["wheel"] == "vllm-1.0-py3-none-any.whl"
    assert key not in done.stdout + done.stderr

    done = machine.run("uninstall", "chat", "--user", "--purge")
    assert done.returncode == 0, done.stderr
    assert "disable sparkwright-chat.service" in machine.calls.read_text()
    assert not machine.state.exists()
    assert not (machine.config / "chat.key").exists()
    assert machine.run("status", "chat", "--user").returncode == 10


def test_it_follows_a_channel(machine: Machine, tmp_path: Path) -> None:
    tag = f"py3-none-manylinux_2_28_{platform.machine()}"
    channel = ChannelWorld(tmp_path / "channel")

    def offer(version: str, *faults: str) -> str:
        wheel = channel.audited(vllm_wheel(channel.dist, version, *faults, tag=tag))
        channel.promote_file(wheel, "stable", requires="")
        return wheel.name

    first = offer("1.0+spark.1")
    place, chat = channel.published / "channels/stable", ("chat", "--user")
    words = (machine.recipe(), "--name", "chat", "--user", "--port", str(machine.port), "--force")
    done = machine.run("install", *words, "--channel", place)
    assert done.returncode == 21, "no key of the publisher is pinned"
    pinned = machine.sparkwright("channel", "key", "pin", place, "--digest", channel.digest("stable"))
    assert pinned.returncode == 0, pinned.stderr
    done = machine.run("install", *words, "--channel", place)
    assert done.returncode == 0, done.stderr
    assert (machine.status["wheel"], machine.status["channel"]) == (first, str(place))

    broken = offer("1.0+spark.2", "boot-engine")
    done = machine.run("upgrade", *chat)
    assert done.returncode == 77
    assert "the environment before it serves again" in done.stderr
    assert machine.status["wheel"] == first

    better = offer("1.0+spark.3")
    done = machine.run("upgrade", *chat)
    assert done.returncode == 0, done.stderr
    assert machine.status["wheel"] == better != broken
    channel.publisher().rollback("stable", POLICY, now(), to=1, reason="it is slow")
    done = machine.run("upgrade", *chat, "--json")
    assert json.loads(done.stdout)["wheel"] == first, "what the channel took back is not served"

    (runtime,) = channel.published.rglob(f"wheels/*/{wheelkit.sha256(channel.dist / first)}/runtime/*")
    shutil.rmtree(machine.folder / "store")
    runtime.unlink()
    done = machine.run("upgrade", *chat)
    assert done.returncode == 21
    assert "the runtime of" in done.stderr
    assert machine.status["wheel"] == first


def test_without_a_systemd_nothing_is_begun(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    words = ("service", "install", machine.recipe(), "--user")
    done = call(*words, cwd=Path(__file__).parent, HOME=str(machine.folder))
    assert done.returncode == 10
    assert "Docker" in done.stderr
    assert not machine.state.exists()


def test_a_folder_that_cannot_be_written_is_named(machine: Machine) -> None:
    (machine.folder / ".config").write_text("a file")
    words = ("install", machine.recipe(), "--user", "--dry-run", "--models")
    assert machine.run(*words, machine.folder / ".config").returncode == 2
    assert machine.run(*words, machine.folder / "models").returncode == 0
    done = machine.run("install", machine.recipe(), "--user", "--wheel", vllm_wheel(machine.folder, "1.0"))
    assert done.returncode == 10
    assert "cannot be written" in done.stderr
    assert "--user" in done.stderr
