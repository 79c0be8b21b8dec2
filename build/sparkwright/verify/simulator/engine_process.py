"""The engine's process: it runs idle, so that the end of servers can be tested with a real child.

Run as a program, with the standard library only: ``engine_process.py ORPHAN``. It ends when the server that
started it is gone (its standard input ends), or a minute after that where ORPHAN is 1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_ORPHAN_S = 60.0  # an undetected orphan must not stay on the machine


def main() -> None:
    """Wait for the end of standard input."""
    orphan = sys.argv[1] == "1"
    with contextlib.suppress(OSError):  # the name that `ps` shows
        Path("/proc/self/comm").write_text("VLLM::EngineCor")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if orphan:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    if orphan:
        time.sleep(_ORPHAN_S)


if __name__ == "__main__":
    main()
