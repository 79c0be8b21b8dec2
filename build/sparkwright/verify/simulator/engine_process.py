"""The engine's process: it does nothing but live, so that servers' ends can be tested with a real child.

Run as a program, with nothing but the standard library: ``child.py ORPHAN``. It ends when the server that
started it is gone (its standard input ends), or a minute after that where it is to be an orphan.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_ORPHAN_S = 60.0  # an orphan is a fault to be found, and nothing to leave on somebody's machine


def main() -> None:
    """Wait for the end."""
    orphan = sys.argv[1] == "1"
    with contextlib.suppress(OSError):  # what `ps` calls it
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
