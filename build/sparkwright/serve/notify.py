"""Tell systemd about a served engine, by the socket of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


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
