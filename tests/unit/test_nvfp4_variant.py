"""Variants of the NVFP4 reader: every edit finds its place in what the carry adds, and changes no other."""

from __future__ import annotations

import sys
from pathlib import Path

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
    assert text.count("nvfp4_columns(HEAD_SIZE_PADDED") == 2  # what is defined, and the store of a segment
    reader = files[1].read_text(encoding="utf-8")
    assert "stride_v_cache" not in reader[reader.index("V_load = load_nvfp4_tile(") :]


@pytest.mark.parametrize("name", variant.VARIANTS)
def test_a_tree_without_the_place_is_refused(tmp_path: Path, name: str) -> None:
    broken = tree(tmp_path / "tree")
    edit = variant.VARIANTS[name][0]
    file = broken / variant.OPS / edit.file
    file.write_text(file.read_text(encoding="utf-8").replace(edit.old, "pass\n"), encoding="utf-8")
    with pytest.raises(ValueError, match="has no"):
        variant.write(broken, tmp_path / "out", [name])


def test_a_column_order_is_a_permutation_that_splits_low_codes_from_high_ones() -> None:
    def order(size: int) -> list[int]:
        return [column % (size // 2) * 2 + column // (size // 2) for column in range(size)]

    assert order(8) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert sorted(order(512)) == list(range(512))
