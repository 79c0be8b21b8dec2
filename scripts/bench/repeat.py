"""A repeated ``sparkwright wheel``, whole processes: nothing changed, and after edits of one carry.

A copy of the checkout is edited, never the checkout itself. An edit of prose changes what the wheel says
of itself; an edit of a patch changes the code, and with it the proof that has to be made.

    python scripts/bench/repeat.py [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edits import copy_checkout, edit_patch, edit_prose

from sparkwright.pipeline.checkout import open_checkout

CARRY = "shm-busy-loop"


def wheel(root: Path, *options: str) -> float:
    """Return the seconds that one whole ``sparkwright wheel`` in *root* takes."""
    command = [sys.executable, "-m", "sparkwright", "wheel", "--quiet", "--root", str(root), *options]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def report(what: str, seconds: list[float]) -> None:
    """Print one line: the median and its range."""
    print(f"{what:44} {statistics.median(seconds):5.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")


def main() -> None:
    """Time each kind of repetition and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    runs = range(1, parser.parse_args().runs + 1)
    original = open_checkout(Path(__file__).parent).root
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        copy_checkout(original, root)
        wheel(root)
        report("nothing changed", [wheel(root) for _ in runs])
        prose, unproved, proved = [], [], []
        for _ in runs:
            edit_prose(root, CARRY)
            prose.append(wheel(root))
        report("a carry's prose edited", prose)
        for _ in runs:
            edit_patch(root, CARRY)
            unproved.append(wheel(root, "--allow-unproved", CARRY))
        report("a carry's patch edited, proof not asked for", unproved)
        for _ in runs:
            edit_patch(root, CARRY)
            proved.append(wheel(root))
        report("a carry's patch edited, and proved", proved)


if __name__ == "__main__":
    main()
