"""A listener at the server's port is found only where connections to the server would reach it."""

import os
import socket
import subprocess
import sys

import pytest

from sparkwright.base.machine import free_port
from sparkwright.engine.server.processes import other_listener

EVERYWHERE = "0.0.0.0"  # noqa: S104 - whose listeners are told apart
LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # as vLLM does
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen()
print("listens", flush=True)
input()
"""


@pytest.mark.parametrize(
    ("ours", "other", "answers"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", EVERYWHERE, False),
        (EVERYWHERE, "127.0.0.1", True),
        (EVERYWHERE, EVERYWHERE, True),
        (EVERYWHERE, "127.0.0.2", False),
        (EVERYWHERE, "::1", False),
        ("", "127.0.0.1", True),
        ("", EVERYWHERE, True),
        ("", "::", True),
        ("", "127.0.0.2", False),
    ],
)
def test_another_listener_is_found_where_it_may_answer(ours, other, answers):
    """Connections go to 127.0.0.1; where *ours* is empty, the server's own listener cannot be seen."""
    port = free_port()
    with socket.socket() as listener:
        if ours:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                listener.setsockopt(socket.SOL_SOCKET, option, 1)
            listener.bind((ours, port))
            listener.listen()
        with subprocess.Popen(
            [sys.executable, "-c", LISTEN, other, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "listens\n"
            found = other_listener("127.0.0.1", port, lambda one: one.pid == os.getpid())
            process.communicate("\n")
    assert (f"(process {process.pid})" in found) if answers else found == ""
