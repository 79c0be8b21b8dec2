"""Programs that stand in for processes of a real server, with the standard library only.

``child.py engine ORPHAN`` is the engine's process: it runs idle, so that the end of servers can be tested
with a real child, and ends when its server is gone, or a minute after that where ORPHAN is 1.
``child.py compiler SECONDS`` has a compiler's name for a while, and leaves a file in FlashInfer's cache.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_ORPHAN_S = 60.0  # an undetected orphan must not stay on the machine


def _engine(*, orphan: bool) -> None:
    """Wait for the end of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if orphan:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    if orphan:
        time.sleep(_ORPHAN_S)


def _compiler(seconds: float) -> None:
    """Leave a file in FlashInfer's cache, and wait."""
    if base := os.environ.get("FLASHINFER_WORKSPACE_BASE"):
        folder = Path(base) / ".cache" / "flashinfer" / "0" / "cached_ops" / f"simulated{os.getpid()}"
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.so").write_bytes(b"")
    time.sleep(seconds)


if __name__ == "__main__":
    kind, value = sys.argv[1:]
    with contextlib.suppress(OSError):  # the name that `ps` shows
        Path("/proc/self/comm").write_text({"engine": "VLLM::EngineCor", "compiler": "nvcc"}[kind])
    if kind == "engine":
        _engine(orphan=value == "1")
    else:
        _compiler(float(value))
