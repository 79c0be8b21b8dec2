#!/usr/bin/env python3
"""Write a variant of the NVFP4 reader beside a patched tree, to be checked and timed by `nvfp4_split.py`.

Each variant takes instructions out of the loop and leaves the cache's bytes as they are. None is part of a
carry: what a card gains was not measured. Needs no card and imports nothing of vLLM::

    python3 tests/gpu/nvfp4_variant.py --tree TREE --out VARIANT --variants columns strides
    python3 tests/gpu/nvfp4_split.py --tree VARIANT --part check
    python3 tests/gpu/nvfp4_split.py --tree VARIANT --part speed --fa2 _vllm_fa2_C.abi3.so --out OUT

- ``columns``: a tile's columns are those of the low codes, then of the high ones. Queries are loaded and
  outputs stored in that order, once, where every tile's values were interleaved before.
- ``strides``: V is addressed by the strides of K, which are the same, so that they are computed once.
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


COLUMNS = '''@triton.jit
def nvfp4_columns(HEAD_SIZE_PADDED: tl.constexpr):
    """Dimensions of a head in the order of a tile's columns: those of low codes, then of high ones."""
    column = tl.arange(0, HEAD_SIZE_PADDED)
    return column % (HEAD_SIZE_PADDED // 2) * 2 + column // (HEAD_SIZE_PADDED // 2)


@triton.jit
def load_nvfp4_tile('''
ARANGE = "tl.arange(0, HEAD_SIZE_PADDED)\n"
VARIANTS = {
    "columns": (
        Edit(KV, "", "@triton.jit\ndef load_nvfp4_tile(", COLUMNS),
        Edit(
            KV,
            "def load_nvfp4_tile(",
            "tl.reshape(tl.join(low, high), (TILE_SIZE",
            "tl.reshape(tl.permute(tl.join(low, high), (0, 3, 1, 2)), (TILE_SIZE",
        ),
        Edit(KV, "def store_nvfp4_segment(", f"dim = {ARANGE}", "dim = nvfp4_columns(HEAD_SIZE_PADDED)\n"),
        Edit(READER, "", "    nvfp4_launch_config,\n", "    nvfp4_columns,\n    nvfp4_launch_config,\n"),
        Edit(
            READER,
            "def kernel_unified_attention(",
            f"offs_d = {ARANGE}",
            f"offs_d = {ARANGE}    if USE_NVFP4:\n        offs_d = nvfp4_columns(HEAD_SIZE_PADDED)\n",
        ),
    ),
    "strides": (
        Edit(READER, "V_load = load_nvfp4_tile(", "stride_v_cache_0", "stride_k_cache_0"),
        Edit(READER, "V_load = load_nvfp4_tile(", "stride_v_cache_1", "stride_k_cache_1"),
        Edit(READER, "V_load = load_nvfp4_tile(", "stride_v_cache_2", "stride_k_cache_2"),
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
