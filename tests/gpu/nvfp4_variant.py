#!/usr/bin/env python3
"""Write a variant of the NVFP4 reader beside a patched tree, to be checked and timed by `nvfp4_split.py`.

None is part of a carry: what a card gains was not measured. Needs no card and imports nothing of vLLM::

    python3 tests/gpu/nvfp4_variant.py --tree TREE --out VARIANT --variants tall
    python3 tests/gpu/nvfp4_split.py --tree VARIANT --part check
    python3 tests/gpu/nvfp4_split.py --tree VARIANT --part speed --fa2 _vllm_fa2_C.abi3.so --out OUT

- ``tall``: on a Hopper card drafts and prefill with heads of 256 in 16 bits take up to 128 rows of Q in a
  block instead of 32, so that a tile is decoded once for 16 drafts in six heads instead of four times: two
  groups of four warps at 128 rows, one at 64, each with a wgmma of 64 rows.
- ``rows``: every launch reads tiles by halves, low codes and high ones apart, as decode does. Q is loaded and
  the output stored in order, and each is permuted once in between, instead of being addressed out of order.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

OPS = Path("vllm", "v1", "attention", "ops")
KV, READER = "triton_nvfp4_kv.py", "triton_unified_attention.py"
FILES = (KV, READER, "triton_attention_helpers.py")


class Edit(NamedTuple):
    """In *file*, at its first place behind the first *after*, *old* becomes *new*."""

    file: str
    after: str
    old: str
    new: str


ORDERS = '''@triton.jit
def nvfp4_halved(rows):
    """Rows with their even columns first, then the odd ones."""
    pairs = tl.reshape(rows, (rows.shape[0], rows.shape[1] // 2, 2))
    return tl.reshape(tl.permute(pairs, (0, 2, 1)), (rows.shape[0], rows.shape[1]))


@triton.jit
def nvfp4_interleaved(rows):
    """Put the columns of `nvfp4_halved` back in their order."""
    halves = tl.reshape(rows, (rows.shape[0], 2, rows.shape[1] // 2))
    return tl.reshape(tl.permute(halves, (0, 2, 1)), (rows.shape[0], rows.shape[1]))


@triton.jit
def load_nvfp4_tile('''
ARANGE = "tl.arange(0, HEAD_SIZE_PADDED)\n"
BY_COLUMN = "nvfp4_columns(HEAD_SIZE_PADDED)\n"
SCALED = "        if USE_FP8_Q_DESCALE or USE_NVFP4:\n"
SCORES = "    if USE_NVFP4:\n        # Tiles hold values"
LIMIT = "        return 64\n    long = "
TALL = """        return 64
    if head_size_padded == 256 and dtype.itemsize == 2 and _on_hopper():
        return 128
    long = """
NARROW = '"num_warps": 4 if narrow or block_m == 16 else 8,'
FEW = '"num_warps": 4 if narrow or block_m == 16 or tall and block_m == 64 else 8,'
STAGES = '"num_stages": 3 if long and block_m == 16 else 5,'
FEWER = '"num_stages": 3 if long and block_m == 16 or tall and block_m == 128 else 5,'
OPTIONS = "    options = {\n"
KNOWN = """    tall = head_size_padded == 256 and dtype.itemsize == 2 and _on_hopper()
    options = {
"""
VARIANTS = {
    "tall": (
        Edit(KV, "def nvfp4_most_rows(", LIMIT, TALL),
        Edit(KV, "def nvfp4_launch_config(", OPTIONS, KNOWN),
        Edit(KV, "def nvfp4_launch_config(", NARROW, FEW),
        Edit(KV, "def nvfp4_launch_config(", STAGES, FEWER),
    ),
    "rows": (
        Edit(KV, "", "@triton.jit\ndef load_nvfp4_tile(", ORDERS),
        Edit(
            KV,
            "def nvfp4_by_halves(",
            "    return split or triton.next_power_of_2(head_size) <= 128\n",
            "    return True\n",
        ),
        Edit(
            KV,
            "def nvfp4_by_halves(",
            "    if max_query_len > 1 or num_queries_per_kv > 8 or block_m > 16:\n        return False\n",
            "",
        ),
        Edit(
            KV,
            "def store_nvfp4_segment(",
            f"dim = {BY_COLUMN}",
            f"acc = nvfp4_interleaved(acc)\n        dim = {ARANGE}",
        ),
        Edit(
            READER,
            "",
            "    nvfp4_columns,\n",
            "    nvfp4_halved,\n    nvfp4_interleaved,\n",
        ),
        Edit(READER, "def kernel_unified_attention(", f"offs_d = {BY_COLUMN}", f"offs_d = {ARANGE}"),
        Edit(READER, "", SCORES, f"    if NVFP4_HALVES:\n        Q = nvfp4_halved(Q)\n{SCORES}"),
        Edit(
            READER,
            "",
            SCALED,
            f"        if NVFP4_HALVES:\n            acc = nvfp4_interleaved(acc)\n{SCALED}",
        ),
    ),
}


def edited(text: str, edit: Edit) -> str:
    """Return *text* with *edit* made.

    Raises:
        ValueError: the text has no such place.
    """
    start = text.find(edit.after)
    place = text.find(edit.old, start) if start >= 0 else -1
    if place < 0:
        raise ValueError(f"{edit.file} has no {edit.old.strip()!r} after {edit.after!r}")
    return text[:place] + edit.new + text[place + len(edit.old) :]


def write(tree: Path, out: Path, names: list[str]) -> list[Path]:
    """Write the three files of *tree* to *out* with the variants *names*; return them."""
    (out / OPS).mkdir(parents=True, exist_ok=True)
    texts = {name: (tree / OPS / name).read_text(encoding="utf-8") for name in (KV, READER)}
    for name in names:
        for edit in VARIANTS[name]:
            texts[edit.file] = edited(texts[edit.file], edit)
    for name in FILES:
        if name in texts:
            (out / OPS / name).write_text(texts[name], encoding="utf-8")
        else:
            shutil.copyfile(tree / OPS / name, out / OPS / name)
    return [out / OPS / name for name in FILES]


def main() -> int:
    """Write the variant and print its files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="the patched tree, or its three files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=sorted(VARIANTS), default=sorted(VARIANTS))
    args = parser.parse_args()
    for file in write(args.tree, args.out, args.variants):
        sys.stdout.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
