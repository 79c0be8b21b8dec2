"""Import once what upstream's tests import, and run each file of them in a fork.

    python serve_tests.py FOLDER TREE PATH…

It does for a tree's tests what ``child/preloaded.py`` does for probes, by that module's code, and also
imports vLLM and the tests' common configuration from TREE. Each PATH is put before the installed packages.
The process is meant for a network namespace of its own: its loopback device is brought up, so that tests may
talk to themselves and to nothing else. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import socket
import struct
import sys
import traceback
from pathlib import Path

_SIOCSIFFLAGS = 0x8914
_UP_AND_RUNNING = 0x41


def raise_loopback() -> None:
    """Bring the loopback device up; where that is not allowed, it is another namespace's and is up."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def main(folder: str, tree: str, *paths: str) -> int:
    """Import, listen, and fork for each run."""
    raise_loopback()
    preloaded = importlib.import_module("preloaded")
    preloaded.preload("off")
    sys.path[:0] = [tree, *paths]
    for name in ("pytest", "pytest_asyncio", "tests.conftest"):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - a tree without such a file; a broken one fails in each run
            traceback.print_exc()
    # Upstream's clean-up after each test thaws and walks all that was imported: a third of a second a test.
    gc.freeze()
    gc.unfreeze = lambda: None
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("binding")
        listening.listen(64)
        Path("binding").rename("socket")
        preloaded.serve(listening, os.getpid())
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "child"))
    sys.exit(main(*sys.argv[1:]))
