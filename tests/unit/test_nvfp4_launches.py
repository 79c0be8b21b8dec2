"""Launches that are tried instead of the tree's: which ones for a case, and how the tree is given one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """Return the script, imported beside a stand-in of torch where there is none: no tensor is made here."""
    before, modules = list(sys.path), dict(sys.modules)
    sys.path.insert(0, str(GPU))
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        sys.modules["torch"] = mock.MagicMock()
    try:
        yield importlib.import_module("nvfp4_launches")
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - set(modules):
            if name.partition(".")[0] in {"torch", "nvfp4", "nvfp4_split", "nvfp4_launches"}:
                del sys.modules[name]


def test_a_limit_of_registers_is_an_option_only_where_there_is_one(script: Any) -> None:
    assert script.Launch(16, 64, 2, 5, 0).config == (16, 64, {"num_warps": 2, "num_stages": 5})
    limited = script.Launch(16, 64, 4, 5, 128, 48).config
    assert limited == (16, 64, {"num_warps": 4, "num_stages": 5, "maxnreg": 128})


def test_numbers_of_segments_are_those_that_the_buffers_hold(script: Any) -> None:
    for size in (128, 256):
        one = script.case(1, 32768, 1, size)
        for room, most in ((7, 6), (64, 64), (1, 0)):
            assert max(launch.segments for launch in script.launches(one, room)) == most


def test_launches_of_a_case_differ_and_fit_its_queries(script: Any) -> None:
    for case in script.CASES:
        found = script.launches(case, 64)
        assert len(set(found)) == len(found)
        group = case.heads // case.kv_heads
        assert all(launch.rows >= group for launch in found)  # a block takes whole queries
        if max(case.queries) == 1:
            assert {launch.rows for launch in found} == {16}


def test_drafts_with_heads_of_256_are_tried_in_one_block_by_halves_and_not(script: Any) -> None:
    case = script.case(16, 32768, 8, 256)
    found = script.launches(case, 64)
    for halves in (False, True):
        assert any(one.rows >= 16 * 6 and one.halves is halves for one in found)
        assert any(one.rows == 32 and one.halves is halves for one in found)


@pytest.mark.parametrize(
    ("launch", "given"), [((), {}), ((7,), {"segments": 7}), ((0, True), {"halves": True})]
)
def test_what_a_launch_leaves_open_stays_the_trees(
    script: Any, launch: tuple[Any, ...], given: dict[str, Any]
) -> None:
    reader = SimpleNamespace(
        nvfp4_launch_config=None,
        nvfp4_split_options=None,
        nvfp4_segments=lambda: 5,
        nvfp4_by_halves=lambda: False,
    )
    bench = script.Bench.__new__(script.Bench)
    seen: dict[str, Any] = {}

    def attend(*_: Any) -> None:
        seen.update(segments=reader.nvfp4_segments(), halves=reader.nvfp4_by_halves())

    bench.reader, bench.case = reader, None
    bench.step, bench.layer = SimpleNamespace(query=None), SimpleNamespace(attend=attend)
    with mock.patch.object(script, "torch", mock.MagicMock()):
        bench.run(script.Launch(16, 64, 4, 5, 0, *launch))()
    assert seen == {"segments": 5, "halves": False} | given


def tree() -> SimpleNamespace:
    """Return a reader that chooses as many rows as it is asked for."""

    def own(head_size: int, block_m: int, has_window: bool) -> tuple[int, int, dict[str, int]]:  # noqa: FBT001
        return block_m, head_size, {"num_warps": 4 + has_window}

    return SimpleNamespace(nvfp4_launch_config=own)


def test_a_launch_replaces_the_trees_which_asks_with_keywords(script: Any) -> None:
    reader, launch = tree(), script.Launch(16, 64, 2, 5, 0)
    script.replaced(reader, launch)
    assert reader.nvfp4_launch_config(128, 16, has_window=False) == launch.config
    assert reader.nvfp4_launch_config(96, block_m=16, has_window=True) == launch.config


def test_launches_of_other_rows_and_longer_heads_stay_the_trees(script: Any) -> None:
    reader, own = tree(), tree()
    script.replaced(reader, script.Launch(16, 64, 2, 5, 0))
    for head_size, rows in ((128, 64), (256, 16)):
        asked = reader.nvfp4_launch_config(head_size, rows, has_window=True)
        assert asked == own.nvfp4_launch_config(head_size, rows, has_window=True)
