"""A program that stands in for a compiler: it has the name of one for a while, and leaves a file in a cache.

Run as a program, with the standard library only: ``compiler_process.py SECONDS``. The file goes to the folder
that ``FLASHINFER_WORKSPACE_BASE`` names; without that nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Take the name, write, and wait."""
    with contextlib.suppress(OSError):  # the name that `ps` shows
        Path("/proc/self/comm").write_text("nvcc")
    if base := os.environ.get("FLASHINFER_WORKSPACE_BASE"):
        folder = Path(base) / ".cache" / "flashinfer" / "0" / "cached_ops" / f"simulated{os.getpid()}"
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.so").write_bytes(b"")
    time.sleep(float(sys.argv[1]))


if __name__ == "__main__":
    main()
