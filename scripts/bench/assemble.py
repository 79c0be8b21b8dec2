#!/usr/bin/env python3
"""How long `sparkwright.wheel.assemble` takes, beside ``wheel unpack`` and ``wheel pack``.

    python scripts/bench/assemble.py vllm-0.24.0-cp38-abi3-manylinux_2_28_aarch64.whl

Both change the same ten Python files of the same wheel, in turn, several rounds in one run.
The peer is the ``wheel`` package from the package index; install it first.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from sparkwright import process
from sparkwright.canonical import sha256_file
from sparkwright.wheel import AssemblyPlan, assemble, local_version, parse_name

CHANGED = 10


def changes_of(wheel: Path) -> dict[str, bytes | None]:
    """Ten Python files of *wheel* with a comment at their end."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name != "vllm/_version.py"]
        step = max(1, len(names) // CHANGED)
        return {name: archive.read(name) + b"# changed\n" for name in names[::step][:CHANGED]}


def ours(plan: AssemblyPlan, folder: Path) -> float:
    """Seconds that our assembler takes."""
    started = time.perf_counter()
    assemble(plan, folder)
    return time.perf_counter() - started


def theirs(plan: AssemblyPlan, folder: Path) -> tuple[float, float]:
    """Seconds that ``wheel unpack`` and ``wheel pack`` take; writing the changes is not counted."""
    command = [sys.executable, "-m", "wheel"]
    unpacking = process.run([*command, "unpack", "-d", folder, plan.upstream_wheel]).seconds
    tree = next(folder.iterdir())
    for path, content in plan.changes.items():
        (tree / path).write_bytes(content or b"")
    (folder / "packed").mkdir()
    packing = process.run([*command, "pack", "-d", folder / "packed", tree]).seconds
    return unpacking, packing


def main() -> int:
    """Measure, print a line for each round, then the medians and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="folder on the disk to measure")
    arguments = parser.parse_args()
    if importlib.util.find_spec("wheel") is None:
        print(f"the package 'wheel' is missing; install it with: {sys.executable} -m pip install wheel")
        return 2
    release = parse_name(arguments.wheel.name).version
    plan = AssemblyPlan(
        arguments.wheel, sha256_file(arguments.wheel), local_version(release, "bench", "1a2b3c4d"),
        changes_of(arguments.wheel),
    )  # fmt: skip
    mine: list[float] = []
    peer: list[float] = []
    for number in range(arguments.rounds):
        folder = Path(tempfile.mkdtemp(dir=arguments.scratch))
        try:
            mine.append(ours(plan, folder / "ours"))
            (folder / "theirs").mkdir()
            unpacking, packing = theirs(plan, folder / "theirs")
            peer.append(unpacking + packing)
        finally:
            shutil.rmtree(folder)
        print(
            f"round {number + 1}: assemble {mine[-1]:.2f} s; "
            f"wheel unpack {unpacking:.2f} s + wheel pack {packing:.2f} s = {peer[-1]:.2f} s"
        )
    middle, other = statistics.median(mine), statistics.median(peer)
    print(f"median: assemble {middle:.2f} s, wheel {other:.2f} s: {other / middle:.1f} x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
