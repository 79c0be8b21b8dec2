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
    assert text.index("def nvfp4_few_warps(") < text.index("def store_nvfp4_segment(")
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
    ("changes", "few"),
    [
        ({}, True),
        ({"max_query_len": 4}, False),
        ({"segments": 33}, False),
        ({"head_size": 256}, False),
        ({"has_window": True}, False),
        ({"block_m": 32}, False),
    ],
)
def test_two_warps_are_for_decode_in_most_segments(changes: dict[str, int], *, few: bool) -> None:
    names: dict[str, Any] = {
        "MAX_SEGMENTS": 64,
        "_on_hopper": lambda: True,
        "triton": SimpleNamespace(next_power_of_2=lambda size: 1 << (size - 1).bit_length()),
    }
    exec(variant.FEW_WARPS.removesuffix("@triton.jit\ndef store_nvfp4_segment("), names)  # noqa: S102 - ours
    options = {"num_warps": 4, "num_stages": 5, "maxnreg": 128}
    decode = {"head_size": 96, "max_query_len": 1, "block_m": 16, "segments": 64, "has_window": False}
    found = names["nvfp4_few_warps"](options, **(decode | changes))
    assert found == ({"num_warps": 2, "num_stages": 5} if few else options)
