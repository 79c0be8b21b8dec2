#!/usr/bin/env python3
"""Compile the NVFP4 KV cache's Triton kernels for cards that are not here, and report what they take.

The backend of the tree that `PYTHONPATH` names is asked for what serving asks it for, on CPU tensors, and
Triton's launcher is stopped after it has compiled for the named architecture: every kernel is the one that
this card would run, with the same constants, alignments and warps. Needs torch, Triton with ``ptxas`` and
what vLLM imports; no card, no driver. Upstream's readers of 16 bits and FP8 are compiled beside it::

    PYTHONPATH=TREE python scripts/nvfp4_compile.py --arch 121 90 --out compile.json

Fails (exit 1) where a kernel wants more shared memory than a block of that card may have, spills more than
``--spill-bytes``, or was not compiled at all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "carries" / "nvfp4-kv-triton"))
from compiling import WARP, Bench
from nvfp4.record import markdown

SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
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
    found = []
    if usage.shared > limit:
        found.append(f"{usage.shared} bytes of shared memory, more than {limit}")
    if usage.spills > spill_bytes:
        found.append(f"{usage.spills} bytes of spills, more than {spill_bytes}")
    if usage.resident == 0:
        found.append("does not fit a multiprocessor")
    return [f"sm_{usage.arch}, {usage.cache}, {usage.launch}, {usage.kernel}: {fault}" for fault in found]


# Powers of two, and one size that is padded to each; 512 is what Gemma 4's layers with full attention have.
HEADS = (64, 80, 96, 128, 192, 256, 320, 512)
LONGEST_FLOAT32 = 256  # the longest heads that a model in float32 may have


def launches(*, full: bool) -> list[tuple[str, Any, Any, Any]]:
    """What is asked for: name, shape, features and batch."""
    from nvfp4.rig import Batch, Features, Shape

    few, many = Batch((40,) * 8, (1,) * 8), Batch((40,) * 160, (1,) * 160)
    steps = {
        "decode 3-D": few,
        "decode 2-D": many,
        "drafts of 4": Batch((40,) * 8, (4,) * 8),
        "drafts of 16": Batch((40,) * 8, (16,) * 8),
        "prefill": Batch((40,) * 2, (200, 1)),
    }
    heads = HEADS if full else (128,)
    found = [
        (name, Shape(4 * kv, kv, head, 16), Features(), step)
        for (name, step), head, kv in product(steps.items(), heads, (8,))
    ]
    causeless, window = Features(causal=False), Features(window=4096)
    found += [(f"{name}, window", Shape(32, 8, 128, 16), window, step) for name, step in steps.items()]
    for name in ("drafts of 4", "drafts of 16"):
        found.append((f"{name}, not causal", Shape(32, 8, 128, 16), causeless, steps[name]))
    if full:
        every = Features(window=128, softcap=30.0, sinks=True)
        for name in ("decode 3-D", "prefill"):
            found.append((f"{name}, window, softcap, sinks", Shape(64, 8, 64, 16), every, steps[name]))
            found.append(
                (f"{name}, HND, blocks of 32", Shape(32, 8, 128, 32, "HND"), Features(), steps[name])
            )
            found.append((f"{name}, one query a head", Shape(8, 8, 128), Features(), steps[name]))
            found.append((f"{name}, 16 queries a head", Shape(64, 4, 128), Features(), steps[name]))
    return found


def measure(bench: Bench, cache: str, name: str, run: Callable[[], None], folder: Path) -> list[Usage]:
    """What the kernels take that *run* launches."""
    bench.compiled.clear()
    run()
    card, found = CARDS[bench.arch], []
    for function, kernel in bench.compiled:
        ptx = folder / "kernel.ptx"
        ptx.write_text(kernel.asm["ptx"], encoding="utf-8")
        registers, stack, spills = parse(assemble(ptx, card))
        meta = kernel.metadata
        found.append(
            Usage(
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
                resident_warps(card, registers, meta.num_warps, meta.shared),
            )
        )
    return found


def constants(kernel: Any) -> str:
    """The block shapes that a kernel was compiled with."""
    names = kernel.src.fn.arg_names
    values = {names[path[0]]: value for path, value in kernel.src.constants.items()}
    shapes = ("BLOCK_M", "TILE_SIZE", "GROUPS", "HEAD_SIZE")
    return " ".join(f"{name}={values[name]}" for name in shapes if name in values)


def assemble(ptx: Path, card: Card) -> str:
    """What Triton's own ``ptxas`` says of a kernel."""
    from triton import knobs

    tool = knobs.nvidia.ptxas_blackwell if card.arch >= 100 else knobs.nvidia.ptxas  # noqa: PLR2004
    command = [tool.path, "-v", f"--gpu-name={card.name}", str(ptx), "-o", str(ptx.with_suffix(".cubin"))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def asked(cache: str, shape: Any, features: Any, batch: Any, dtype: str = "bfloat16") -> None:
    """Launch what one step of serving launches: the pack kernel (NVFP4's only) and the readers."""
    import torch
    from nvfp4.rig import Layer, table

    cpu = torch.device("cpu")
    blocks = batch.blocks(shape.block) + 1
    layer = Layer(cache, shape, blocks, cpu, dtype=getattr(torch, dtype), features=features)
    rows = batch.starts[-1]
    fused = torch.zeros(rows, shape.q_heads + 2 * shape.kv_heads, shape.head, dtype=layer.dtype)
    query, key, value = fused.split([shape.q_heads, shape.kv_heads, shape.kv_heads], dim=1)
    metadata = layer.metadata(batch, table(batch, shape.block, range(blocks - 1), cpu))
    if cache == "nvfp4":
        layer.write(key, value, metadata.slot_mapping)
    query = layer.query_as_served(query.contiguous())
    layer.attend(query, metadata, torch.zeros(query.shape, dtype=layer.dtype))


def compile_all(
    bench: Bench, caches: list[str], *, full: bool, folder: Path
) -> tuple[list[Usage], list[str]]:
    """Every launch over every cache, for the architecture that *bench* pretends to have."""
    found, failed = [], []
    beside = launches(full=False)  # enough to compare with
    wanted = [
        (one, cache, "bfloat16")
        for cache in caches
        for one in (launches(full=full) if cache == "nvfp4" else beside)
    ]
    if full and "nvfp4" in caches:
        wanted += [(one, "nvfp4", "float32") for one in launches(full=True) if one[1].head == LONGEST_FLOAT32]
    for (name, shape, features, batch), cache, dtype in wanted:
        label = f"{name}, heads of {shape.head}" + (f", {dtype}" if dtype != "bfloat16" else "")
        try:
            run = partial(asked, cache, shape, features, batch, dtype)
            found += measure(bench, cache, label, run, folder)
        except Exception as error:  # noqa: BLE001 - reported as this launch's failure
            failed.append(f"sm_{bench.arch}, {cache}, {label}: {reason(error)}")
    return found, failed


def reason(error: Exception) -> str:
    """What went wrong, in one line: a compiler quotes the source first and says why last."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(error).__name__}: " + " ".join(str(cause).split())[-300:]


def distinct(found: list[Usage]) -> list[Usage]:
    """Each kernel once for each launch, as several launches share kernels."""
    return list(dict.fromkeys(found))


def table_of(found: list[Usage]) -> str:
    """For people, in Markdown."""
    head = ["card", "cache", "launch", "kernel", "constants", "warps", "stages", "registers", "stack"]
    rows = []
    for u in found:
        left = (f"sm_{u.arch}", u.cache, u.launch, f"`{u.kernel}`", u.constants, u.warps, u.stages)
        resident = f"{u.resident} of {CARDS[u.arch].warps}"
        rows.append((*left, u.registers, u.stack, u.spills, u.shared, resident))
    return markdown([*head, "spills", "shared", "resident warps"], rows)


def main() -> int:
    """Compile, report, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", nargs="+", type=int, default=[121, 90], choices=sorted(CARDS))
    parser.add_argument("--caches", nargs="+", default=["nvfp4", "fp8", "auto"])
    parser.add_argument(
        "--spill-bytes", type=int, default=40, help="a thread, stores and loads: five registers by default"
    )
    parser.add_argument("--quick", action="store_true", help="one head size only")
    parser.add_argument("--out", type=Path, help="where to write the report (JSON)")
    args = parser.parse_args()
    bench = Bench()
    bench.prepare()
    import triton

    found: list[Usage] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for arch in args.arch:
            bench.pretend(arch)
            some, bad = compile_all(bench, args.caches, full=not args.quick, folder=Path(folder))
            found, failed = found + some, failed + bad
    found = distinct(found)
    ours = [usage for usage in found if usage.cache == "nvfp4"]
    failed += [fault for usage in ours for fault in faults(usage, args.spill_bytes)]
    if not ours:
        failed.append("no kernel of the NVFP4 cache was compiled")
    print(table_of(found))
    print(
        f"\nTriton {triton.__version__}; {len(ours)} launches of NVFP4 kernels compiled, {len(failed)} faults"
    )
    for fault in failed:
        print(f"FAIL {fault}")
    if args.out:
        report = {"triton": triton.__version__, "faults": failed, "kernels": [asdict(one) for one in found]}
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
