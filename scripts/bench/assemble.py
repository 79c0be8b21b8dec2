#!/usr/bin/env python3
"""Time `sparkwright.wheel.assemble` beside ``wheel unpack`` and ``wheel pack``.

    python scripts/bench/assemble.py [WHEEL]

Both change the same ten Python files of the same wheel, in turn, several rounds in one run.
By default it is the pinned aarch64 wheel, from the store. The peer is the ``wheel`` package.
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

from sparkwright.base.digests import sha256_file
from sparkwright.base.process.run import run
from sparkwright.git.repository import open_repository
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.store.paths import open_store
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access, open_source
from sparkwright.wheel.assemble import AssemblyPlan, assemble
from sparkwright.wheel.names import local_version, parse_name

CHANGED = 10


def changes_of(wheel: Path) -> dict[str, bytes | None]:
    """Ten Python files of *wheel* with a comment at their end."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name != "vllm/_version.py"]
        step = max(1, len(names) // CHANGED)
        return {name: archive.read(name) + b"# changed\n" for name in names[::step][:CHANGED]}


def pinned_wheel() -> Path:
    """Upstream's aarch64 wheel of the pinned release, fetched when it is not in the store."""
    store = open_store()
    lock = open_checkout(Path(__file__).parent).lock
    access = Access(store, open_repository(store.git), read_settings())
    open_source("index", access).wheel(lock, "aarch64")
    artifact = lock.wheel("aarch64")
    return store.named_file(artifact.sha256, artifact.filename)


def ours(plan: AssemblyPlan, folder: Path) -> float:
    """Return the seconds that our assembler takes."""
    started = time.perf_counter()
    assemble(plan, folder)
    return time.perf_counter() - started


def theirs(plan: AssemblyPlan, folder: Path) -> tuple[float, float]:
    """Return the seconds that ``wheel unpack`` and ``wheel pack`` take, without writing the changes."""
    command = [sys.executable, "-m", "wheel"]
    unpacking = run([*command, "unpack", "-d", folder, plan.upstream_wheel]).seconds
    tree = next(folder.iterdir())
    for path, content in plan.changes.items():
        (tree / path).write_bytes(content or b"")
    (folder / "packed").mkdir()
    packing = run([*command, "pack", "-d", folder / "packed", tree]).seconds
    return unpacking, packing


def main() -> int:
    """Measure, print a line for each round, then the medians and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="upstream's wheel; the pinned one by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="folder on the disk to measure")
    arguments = parser.parse_args()
    if importlib.util.find_spec("wheel") is None:
        print(f"the package 'wheel' is missing; install it with: {sys.executable} -m pip install wheel")
        return 2
    wheel = arguments.wheel or pinned_wheel()
    version = local_version(parse_name(wheel.name).version, "bench", "1a2b3c4d")
    plan = AssemblyPlan(wheel, sha256_file(wheel), version, changes_of(wheel))
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
