"""systemd hears of an engine over its socket."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from sparkwright.serve.notify import notify


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
