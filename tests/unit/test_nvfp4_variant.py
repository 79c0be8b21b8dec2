"""Variants of the NVFP4 reader: every edit finds its place in what the carry adds, and changes no other."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import nvfp4_variant as variant

ROOT = Path(__file__).resolve().parents[2]
PATCH = (ROOT / "carries" / "nvfp4-kv-triton" / "0.24.0.patch").read_text(encoding="utf-8")
ADDED = "\n".join(line[1:] for line in PATCH.splitlines() if line.startswith("+") and line[1:4] != "++ ")
# Of upstream's kernel, the one line that the carry leaves as it is.
UPSTREAM = "def kernel_unified_attention(\n    offs_d = tl.arange(0, HEAD_SIZE_PADDED)\n"


def tree(folder: Path) -> Path:
    ops = folder / variant.OPS
    ops.mkdir(parents=True)
    for name in variant.FILES:
        (ops / name).write_text(UPSTREAM + ADDED + "\n", encoding="utf-8")
    return folder


def test_every_variant_applies_to_what_the_carry_adds(tmp_path: Path) -> None:
    healthy = tree(tmp_path / "tree")
    for name, edits in variant.VARIANTS.items():
        files = variant.write(healthy, tmp_path / name, [name])
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
        assert all(edit.new in texts[edit.file] for edit in edits)
        changed = {name for name, text in texts.items() if text != UPSTREAM + ADDED + "\n"}
        assert changed == {edit.file for edit in edits}


def test_all_variants_apply_together(tmp_path: Path) -> None:
    files = variant.write(tree(tmp_path / "tree"), tmp_path / "all", sorted(variant.VARIANTS))
    text = files[0].read_text(encoding="utf-8")
    assert "nvfp4_columns(" not in text[text.index("def store_nvfp4_segment(") :].partition("\ndef ")[0]
    assert variant.TALL in text
    reader = files[1].read_text(encoding="utf-8")
    assert f"offs_d = {variant.BY_COLUMN}" not in reader


@pytest.mark.parametrize("name", variant.VARIANTS)
def test_a_tree_without_the_place_is_refused(tmp_path: Path, name: str) -> None:
    broken = tree(tmp_path / "tree")
    edit = variant.VARIANTS[name][0]
    file = broken / variant.OPS / edit.file
    file.write_text(file.read_text(encoding="utf-8").replace(edit.old, "pass\n"), encoding="utf-8")
    with pytest.raises(ValueError, match="has no"):
        variant.write(broken, tmp_path / "out", [name])


def test_rows_are_halved_and_interleaved_again() -> None:
    numpy = pytest.importorskip("numpy")
    rows = numpy.arange(32).reshape(4, 8)
    names: dict[str, Any] = {
        "tl": SimpleNamespace(reshape=numpy.reshape, permute=numpy.transpose),
        "triton": SimpleNamespace(jit=lambda function: function),
    }
    exec(variant.ORDERS.removesuffix("@triton.jit\ndef load_nvfp4_tile("), names)  # noqa: S102 - ours
    halved = names["nvfp4_halved"](rows)
    assert halved[0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert names["nvfp4_interleaved"](halved).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("hopper", "queries", "size", "rows", "options"),
    [
        (True, 16, 256, 128, {"num_warps": 8, "num_stages": 3}),
        (True, 8, 256, 64, {"num_warps": 4, "num_stages": 5}),
        (True, 4, 256, 32, {"num_warps": 8, "num_stages": 5}),
        (True, 1, 256, 16, {"num_warps": 4, "num_stages": 5}),
        (True, 16, 512, 32, {"num_warps": 8, "num_stages": 5}),
        (False, 16, 256, 32, {"num_warps": 8, "num_stages": 5}),
    ],
)
def test_blocks_are_tall_for_many_rows_of_256_on_hopper(
    tmp_path: Path, *, hopper: bool, queries: int, size: int, rows: int, options: dict[str, int]
) -> None:
    file = variant.write(tree(tmp_path / "tree"), tmp_path / "out", ["tall"])[0]
    text = file.read_text(encoding="utf-8")
    names: dict[str, Any] = {
        "torch": SimpleNamespace(dtype=object, float32=None),
        "MAX_ROW_BYTES": 1024,
        "_on_hopper": lambda: hopper,
        "triton": SimpleNamespace(next_power_of_2=lambda size: 1 << (size - 1).bit_length()),
    }
    for name in ("nvfp4_most_rows", "nvfp4_launch_config"):
        start = text.index(f"def {name}(")
        exec(text[start:].partition("\n\n\n")[0], names)  # noqa: S102 - the project's own
    found = names["nvfp4_launch_config"](size, SimpleNamespace(itemsize=2), 6, queries, 16, has_window=False)
    assert (found[0], found[2]) == (rows, options)
