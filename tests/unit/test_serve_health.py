"""systemd and containers hear of an engine: over a socket, and by a file that goes stale."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkwright.serve.health import STALE_S, notify, read_state, write_state


@pytest.mark.parametrize("abstract", [False, True])
def test_a_message_arrives(tmp_path: Path, abstract: bool) -> None:  # noqa: FBT001
    shown = f"@sparkwright-test-{tmp_path.name}-{time.time_ns()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + shown[1:] if abstract else shown)
        assert notify("READY=1\nSTATUS=serving", {"NOTIFY_SOCKET": shown})
        assert listener.recv(4096) == b"READY=1\nSTATUS=serving"


def test_without_systemd_nothing_is_sent(tmp_path: Path) -> None:
    assert not notify("READY=1", {})
    assert not notify("READY=1", {"NOTIFY_SOCKET": "relative"})
    assert not notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})


GOOD = ("healthy", "busy", "slow", "starved")


@pytest.mark.parametrize("verdict", [*GOOD, "starting", "restarting", "wedged", "dead"])
def test_a_state_is_good_while_tokens_come(tmp_path: Path, verdict: str) -> None:
    good = verdict in GOOD
    path = tmp_path / "deep" / "state.json"
    write_state(path, verdict, "so it is")
    assert read_state(path) == (good, f"{verdict}: so it is")
    command = [sys.executable, "-m", "sparkwright.serve.health", str(path)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == (0 if good else 1)


def test_an_old_or_broken_state_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, "healthy", "")
    assert read_state(path, now=time.time() + STALE_S - 5)[0]
    assert not read_state(path, now=time.time() + STALE_S + 5)[0]
    path.write_text("{}")
    assert not read_state(path)[0]
    assert not read_state(tmp_path / "gone")[0]
