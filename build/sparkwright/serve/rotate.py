"""Keep the log of a server that runs for months within a size."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sparkwright.base.events import emit

MOST_BYTES = 64 << 20
KEPT = 4


def rotate(log: Path, *, most: int = MOST_BYTES, kept: int = KEPT) -> bool:
    """Copy *log* to ``LOG.1`` and empty it if it has grown beyond *most* bytes; return true if it had.

    Its writer goes on: it appends. What it writes between the copy and the cut is lost, at most some lines.

    Args:
        log: the file.
        most: in bytes.
        kept: number of older pieces, ``LOG.1`` being the newest.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= most:
        return False
    for number in range(kept - 1, 0, -1):
        older = _piece(log, number)
        if older.exists():
            older.replace(_piece(log, number + 1))
    shutil.copyfile(log, _piece(log, 1))
    os.truncate(log, 0)
    emit("serve.log-rotated", log=str(log), bytes=size)
    return True


def _piece(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
