"""A command that is run on one candidate, here or on another machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkwright.base.digests import to_json
from sparkwright.base.process import Completed, ProcessLimits, run_limited
from sparkwright.store import write_atomically

OUTPUT, SPEC = "output.log", "spec.json"
_NO_LIMIT_MIB = 1 << 40


def run_words(
    words: Sequence[str],
    tree: Path,
    described: Mapping[str, object],
    folder: Path,
    *,
    wheel: Path | None,
    cwd: Path,
    timeout_s: float,
    stop: threading.Event | None = None,
) -> Completed:
    """Run a command on a candidate that is made; its output and the candidate's description go to *folder*.

    Args:
        words: the command; see `command.Command`.
        tree: the folder with the merged package.
        described: what the command reads of the candidate.
        folder: for `OUTPUT` and `SPEC`.
        wheel: the wheel, where it is asked for.
        cwd: where it runs.
        timeout_s: longest run, in seconds.
        stop: ends it.

    Raises:
        LimitsExceeded: it took too long, or was stopped.
    """
    spec, place = folder / SPEC, "" if wheel is None else str(wheel)
    write_atomically(spec, to_json(described))
    environment = {**os.environ, "SPARKWRIGHT_TREE": str(tree), "SPARKWRIGHT_SPEC": str(spec)}
    environment |= {"SPARKWRIGHT_WHEEL": place} if place else {}
    return run_limited(
        [word.replace("{wheel}", place).replace("{tree}", str(tree)) for word in words],
        limits=ProcessLimits(timeout_s, _NO_LIMIT_MIB),
        cwd=cwd,
        env=environment,
        log=folder / OUTPUT,
        stop=stop,
    )
