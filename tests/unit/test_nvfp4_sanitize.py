"""The control of compute-sanitizer: it fails where nothing is found, and where tensors share allocations."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

GPU = Path(__file__).parents[1] / "gpu"
KILLED = RuntimeError("CUDA error: unspecified launch failure")


@pytest.fixture
def script() -> Iterator[Any]:
    """Return the script, imported beside a stand-in of torch: no tensor is made here."""
    before, modules = list(sys.path), dict(sys.modules)
    sys.path.insert(0, str(GPU))
    sys.modules["torch"] = mock.MagicMock()
    try:
        yield importlib.import_module("nvfp4_split")
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - set(modules) | {"torch"}:
            if name.partition(".")[0] in {"torch", "nvfp4", "nvfp4_split"}:
                sys.modules.pop(name, None)
        sys.modules.update({name: module for name, module in modules.items() if name == "torch"})


def run(script: Any, sanitize: Any, *more: str) -> int:
    """Run the part with *sanitize* in place of the kernels; returns the exit code."""
    with (
        mock.patch.object(sys, "argv", ["nvfp4_split.py", "--tree", ".", "--part", "sanitize", *more]),
        mock.patch.object(script, "load", return_value=(None, None)),
        mock.patch.object(script, "sanitize", sanitize),
        mock.patch.dict(os.environ),
    ):
        return int(script.main())


@pytest.mark.parametrize(
    ("more", "effect", "code"),
    [
        ((), None, 0),
        (("--planted",), KILLED, 0),
        (("--planted",), None, 1),  # a control that found nothing
        ((), KILLED, 1),
    ],
)
def test_short_buffers_have_to_be_found_and_whole_ones_not(script, more, effect, code):
    assert run(script, mock.Mock(side_effect=effect), *more) == code


def test_an_error_that_is_not_cudas_is_no_finding(script: Any) -> None:
    with pytest.raises(RuntimeError, match="no such tree"):
        run(script, mock.Mock(side_effect=RuntimeError("no such tree")), "--planted")


def test_tensors_are_allocated_one_by_one_before_the_first(script: Any) -> None:
    seen: list[str | None] = []
    run(script, lambda *_, **__: seen.append(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")))
    assert seen == ["1"]


@pytest.mark.parametrize(("reserved", "shared"), [(0, False), (2 << 20, True)])
def test_shared_allocations_are_refused(script: Any, *, reserved: int, shared: bool) -> None:
    script.torch.cuda.memory_reserved.return_value = reserved
    layer = mock.Mock()
    with (
        mock.patch.object(script, "Layer", return_value=layer),
        mock.patch.object(script, "Step"),
        mock.patch.object(script, "say"),
    ):
        reader = SimpleNamespace(nvfp4_segments=None)
        if shared:
            with pytest.raises(RuntimeError, match="share allocations"):
                script.sanitize(reader, None, 64, planted=False)
        else:
            script.sanitize(reader, None, 64, planted=False)
    assert layer.attend.called is not shared


@pytest.mark.parametrize(("planted", "missing"), [(False, 0), (True, 1)])
def test_planted_buffers_lack_one_row(script: Any, *, planted: bool, missing: int) -> None:
    script.torch.cuda.memory_reserved.return_value = 0
    with (
        mock.patch.object(script, "Layer"),
        mock.patch.object(script, "Step"),
        mock.patch.object(script, "say"),
    ):
        script.sanitize(SimpleNamespace(nvfp4_segments=None), None, 64, planted=planted)
    sizes = [call.args[0] for call in script.torch.empty.call_args_list[:3]]
    rows = 24 * 32 * 64 - missing
    assert sizes == [rows * 128, rows, rows]


@pytest.mark.parametrize(("planted", "launches"), [(False, 4), (True, 3)])
def test_a_drafters_heads_are_read_in_buffers_of_the_trees_own(script, *, planted, launches):
    script.torch.cuda.memory_reserved.return_value = 0
    layer = mock.Mock()
    with (
        mock.patch.object(script, "Layer", return_value=layer) as made,
        mock.patch.object(script, "Step"),
        mock.patch.object(script, "say"),
    ):
        script.sanitize(SimpleNamespace(nvfp4_segments=None), None, 64, planted=planted)
    assert layer.attend.call_count == launches
    beside = [call.args[2] for call in made.call_args_list if call.args[2].builder > call.args[2].size]
    assert beside == ([] if planted else [script.BESIDE])


def test_buffers_of_any_number_of_segments_have_a_maximum_for_each_row_of_outputs(script: Any) -> None:
    layer = SimpleNamespace(
        buffers=(SimpleNamespace(shape=(9, 8, 128)), None, None), reader=SimpleNamespace(nvfp4_segments=None)
    )
    with script.segmented(layer, 7):
        assert layer.reader.nvfp4_segments() == 7
    outputs, maxima, sums = (call.args[0][0] for call in script.torch.full.call_args_list)
    assert outputs == 128 * maxima == 128 * sums
    assert maxima >= 8 * 216 * 64  # the most tokens of a case, in the most segments
