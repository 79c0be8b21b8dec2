"""Count the compilers that a change starts once kernels are compiled, and time the wheel.

Compiles everything first where the store has it not yet, which takes the better part of an hour on two cores.
Whole processes, on a copy of the checkout; the events that the program logs tell what was compiled.

    python scripts/bench/native.py [--platform aarch64] [--arch 12.1a]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from edits import copy_checkout, edit_patch

from sparkwright.pipeline.checkout import open_checkout

CARRY = "uma-clamp"  # its patch is written for the default release, so that files can be added to it
KERNEL = "csrc/quantization/fp4/nvfp4_quant_entry.cu"


@dataclass(frozen=True)
class Outcome:
    """One ``sparkwright wheel``.

    Attributes:
        seconds: of the whole process.
        units: names of the units that a compiler was started for.
        cpu_seconds: CPU time of those.
        peak_mib: most resident memory of all compilers together.
        wheel: what the program says of the wheel; of the error, where the wheel was refused.
    """

    seconds: float
    units: tuple[str, ...]
    cpu_seconds: float
    peak_mib: int
    wheel: dict[str, object]


def wheel(root: Path, *options: str) -> Outcome:
    """Make the wheel of the checkout in *root*."""
    command = [sys.executable, "-m", "sparkwright", "wheel", "--kernels", "native", "--json"]
    before = set(logs(root))
    started = time.perf_counter()
    done = subprocess.run([*command, "--root", str(root), *options], check=False, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - started
    # With a changed kernel, a wheel that has binaries of upstream's beside compiled ones is refused.
    told = json.loads(done.stdout)
    if done.returncode and told["error"]["kind"] != "NativeInputsError":
        raise SystemExit(f"it ended with status {done.returncode}: {told['error']}")
    lines = [line for log in set(logs(root)) - before for line in log.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    compiled = [event for event in events if event["kind"] == "native.compiled"]
    return Outcome(
        seconds,
        tuple(event["unit"] for event in events if event["kind"] == "compile.started"),
        sum(event["cpu_seconds"] for event in compiled),
        max((event["peak_mib"] for event in compiled), default=0),
        told,
    )


def logs(root: Path) -> list[Path]:
    """Return the logs of events in *root*."""
    return sorted((root / ".sparkwright" / "events").glob("*.jsonl"))


def report(what: str, outcome: Outcome) -> None:
    """Print one line."""
    print(
        f"{what:36} {outcome.seconds:7.1f} s, {len(outcome.units):3} units compiled, "
        f"{outcome.cpu_seconds:7.1f} s of CPU time, peak {outcome.peak_mib} MiB",
        flush=True,
    )


def main() -> None:
    """Make the wheel, repeat it, and make it again after edits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", default="aarch64")
    parser.add_argument("--arch", default="")
    chosen = parser.parse_args()
    options = ["--platform", chosen.platform, *(["--arch", chosen.arch] if chosen.arch else [])]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        copy_checkout(open_checkout(Path(__file__).parent).root, root)
        report("what the store lacks", wheel(root, *options))
        report("nothing changed", wheel(root, *options))
        edit_patch(root, CARRY)
        report("a Python file changed", wheel(root, *options, "--allow-unproved", CARRY))
        edit_patch(root, CARRY, KERNEL, "//")
        report("one kernel changed", wheel(root, *options, "--allow-unproved", CARRY))


if __name__ == "__main__":
    main()
