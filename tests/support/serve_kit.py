"""A running ``sparkwright serve --json`` as a process: its lines, its processes, its end."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import requests
from killed import stopped
from world import wait_until

SECRET = "sk-quite-secret-1"  # noqa: S105 - a made-up key, which nothing may show
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Serving:
    """A process that serves, with the lines that it prints into the file *out*."""

    def __init__(self, child: subprocess.Popen[str], out: Path, patience_s: float = 180.0) -> None:
        self.child, self.out, self.patience_s = child, out, patience_s
        self.family: list[psutil.Process] = []

    def lines(self) -> list[dict[str, Any]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def wait_for(self, kind: str, **values: Any) -> dict[str, Any]:
        """Return the first line of *kind* in which each of *values* is at least so large."""

        def found() -> dict[str, Any] | None:
            fitting = (line for line in self.lines() if line["kind"] == kind)
            line = next(
                (one for one in fitting if all(one[name] >= least for name, least in values.items())), None
            )
            if line is None and self.child.poll() is not None:
                raise AssertionError(self.child.communicate()[1] + self.out.read_text())
            return line

        line: dict[str, Any] = wait_until(found, patience_s=self.patience_s)
        self.family = psutil.Process(self.child.pid).children(recursive=True)
        return line

    def end(self) -> tuple[int, str]:
        """Return status and standard error once it has ended, with all its processes."""
        _, errors = self.child.communicate(timeout=self.patience_s)
        _, alive = psutil.wait_procs(self.family, timeout=30)
        assert not alive, alive
        return self.child.returncode, errors

    def stop(self, number: int, when: Callable[[], object] = lambda: True) -> tuple[int, str]:
        """Send it a signal once *when* is true; return as `end` does."""
        ran = stopped(self.child, number, when)
        return ran.status, ran.err

    def kill(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()

    def chat(self, url: str, text: str, key: str = "", **fields: Any) -> dict[str, Any]:
        """Return the message that answers *text*."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0, **fields}
        body["model"] = requests.get(f"{url}/models", headers=bearer(key), timeout=60).json()["data"][0]["id"]
        answer = requests.post(f"{url}/chat/completions", json=body, headers=bearer(key), timeout=120)
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    def command_lines(self) -> str:
        """Return the command lines of the process and of all that it started."""
        everyone = (psutil.Process(self.child.pid), *self.family)
        return "\n".join(" ".join(process.cmdline()) for process in everyone)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def key_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(mode)
    return path


def all_files(run: Path) -> str:
    """Log, events and evidence of a run."""
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) >= 2, files
    return "\n".join(path.read_text(errors="replace") for path in files)
