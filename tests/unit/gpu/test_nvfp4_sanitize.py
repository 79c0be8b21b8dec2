"""The control of compute-sanitizer: it fails where nothing is found, and where tensors share allocations."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

GPU = Path(__file__).parents[2] / "gpu"
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
