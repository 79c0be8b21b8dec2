"""Tell systemd and health checks about a served engine: by the socket of sd_notify(3), and by a file.

``python -m sparkwright.serve.health FILE``, for health checks of containers, exits with 0 if the engine
brings tokens, else with 1. It reads the state that the watchdog writes, and sends no request of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STALE_S = 90.0
"""A state that is older than this is not believed: the watchdog itself has stopped."""
VARIABLE = "SPARKWRIGHT_STATE"


def notify(message: str, environment: Mapping[str, str] | None = None) -> bool:
    """Send *message*, such as ``READY=1``, to systemd; return false where it does not listen."""
    address = (os.environ if environment is None else environment).get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall(message.encode())
    except OSError:
        return False
    return True


def write_state(path: Path, verdict: str, because: str, **more: Any) -> None:
    """Write the engine's state to *path*, in one step: a `WatchVerdict`, ``starting`` or ``restarting``."""
    state = {"at": time.time(), "verdict": verdict, "because": because, **more}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(state) + "\n", encoding="utf-8")
    part.replace(path)


def read_state(path: Path, *, now: float | None = None) -> tuple[bool, str]:
    """Return whether the engine whose state is in *path* brings tokens, and a line that says so."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        age = (time.time() if now is None else now) - float(state["at"])
        verdict, because = str(state["verdict"]), str(state["because"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"its state cannot be read: {error}"
    if age > STALE_S:
        return False, f"its state is {age:.0f} s old: the watchdog has stopped"
    line = f"{verdict}: {because}" if because else verdict
    return verdict in {"healthy", "busy", "slow", "starved"}, line


def main(arguments: list[str]) -> int:
    """Write the state to standard output; return the exit status."""
    named = arguments[0] if arguments else os.environ.get(VARIABLE, "")
    told = f"name the file of the state, or set {VARIABLE}"
    good, line = read_state(Path(named)) if named else (False, told)
    os.write(1, f"{line}\n".encode())
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
