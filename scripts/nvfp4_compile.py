#!/usr/bin/env python3
"""Compile the NVFP4 KV cache's Triton kernels for cards that are not here, and report what they take.

The backend of the tree that `PYTHONPATH` names is asked for what serving asks it for, on CPU tensors, and
Triton's launcher is stopped after it has compiled for the named architecture: every kernel is the one that
this card would run, with the same constants, alignments and warps. Needs torch, Triton with ``ptxas`` and
what vLLM imports; no card, no driver. Upstream's readers of 16 bits and FP8 are compiled beside it::

    PYTHONPATH=TREE python scripts/nvfp4_compile.py --arch 121 90 --out compile.json

A tree of a release whose FlashInfer reads NVFP4 lacks the carries' kernels: upstream's readers are compiled
with all launches then. The JSON has the instructions of each kernel's main loop, by pipe.

Fails (exit 1) where a carry's kernel needs more shared memory than a block of that card may have, spills more
than ``--spill-bytes``, or was not compiled at all. `ALLOWANCES` are the kernels that may spill more.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvfp4_matrix import Launch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "carries" / "nvfp4-kv-triton"))
from compiling import WARP, Bench
from nvfp4.record import markdown
from nvfp4.sass import Counts, count
from nvfp4_matrix import DTYPES, HEADS, asker, launches, nvfp4_in_triton

SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
HEAD = re.compile(r"heads of (\d+)")
ROWS = re.compile(r"\bBLOCK_M=(\d+)")
OURS = "nvfp4"
REGISTER_FILE, ALLOCATED = 65536, 256  # of a multiprocessor; granularity a warp
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block


@dataclass(frozen=True)
class Card:
    """What an architecture has: bytes of shared memory for a block and a multiprocessor, and its warps.

    The figures are those of the CUDA C++ Programming Guide's table of technical specifications.
    """

    arch: int
    block_bytes: int
    multiprocessor_bytes: int
    warps: int

    @property
    def name(self) -> str:
        """As ``ptxas`` calls it; Triton takes the features of this one architecture (``a``)."""
        return f"sm_{self.arch}a" if self.arch >= 90 else f"sm_{self.arch}"  # noqa: PLR2004


CARDS = {
    card.arch: card
    for card in (
        Card(80, 163 << 10, 164 << 10, 64),
        Card(90, 227 << 10, 228 << 10, 64),
        Card(120, 99 << 10, 100 << 10, 48),
        Card(121, 99 << 10, 100 << 10, 48),
    )
}


@dataclass(frozen=True)
class Usage:
    """What one kernel takes. *shared* in bytes a block; *spills* in bytes a thread; *resident* in warps."""

    arch: int
    cache: str
    launch: str
    kernel: str
    constants: str
    warps: int
    stages: int
    registers: int
    stack: int
    spills: int
    shared: int
    resident: int


@dataclass(frozen=True)
class Allowance:
    """Bytes of spills a thread that some kernels may have beyond ``--spill-bytes``.

    Attributes:
        arch: architecture that the kernels are compiled for.
        spills: the most bytes a thread, stores and loads.
        kernel: name of the kernel.
        rows: fewest rows of Q in a block.
        launch: the one launch that is allowed them; empty for all.
    """

    arch: int
    spills: int
    kernel: str = "kernel_unified_attention"
    rows: int = 0
    launch: str = ""

    def holds(self, usage: Usage) -> bool:
        """Return whether *usage* is of a kernel that this is for."""
        rows = ROWS.search(usage.constants)
        return (
            (usage.arch, usage.kernel) == (self.arch, self.kernel)
            and self.launch in {"", usage.launch}
            and (int(rows[1]) if rows else 0) >= self.rows
        )


# The bytes are those of Triton 3.7.1, so that a kernel that spills more than it did is a fault.
ALLOWANCES = (
    # wgmma shares a tile between 64 or 128 rows: drafts with heads of 256 were read in a half to a quarter of
    # the time of blocks of 32 rows on an H200.
    Allowance(90, 180, rows=64),
    Allowance(90, 264, rows=128),
    # One layer of a drafter without a split; all other launches of a GB10 keep to the limit.
    Allowance(121, 44, launch="drafts of 16, not causal, window, heads of 256"),
)


def parse(text: str) -> tuple[int, int, int]:
    """Registers, bytes of stack and bytes of spills out of what ``ptxas -v`` says.

    Raises:
        ValueError: it does not say it.
    """
    spilled, registers = SPILLS.search(text), REGISTERS.search(text)
    if spilled is None or registers is None:
        raise ValueError(f"ptxas did not say what the kernel takes: {text[:300]}")
    stack, stores, loads = map(int, spilled.groups())
    return int(registers[1]), stack, stores + loads


def resident_warps(card: Card, registers: int, warps: int, shared: int) -> int:
    """Warps of one kernel that a multiprocessor can hold, by registers, shared memory and its own limit."""
    one_warp = -(-registers * WARP // ALLOCATED) * ALLOCATED
    by_registers = REGISTER_FILE // one_warp // warps
    by_shared = card.multiprocessor_bytes // (shared + RESERVED)
    return min(by_registers, by_shared, card.warps // warps) * warps


def faults(usage: Usage, spill_bytes: int) -> list[str]:
    """What is too much."""
    limit = CARDS[usage.arch].block_bytes
    spill_bytes = max(spill_bytes, *(one.spills if one.holds(usage) else 0 for one in ALLOWANCES))
    found = []
    if usage.shared > limit:
        found.append(f"{usage.shared} bytes of shared memory, more than {limit}")
    if usage.spills > spill_bytes:
        found.append(f"{usage.spills} bytes of spills, more than {spill_bytes}")
    if usage.resident == 0:
        found.append("does not fit a multiprocessor")
    return [f"sm_{usage.arch}, {usage.cache}, {usage.launch}, {usage.kernel}: {fault}" for fault in found]


@dataclass
class Assembler:
    """``ptxas`` and ``nvdisasm`` of Triton; each kernel is asked for once."""

    card: Card
    folder: Path
    known: dict[str, tuple[int, int, int, Counts]] = field(default_factory=dict)

    def usage(self, kernel: Any) -> tuple[int, int, int, Counts]:
        """Return registers, bytes of stack, bytes of spills and instructions of a compiled *kernel*."""
        if kernel.hash not in self.known:
            ptx = self.folder / "kernel.ptx"
            ptx.write_text(kernel.asm["ptx"], encoding="utf-8")
            taken = parse(assemble(ptx, self.card))
            counts = count(disassemble(ptx.with_suffix(".cubin")))
            self.known[kernel.hash] = (*taken, counts)
        return self.known[kernel.hash]


def measure(
    bench: Bench, tools: Assembler, cache: str, name: str, run: Callable[[], None]
) -> list[tuple[Usage, Counts]]:
    """Return what the kernels take that *run* launches, and their instructions."""
    bench.compiled.clear()
    run()
    found = []
    for function, kernel in bench.compiled:
        registers, stack, spills, counts = tools.usage(kernel)
        meta = kernel.metadata
        usage = Usage(
            bench.arch,
            cache,
            name,
            function.fn.__name__,
            constants(kernel),
            meta.num_warps,
            meta.num_stages,
            registers,
            stack,
            spills,
            meta.shared,
            resident_warps(tools.card, registers, meta.num_warps, meta.shared),
        )
        found.append((usage, counts))
    return found


def constants(kernel: Any) -> str:
    """The block shapes that a kernel was compiled with."""
    names = kernel.src.fn.arg_names
    values = {names[path[0]]: value for path, value in kernel.src.constants.items()}
    shapes = ("BLOCK_M", "TILE_SIZE", "GROUPS", "HEAD_SIZE", "SEGMENTS", "IS_3D")
    return " ".join(f"{name}={values[name]}" for name in shapes if name in values)


def assemble(ptx: Path, card: Card) -> str:
    """What Triton's own ``ptxas`` says of a kernel."""
    from triton import knobs

    tool = knobs.nvidia.ptxas_blackwell if card.arch >= 100 else knobs.nvidia.ptxas  # noqa: PLR2004
    command = [tool.path, "-v", f"--gpu-name={card.name}", str(ptx), "-o", str(ptx.with_suffix(".cubin"))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def disassemble(cubin: Path) -> str:
    """Return the instructions of a compiled kernel as text."""
    from triton import knobs

    command = [str(Path(knobs.nvidia.ptxas.path).with_name("nvdisasm")), "-c", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compile_all(
    bench: Bench, tools: Assembler, wanted: list[tuple[str, Launch]], spill_bytes: int
) -> tuple[dict[Usage, Counts], list[str]]:
    """Compile every launch over its cache, for the architecture that *bench* pretends to have."""
    found: dict[Usage, Counts] = {}
    failed: list[str] = []
    ask = asker()
    for cache, launch in wanted:
        try:
            some = measure(bench, tools, cache, launch.label, partial(ask, cache, launch))
        except Exception as error:  # noqa: BLE001 - reported as this launch's failure
            failed.append(f"sm_{bench.arch}, {cache}, {launch.label}: {reason(error)}")
            continue
        for usage, counts in some:
            if usage not in found:
                failed += faults(usage, spill_bytes) if cache == OURS else []
            found[usage] = counts
    return found, failed


def chosen(caches: list[str], heads: list[int], dtypes: list[str], *, full: bool) -> list[tuple[str, Launch]]:
    """Return caches and launches to compile; other caches than ours get fewer where ours is there."""
    ours = nvfp4_in_triton()
    return [
        (cache, launch)
        for cache in caches
        if ours or cache != OURS
        for launch in launches(full=full and (cache == OURS or not ours))
        if launch.shape.head in heads and launch.dtype in (dtypes if cache == OURS else dtypes[:1])
    ]


def reason(error: Exception) -> str:
    """What went wrong, in one line: a compiler quotes the source first and says why last."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(error).__name__}: " + " ".join(str(cause).split())[-300:]


def table_of(found: Iterable[Usage]) -> str:
    """Return all kernels as a table in Markdown."""
    head = ["card", "cache", "launch", "kernel", "constants", "warps", "stages", "registers", "stack"]
    rows = []
    for u in found:
        left = (f"sm_{u.arch}", u.cache, u.launch, f"`{u.kernel}`", u.constants, u.warps, u.stages)
        resident = f"{u.resident} of {CARDS[u.arch].warps}"
        rows.append((*left, u.registers, u.stack, u.spills, u.shared, resident))
    return markdown([*head, "spills", "shared", "resident warps"], rows)


def worst(found: Iterable[Usage]) -> str:
    """Return a table of the most that a kernel takes, for each card, cache, head size and kind of kernel."""
    groups: dict[tuple[int, str, int, str], list[Usage]] = {}
    for one in found:
        head = int(HEAD.search(one.launch)[1])  # type: ignore[index]
        groups.setdefault((one.arch, one.cache, head, one.kernel), []).append(one)
    rows = []
    for (arch, cache, head, kernel), some in sorted(groups.items()):
        most = [max(getattr(one, name) for one in some) for name in ("registers", "spills", "shared")]
        least = min(one.resident for one in some)
        rows.append(
            (f"sm_{arch}", cache, head, f"`{kernel}`", len(some), *most, f"{least} of {CARDS[arch].warps}")
        )
    return markdown(
        ["card", "cache", "heads", "kernel", "launches", "registers", "spills", "shared", "resident warps"],
        rows,
    )


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", nargs="+", type=int, default=[121, 90], choices=sorted(CARDS))
    parser.add_argument("--caches", nargs="+", default=[OURS, "fp8", "auto"])
    parser.add_argument("--heads", nargs="+", type=int, default=list(HEADS), choices=HEADS)
    parser.add_argument(
        "--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, help="other caches: the first alone"
    )
    parser.add_argument(
        "--spill-bytes", type=int, default=40, help="a thread, stores and loads: five registers by default"
    )
    parser.add_argument("--quick", action="store_true", help="one head size, in bfloat16 alone")
    parser.add_argument("--list", action="store_true", help="print the launches, and compile none")
    parser.add_argument("--out", type=Path, help="where to write the report (JSON)")
    return parser.parse_args()


def main() -> int:
    """Compile, report, judge."""
    args = arguments()
    bench = Bench()
    bench.prepare()
    import triton

    found: dict[Usage, Counts] = {}
    failed: list[str] = []
    for arch in args.arch:
        bench.pretend(arch)
        wanted = chosen(args.caches, args.heads, args.dtypes, full=not args.quick)
        if args.list:
            print("\n".join(f"sm_{arch}, {cache}, {launch.label}" for cache, launch in wanted))
            continue
        with tempfile.TemporaryDirectory() as folder:
            some, bad = compile_all(bench, Assembler(CARDS[arch], Path(folder)), wanted, args.spill_bytes)
        found, failed = found | some, failed + bad
    if args.list:
        return 0
    if not found:
        failed.append("no kernel was compiled")
    print(f"{table_of(found)}\n\n{worst(found)}")
    print(f"\nTriton {triton.__version__}; {len(found)} launches compiled, {len(failed)} faults")
    for fault in failed:
        print(f"FAIL {fault}")
    if args.out:
        kernels = [asdict(u) | {"instructions": asdict(counts)} for u, counts in found.items()]
        report = {"triton": triton.__version__, "faults": failed, "kernels": kernels}
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
