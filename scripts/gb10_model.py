#!/usr/bin/env python3
"""Expect attention's time on a GB10 from a Hopper's, with an error bar.

In three steps, of which only the second needs a card::

    PYTHONPATH=TREE python scripts/gb10_model.py work --tree TREE --kernels COMPILED.json… --out work.json
    python scripts/gb10_model.py collect --tree TREE --out counters.json
    python scripts/gb10_model.py predict --work work.json --times times.json [--counters counters.json]

``work`` counts what each case of `tests/gpu/nvfp4_split.py` does on each card: bytes from shapes,
instructions from the code that `scripts/nvfp4_compile.py --out` compiled for it, thread blocks from the
tree's own choice of segments. It needs torch and Triton, as the tree does. ``collect`` runs those cases once
each under ``ncu``, on the card, and keeps bytes, instructions by pipe, active warps and cycles. ``predict``
applies the model of `tests/gpu/nvfp4/floor.py` to recorded times, checks it between the cards that were
measured, and prints the expectation; with counters, bytes and instructions of the card that they were
collected on are theirs.

``times.json`` has microseconds by card and case: ``{"H200": {"decode, 4k x 1, 32/8 heads of 128": 17.7}}``;
names that end in ``, before`` are NVFP4 without the split, and ``, 16 bits`` upstream's kernel over 16 bits.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "carries" / "nvfp4-kv-triton"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
from nvfp4.floor import CARDS, Case, Check, Expected, Work, check, predict, reach
from nvfp4.geometry import DRAFTS, Step, find, value, work
from nvfp4.record import markdown

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = {"H200": 90, "H100": 90, "GB10": 121}
SOURCE, OTHER, TARGET = "H200", "H100", "GB10"
BEFORE, PLAIN = ", before", ", 16 bits"
UPSTREAM_BLOCKS, UPSTREAM_SEGMENTS = 128, 16
MAIN, REDUCTION = "kernel_unified_attention", "reduce_nvfp4_segments"
METRICS = {
    "dram__bytes_read.sum": "bytes",
    "gpu__time_duration.sum": "ns",
    "sm__cycles_elapsed.max": "cycles",
    "sm__inst_executed.sum": "issue",
    "sm__inst_executed_pipe_alu.sum": "alu",
    "sm__inst_executed_pipe_fma.sum": "fma",
    "sm__inst_executed_pipe_lsu.sum": "lsu",
    "sm__inst_executed_pipe_xu.sum": "xu",
    "sm__warps_active.avg.per_cycle_active": "warps",
    "launch__grid_size": "blocks",
    "launch__occupancy_limit_registers": "by registers",
    "launch__occupancy_limit_shared_mem": "by shared memory",
}


def steps() -> Iterator[Step]:
    """Return the cases of `nvfp4_split.py` with heads of 128, prefill left out, over NVFP4."""
    for queries in DRAFTS:
        for context in (4096, 32768):
            for requests in (1, 8, 64):
                yield Step(requests, context, queries)


def segments_of(step: Step, bench: Any, card: str, block_m: int) -> int:
    """Return the number of segments that the imported tree chooses on *card*; *bench* pretends to be it."""
    bench.pretend(ARCHITECTURES[card])
    import torch
    from vllm.triton_utils import triton
    from vllm.v1.attention.ops import triton_nvfp4_kv as kv

    dtype = torch.bfloat16
    kv.nvfp4_segments.cache_clear()  # its arguments do not name the card
    output, _, _ = kv.nvfp4_segment_buffers(step.heads, step.size, dtype, torch.device("meta"))
    rows = output.numel() // triton.next_power_of_2(step.size)
    taken = step.requests * step.queries * step.heads
    return int(kv.nvfp4_segments(rows, taken, step.blocks(block_m), block_m, step.size, dtype, 0))


def counted(kernels: list[dict[str, Any]], bench: Any, card: str) -> dict[str, Work]:
    """Return the work of every case on *card*: as the tree serves it, and with contexts not split.

    Not split, as upstream over 16 bits, decode of few requests had 16 segments and all else one.
    """
    found, arch = {}, ARCHITECTURES[card]
    for step in steps():
        whole = find(kernels, arch, step, split=False)
        few = step.queries == 1 and step.requests <= UPSTREAM_BLOCKS // step.kv_heads
        for name, segments in {
            "": segments_of(step, bench, card, value(whole, "BLOCK_M")),
            BEFORE: UPSTREAM_SEGMENTS if few else 1,
        }.items():
            kernel = find(kernels, arch, step, split=True) if segments > 1 else whole
            found[f"{step}{name}"] = work(step, kernel, segments)
        plain = replace(step, cache="auto")
        with suppress(LookupError):
            kernel = find(kernels, arch, plain, split=few)
            found[f"{step}{PLAIN}"] = work(plain, kernel, UPSTREAM_SEGMENTS if few else 1)
    return found


def count_work(args: argparse.Namespace) -> None:
    """Write the work of every case on every card."""
    from compiling import Bench

    bench = Bench()
    bench.prepare()
    kernels = [kernel for file in args.kernels for kernel in json.loads(file.read_text())["kernels"]]
    found = {
        card: {name: asdict(one) for name, one in counted(kernels, bench, card).items()}
        for card in ARCHITECTURES
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_counters(text: str) -> list[dict[str, Any]]:
    """Return the counters of each launch out of what ``ncu --csv --page raw --print-units base`` prints.

    Raises:
        ValueError: it has no table, or a column is missing.
    """
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError(f"ncu printed no table: {text[-300:]}")
    head, _, *rows = csv.reader(io.StringIO("\n".join(lines[first:])))
    if missing := {"Kernel Name", *METRICS} - set(head):
        raise ValueError(f"ncu has no {', '.join(sorted(missing))}")
    found = []
    for row in rows:
        named = dict(zip(head, row, strict=True))
        numbers = {short: float(named[name].replace(",", "")) for name, short in METRICS.items()}
        found.append({"kernel": named["Kernel Name"].partition("(")[0], **numbers})
    return found


def by_case(launches: list[dict[str, Any]], names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the launches of each case: a reader, and the reduction that may follow it.

    Raises:
        ValueError: there are not as many readers as cases, or another kernel is among them.
    """
    groups: list[list[dict[str, Any]]] = []
    for launch in launches:
        if launch["kernel"] == MAIN:
            groups.append([launch])
        elif launch["kernel"] == REDUCTION and groups:
            groups[-1].append(launch)
        else:
            raise ValueError(f"{launch['kernel']} is no kernel of a case")
    if len(groups) != len(names):
        raise ValueError(f"{len(groups)} readers were launched for {len(names)} cases")
    return dict(zip(names, groups, strict=True))


def collect(args: argparse.Namespace) -> None:
    """Run every case once under ``ncu`` and write its counters.

    Raises:
        ChildProcessError: ncu failed.
    """
    script = [sys.executable, str(ROOT / "tests" / "gpu" / "nvfp4_counters.py"), "--tree", str(args.tree)]
    command = [args.ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS)]
    command += ["--kernel-name", f"regex:^({MAIN}|{REDUCTION})$", *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"ncu ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    names = [line["case"] for line in said if "case" in line]
    device = next(line["device"] for line in said if "device" in line)
    found = {"device": device, "cases": by_case(read_counters(done.stdout), names)}
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def with_counters(compiled: Work, launches: list[dict[str, Any]]) -> Work:
    """Return *compiled* work with the bytes, instructions and blocks that were counted on the card.

    Instructions of no pipe of its own are the rest of those that were issued.
    """
    main, *others = launches
    pipes = [name for name in ("alu", "fma", "lsu", "xu") if main[name]]
    known = {name: main[name] / main["blocks"] for name in pipes}
    rest = main["issue"] / main["blocks"] - sum(known.values())
    shared = {name: sum(one[name] for one in others) for name in pipes} if others else {}
    return replace(
        compiled,
        bytes=sum(one["bytes"] for one in launches),
        per_block=known | {"rest": max(0.0, rest)},
        blocks=int(main["blocks"]),
        shared=shared,
    )


def cases_of(
    works: Mapping[str, Mapping[str, Any]], times: Mapping[str, float], counters: Mapping[str, Any]
) -> list[Case]:
    """Return the measured cases of one card, with counted work where there is any."""
    found = []
    for name, us in times.items():
        if name in works:
            compiled = Work(**works[name])
            counts = counters.get(name)
            found.append(Case(name, with_counters(compiled, counts) if counts else compiled, us))
    return found


def expectations(
    works: Mapping[str, Any], times: Mapping[str, Any], counters: Mapping[str, Any]
) -> tuple[list[Expected], Check | None, dict[str, float]]:
    """Return expectations for the GB10, the check between the measured cards, and the source's reach."""
    device = str(counters.get("device", ""))
    counts = {card: counters["cases"] if card in device else {} for card in (SOURCE, OTHER)} if device else {}
    measured = {
        card: cases_of(works[card], times[card], counts.get(card, {}))
        for card in (SOURCE, OTHER)
        if card in times
    }
    source = CARDS[SOURCE]
    both = OTHER in measured
    checked = check(CARDS[OTHER], measured[OTHER], source, measured[SOURCE]) if both else None
    shares = reach(measured[SOURCE], source)
    error = checked.error if checked else 1.0
    found = [
        predict(case, source, Work(**works[TARGET][case.name]), CARDS[TARGET], shares, error=error)
        for case in measured[SOURCE]
        if case.name in works[TARGET]
    ]
    return found, checked, shares


def report(args: argparse.Namespace) -> None:
    """Print the check and the expectations."""
    works, times = (json.loads(file.read_text()) for file in (args.work, args.times))
    counters = json.loads(args.counters.read_text()) if args.counters else {}
    found, checked, shares = expectations(works, times, counters)
    if checked:
        rows = [
            (expected.name, f"{expected.us:.0f}", f"{us:.0f}", f"{us / expected.us:.2f}", expected.limit)
            for expected, us in checked.rows
        ]
        print(markdown([f"{OTHER} to {SOURCE}", "expected, µs", "measured", "ratio", "limit"], rows))
        print(f"\nTypical error {checked.typical:.2f}, largest {checked.error:.2f}, {len(rows)} cases\n")
    else:
        print("No case was measured on both cards: the bar has no check behind it\n")
    print("Reach: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()) + "\n")
    rows = [
        (
            one.name, f"{one.us:,.0f}", f"{one.low:,.0f} to {one.high:,.0f}", one.limit, one.limit_before,
            f"{one.delay:.2f}",
        )
        for one in found
    ]  # fmt: skip
    print(markdown([f"{TARGET}, expected", "µs", "bar", "limit", f"limit on {SOURCE}", "delay"], rows))


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    counting = parts.add_parser("work", help="count the work of every case; no card")
    counting.add_argument("--kernels", type=Path, nargs="+", required=True, help="of nvfp4_compile.py --out")
    counting.set_defaults(run=count_work)
    collecting = parts.add_parser("collect", help="run every case under ncu, on the card")
    collecting.add_argument("--ncu", default="ncu")
    collecting.set_defaults(run=collect)
    for part in (counting, collecting):
        part.add_argument("--tree", type=Path, required=part is collecting, help="the patched tree")
        part.add_argument("--out", type=Path, required=True)
    telling = parts.add_parser("predict", help="print check and expectations; no card")
    telling.add_argument("--work", type=Path, required=True)
    telling.add_argument("--times", type=Path, required=True)
    telling.add_argument("--counters", type=Path)
    telling.set_defaults(run=report)
    return parser.parse_args()


def main() -> int:
    """Run one step."""
    args = arguments()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
