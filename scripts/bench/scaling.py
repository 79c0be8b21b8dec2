"""Measure how compiling kernels scales: units of a release with 1 to 16 compilers at once, beside ninja.

FOLDER is what `scaling_pack.py` made. Each arm compiles all units into a store of its own:

* ``sparkwright``: with as many compilers at once as the arm says, started longest first;
* ``ninja``: the same commands in CMake's order, without a store or records: what ``cmake --build`` runs;
* ``remote``: with the most compilers, an HTTP server of Bazel's layout written behind, then found there by
  an empty store;
* ``cluster``: workers of four compilers each behind a scheduler of Dask on this machine, and that server.

Objects of nvcc contain the number of its process, so those of two compilations differ; what is found on the
server has to be what was written there. Arms that would not fit into --limit seconds are left out and named.
Needs nvcc, g++, git and ninja; no network, no GPU.

    python scripts/bench/scaling.py FOLDER [--jobs 16 8 4 2 1] [--limit 330] [--out result.json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling_parts import Packed, open_packed
from scaling_server import SLOTS, bazel_server, scheduler_with_workers

from sparkwright.base.events import subscribe
from sparkwright.native.build import Builder, compile_units
from sparkwright.native.schedule import makespan
from sparkwright.native.toolchain import configure_environment
from sparkwright.native.workspace import open_workspace

if TYPE_CHECKING:
    from sparkwright.base.events import Event


@dataclass
class Arm:
    """One measurement.

    Attributes:
        kind, jobs: see the module.
        seconds: wall time, of everything from the look into the store to the last object in it.
        compiling: of that, from the first compiler to the last.
        cpu: CPU time of the compilers.
        compiled: number of units that a compiler was started for.
    """

    kind: str
    jobs: int
    seconds: float = 0.0
    compiling: float = 0.0
    cpu: float = 0.0
    compiled: int = 0


# Arms ------------------------------------------------------------------------------------------------


@dataclass
class Measuring:
    """All arms of a run."""

    packed: Packed
    arms: list[Arm] = field(default_factory=list)

    def keep(self, arm: Arm) -> None:
        """Take *arm* down."""
        self.arms.append(arm)
        print(
            f"{arm.kind:11} {arm.jobs:3} jobs {arm.seconds:7.1f} s, compilers {arm.compiling:6.1f} s, "
            f"CPU {arm.cpu:6.1f} s, {arm.compiled:3} compiled",
            flush=True,
        )

    def sparkwright(self, kind: str, jobs: int, *, url: str = "", address: str = "") -> dict[str, str]:
        """Compile through the store, here or (with *address*) on the workers of that scheduler.

        Returns:
            the objects: SHA-256 by path.
        """
        arm = Arm(kind, jobs)
        seen: list[Event] = []
        builder = self.packed.builder(f"{kind}-{jobs}", jobs, url)
        if address:
            builder = replace(builder, elsewhere=_elsewhere(self.packed, builder, address))
        with contextlib.closing(builder.repository), subscribe(seen.append):
            started, began = time.monotonic(), time.time()
            objects = compile_units(builder, self.packed.inputs, self.packed.known, self.packed.units)
            arm.seconds = time.monotonic() - started
            if builder.store.remote is not None:
                builder.store.remote.finish(builder.store)
        ended = [event for event in seen if event.kind == "compile.finished"]
        arm.compiled, arm.cpu = len(ended), sum(event.data["cpu_seconds"] for event in ended)
        starts = [event.at for event in seen if event.kind == "compile.started"]
        if ended:
            arm.compiling = max(event.at for event in ended) - min(starts, default=began)
        self.keep(arm)
        return objects

    def ninja(self, jobs: int) -> None:
        """Run the units' commands by ninja, in a laid-out folder that is not part of the time."""
        packed, arm = self.packed, Arm("ninja", jobs, compiled=len(self.packed.units))
        builder = packed.builder("ninja", jobs)
        with (
            contextlib.closing(builder.repository),
            open_workspace(
                builder.store, builder.repository, packed.known.tree, packed.inputs.toolchain
            ) as work,
        ):
            rules = [
                "rule compile\n command = $order -MD -MF $out.d -MT $out\n depfile = $out.d\n deps = gcc\n"
            ]
            for unit in packed.units:
                words = shlex.join(work.expand(unit.argv)).replace("$", "$$")
                output = os.path.relpath(work.root / unit.output, work.build)
                rules.append(f"build {output}: compile {work.root / unit.source}\n order = {words}\n")
            (work.build / "build.ninja").write_text("\n".join(rules))
            inputs = packed.inputs
            env = configure_environment(inputs.toolchain, inputs.target, work.root, packed.lock)
            before, started = os.times(), time.monotonic()
            command = [str(inputs.toolchain.ninja), "--quiet", "-j", str(jobs)]
            subprocess.run(command, cwd=work.build, env=env, check=True)
            arm.seconds = arm.compiling = time.monotonic() - started
            after = os.times()
            arm.cpu = after[2] + after[3] - before[2] - before[3]
        self.keep(arm)


def _elsewhere(packed: Packed, builder: Builder, address: str) -> Any:
    from sparkwright.cluster import parse_cluster
    from sparkwright.cluster.compiler import ClusterCompiler

    place = parse_cluster(address)
    return ClusterCompiler(
        address=place,
        store=builder.store,
        repository=builder.repository,
        lock=packed.lock,
        logs=builder.logs,
    )


# The run ---------------------------------------------------------------------------------------------


def measure(packed: Packed, jobs: list[int], limit: float) -> tuple[list[Arm], list[str]]:
    """Run all arms that fit, those that matter most first; return them and the names of the others."""
    measuring, began, most = Measuring(packed), time.monotonic(), max(jobs)
    left_out: list[str] = []

    def fits(kind: str, at_once: int) -> bool:
        """Tell if an arm of that kind is expected to end before the limit."""
        known = [arm.cpu for arm in measuring.arms if arm.compiled]
        cpu = known[-1] if known else sum(cost[0] for cost in packed.costs.values())
        fit = time.monotonic() - began + cpu / at_once <= limit
        if not fit:
            left_out.append(f"{kind} {at_once}")
        return fit

    for at_once in sorted(jobs, reverse=True):
        if fits("sparkwright", at_once):
            measuring.sparkwright("sparkwright", at_once)
        if at_once >= most // 4 and fits("ninja", at_once):
            measuring.ninja(at_once)
        if at_once == most:
            _shared(measuring, most, fits)
    for at_once in sorted((one for one in jobs if one < most // 4), reverse=True):
        if fits("ninja", at_once):
            measuring.ninja(at_once)
    return measuring.arms, left_out


def _shared(measuring: Measuring, most: int, fits: Any) -> None:
    """Run the arms that need a server."""
    if not fits("remote", most):
        return
    with bazel_server() as url:
        written = measuring.sparkwright("behind", most, url=url)
        if measuring.sparkwright("remote", most, url=url) != written or measuring.arms[-1].compiled:
            raise SystemExit("the server did not have the objects that were written there")
    if most >= SLOTS and fits("cluster", most):
        with bazel_server() as url, scheduler_with_workers(measuring.packed, most // SLOTS, url) as address:
            measuring.sparkwright("cluster", most, url=url, address=address)


def report(packed: Packed, arms: list[Arm], left_out: list[str]) -> dict[str, Any]:
    """Return all figures: speed-ups are against sparkwright with one compiler."""
    alone = next((arm.seconds for arm in arms if (arm.kind, arm.jobs) == ("sparkwright", 1)), None)
    rows = []
    for arm in arms:
        speedup = alone / arm.seconds if alone else None
        rows.append(vars(arm) | {"speedup": speedup, "efficiency": speedup / arm.jobs if speedup else None})
    seconds = sorted((cost[0] for cost in packed.costs.values()), reverse=True)
    bounds = {jobs: makespan(seconds, jobs) for jobs in sorted({arm.jobs for arm in arms})}
    return {
        "machine": {
            "cores": os.cpu_count(), "processor": _processor(), "parts": dict(packed.inputs.toolchain.parts)
        },
        "units": len(packed.units), "packed-seconds": sum(seconds), "packed-makespans": bounds,
        "arms": rows, "left-out": left_out,
    }  # fmt: skip


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor()


def main() -> None:
    """Read the options, and measure, serve or work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, nargs="+", default=[16, 8, 4, 2, 1])
    parser.add_argument("--units", type=int, help="only so many of the units")
    parser.add_argument("--limit", type=float, default=330.0, help="seconds that all arms may take")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scaling-") as scratch:
        packed = open_packed(chosen.folder.absolute(), Path(scratch).resolve(), chosen.units)
        print(f"{len(packed.units)} units, {dict(packed.inputs.toolchain.parts)}", flush=True)
        found = report(packed, *measure(packed, chosen.jobs, chosen.limit))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({"left-out": found["left-out"]}))


if __name__ == "__main__":
    main()
