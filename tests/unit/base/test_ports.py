"""Ports for servers that bind them later: free, and no other program gets them meanwhile."""

import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from sparkwright.base import machine as ports


def handed_out(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Let the kernel say that it hands out the ports that *text* names."""
    file = folder / "range"
    file.write_text(text)
    monkeypatch.setattr(ports, "_RANGE", file)


def test_it_is_free_and_not_one_of_those_that_the_kernel_hands_out() -> None:
    port = ports.free_port()
    first = int(ports._RANGE.read_text().split()[0])
    assert 20_000 <= port < max(first, 32_768)
    socket.create_server(("127.0.0.1", port)).close()  # which sets SO_REUSEADDR, like servers


def test_one_that_another_process_got_or_bound_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from sparkwright.base.machine import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, text=True) as other:
        got = int(other.stdout.readline())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            bound = taken.getsockname()[1]
            monkeypatch.setattr(ports.random, "sample", lambda *_: [got, bound])
            assert ports.free_port() not in {got, bound}
        other.communicate("\n")
    monkeypatch.setattr(ports.random, "sample", lambda *_: [got])
    assert ports.free_port() == got, "the other process has ended"
    with pytest.raises(OSError, match="assign"):
        ports.free_port("203.0.113.1")


@pytest.mark.parametrize("text", ["", "some ports", "1024 60999"])
def test_where_nothing_is_known_or_left_below_a_usual_range_counts(monkeypatch, tmp_path, text):
    handed_out(monkeypatch, tmp_path, text)
    assert ports._first_handed_out() == 32_768


def test_the_kernels_range_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handed_out(monkeypatch, tmp_path, "25000\t60999\n")
    assert ports._first_handed_out() == 25_000
