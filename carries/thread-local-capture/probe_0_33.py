"""Does every capture of a CUDA graph leave other threads alone, in vLLM 0.33.0?

Places and search are those of the first probe. DeepSeek V4.1 captures the making of its metadata, too.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest import mock

import vllm
from probe import PLACES, bare, check_places, check_sources

# The packages of the model import what is not here, so their folders stand for them.
RUNTIME = ("deepseek_v41", "nvidia", "specialized_decode", "runtime")
for depth in range(1, len(RUNTIME) + 1):
    package = ModuleType(".".join(("vllm", "models", *RUNTIME[:depth])))
    package.__path__ = [str(Path(vllm.__file__).parent.joinpath("models", *RUNTIME[:depth]))]
    sys.modules[package.__name__] = package

from vllm.models.deepseek_v41.nvidia.specialized_decode.runtime import metadata_graphs  # noqa: E402


def metadata() -> None:
    """Capture the making of a step's metadata."""
    graphs = bare(
        metadata_graphs.AttnMetadataCudaGraphs, _vllm_config=None, _graphs={}, _forked_build=mock.Mock()
    )
    with (
        mock.patch.object(metadata_graphs, "capture_pool", return_value=nullcontext()),
        mock.patch.object(metadata_graphs, "current_platform", mock.Mock()),
    ):
        graphs.capture((1, 1, 1, 1), [], [], mock.Mock())


def probe() -> None:
    """Run what captures, then search for more."""
    check_places({**PLACES, metadata: 1})
    check_sources()
