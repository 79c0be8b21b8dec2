"""Ports for servers that bind them later."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
_HIGHEST = 32_768
_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of *host* that nothing is bound to, and that the kernel gives to no other program.

    A server binds it seconds or minutes later. Were it one of those that the kernel hands out, any program
    that asks for some port could have it by then.
    """
    for port in random.sample(range(_LOWEST, _first_handed_out()), _TRIES):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _first_handed_out() -> int:
    """Return the first port that the kernel may give away, or a usual one where few are left below it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
        if first >= _LOWEST + _TRIES:
            return first
    return _HIGHEST
