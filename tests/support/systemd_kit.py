"""A service of sparkwright under a real systemd, in a container."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoint_kit
import requests
from channel_kit import ChannelWorld
from nspawn_kit import SHARED, Container
from service_kit import served_wheel
from world import wait_until

from sparkwright.base.machine import free_port

PROGRAM = Path(sys.prefix) / "bin" / "sparkwright"
NAME, UNIT = "chat", "sparkwright-chat.service"
PATIENCE_S = 180.0


class Offers:
    """A signed channel of wheels whose engine is the simulator."""

    def __init__(self, shared: Path) -> None:
        self.world = ChannelWorld(shared / "channel")
        self.shared = shared

    @property
    def place(self) -> Path:
        """The channel, as the container sees it."""
        return SHARED / (self.world.published / "channels" / "stable").relative_to(self.shared)

    def pin(self, service: Service) -> None:
        """Let the one who runs *service* trust the publisher."""
        done = service.sparkwright(
            "channel", "key", "pin", self.place, "--digest", self.world.digest("stable")
        )
        assert done.returncode == 0, done.stderr

    def offer(self, version: str, *faults: str) -> str:
        """Promote a wheel of *version* with *faults*; return its name."""
        tag = f"py3-none-manylinux_2_28_{platform.machine()}"
        wheel = self.world.audited(served_wheel(self.world.dist, version, *faults, tag=tag))
        self.world.promote_file(wheel, "stable", requires="")
        return wheel.name


def write_recipe(folder: Path) -> Path:
    """Return a recipe of the user's own, with a small checkpoint."""
    model = checkpoint_kit.write_checkpoint(folder / "model", checkpoint_kit.DENSE).name
    (folder / "mine.toml").write_text(
        f'format = 1\nname = "{NAME}"\ntitle = "Chat"\nmodel = "{SHARED}/{model}"\nweights = "none"\n'
        "[flags]\ngpu-memory-utilization = 0.1\nmax-model-len = 4096\n"
    )
    return SHARED / "mine.toml"


@dataclass
class Service:
    """One service in a container, of the system or of a user.

    Attributes:
        container: where it runs.
        user: whose it is; empty for one of the system.
        port: where it listens.
    """

    container: Container
    user: str = ""
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))

    # Commands in the container --------------------------------------------------------------------

    def sparkwright(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.container.run(PROGRAM, *words, user=self.user)

    def systemctl(self, *words: str) -> str:
        scope = ("--user",) if self.user else ()
        return self.container.run("systemctl", *scope, *words, user=self.user).stdout.strip()

    def shows(self, name: str) -> str:
        """Return a property of the unit, as systemd has it."""
        return self.systemctl("show", UNIT, "--property", name, "--value")

    def journal(self) -> str:
        scope = ("--user", "--unit") if self.user else ("--unit",)
        return self.container.run(
            "journalctl", *scope, UNIT, "--no-pager", "--output", "cat", user=self.user
        ).stdout

    def install(self, recipe: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.sparkwright(
            "service", "install", recipe, "--name", NAME, "--port", str(self.port), *words
        )

    @property
    def _units(self) -> Path:
        return self.path(self._home(".config/systemd/user") if self.user else "/etc/systemd/system")

    def change(self, *lines: str, words: str = "") -> None:
        """Change the unit by *lines* and more *words* of its command alone, and start it again."""
        text = (self._units / UNIT).read_text()
        command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        place = self._units / f"{UNIT}.d"
        place.mkdir(exist_ok=True)
        (place / "test.conf").write_text(
            "\n".join(["[Service]", "ExecStart=", f"{command} {words}", *lines, ""])
        )
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed", UNIT)
        self.systemctl("restart", UNIT)

    def _home(self, below: str) -> str:
        return f"/home/{self.user}/{below}"

    # What it has left -----------------------------------------------------------------------------

    def path(self, inside: str | Path) -> Path:
        """Return a path of the container, on the host."""
        return self.container.merged / str(inside).lstrip("/")

    @property
    def state(self) -> Path:
        place = self._home(".local/state/sparkwright") if self.user else "/var/lib/sparkwright"
        return self.path(place) / "services" / NAME

    @property
    def key(self) -> str:
        folder = self._home(".config/sparkwright") if self.user else "/etc/sparkwright"
        return (self.path(folder) / f"{NAME}.key").read_text().strip()

    def logs(self, kind: str) -> list[Path]:
        """Return files or folders of its runs by a pattern, the oldest first."""
        return sorted(self.state.glob(f"store/serve/runs/*/{kind}"))

    # Its processes --------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Command lines of its processes, by their ids in the container."""
        group = Path("/sys/fs/cgroup") / self.shows("ControlGroup").lstrip("/") / "cgroup.procs"
        pids = self.container.run("cat", group).stdout.split()
        lines = {}
        for pid in map(int, pids):
            raw = self.container.run("cat", f"/proc/{pid}/cmdline").stdout
            lines[pid] = raw.replace("\0", " ").strip()
        return lines

    def signal(self, name: str, part: str) -> None:
        """Send a signal to the one process with *part* in its command line that is no guard."""
        (pid,) = (pid for pid, line in self.processes().items() if part in line and "guard.py" not in line)
        self.container.run("kill", f"-{name}", str(pid), check=True)

    # Its answers ----------------------------------------------------------------------------------

    def get(self, path: str, key: str | None = None) -> int:
        """Return the status of an answer; 0 without one."""
        header = {"Authorization": f"Bearer {self.key if key is None else key}"}
        try:
            return requests.get(f"http://127.0.0.1:{self.port}{path}", headers=header, timeout=10).status_code
        except requests.RequestException:
            return 0

    def chat(self, text: str = "Hello") -> str:
        """Return the answer of the model; empty without one."""
        asked = [{"role": "user", "content": text}]
        body = {"model": NAME, "messages": asked, "max_tokens": 16, "temperature": 0}
        header = {"Authorization": f"Bearer {self.key}"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        try:
            answer = requests.post(url, json=body, headers=header, timeout=60)
            return str(answer.json()["choices"][0]["message"]["content"])
        except (requests.RequestException, KeyError):
            return ""

    @property
    def status(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.sparkwright("service", "status", NAME, "--json").stdout)
        return found[0]

    def wait_for_answer(self) -> None:
        wait_until(self.chat, patience_s=PATIENCE_S)

    def wait_for_journal(self, text: str) -> None:
        wait_until(lambda: text in self.journal(), patience_s=PATIENCE_S)
