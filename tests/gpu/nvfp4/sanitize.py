"""Pack and read once at one shape each, for ``compute-sanitizer``: no values are compared.

Tensors are allocated one by one where ``PYTORCH_NO_CUDA_MEMORY_CACHING=1`` is set, so that an access just
beyond one of them is seen.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from nvfp4.attention import Case, Scene, attend
from nvfp4.record import Recorder
from nvfp4.rig import Batch, Features, Shape, prepare

__all__ = ["run"]


@triton.jit
def _beyond(target, size: tl.constexpr):
    """Writes one value behind its tensor."""
    tl.store(target + size, 1.0)


def run(spec: dict[str, Any], record: Recorder) -> None:
    """Segmented decode, prefill with chunks, and drafts that are not causal; each packs as well."""
    device = torch.device(spec["device"])
    prepare(spec["device"])
    if spec.get("planted"):
        with contextlib.suppress(RuntimeError):  # memcheck ends the kernel; what counts is its report
            _beyond[(1,)](torch.zeros(1024, device=device), 1024)
            torch.cuda.synchronize()
        record.write("fact", name="planted", value="one write behind a tensor")
        return
    dtype = torch.bfloat16 if spec["device"] == "cuda" else torch.float16
    shape = Shape(8, 2, 128, 16)
    cases = [
        Case("decode 3-D", shape, Batch((300, 47), (1, 1)), dtype=dtype),
        Case("prefill and chunks", shape, Batch((0, 130, 15), (70, 33, 1)), dtype=dtype),
        Case("drafts, not causal", shape, Batch((95, 16), (4, 4)), Features(causal=False), dtype),
    ]
    for case in cases:
        _, _, output, kept = attend(Scene(case, device, spec["seed"]), "nvfp4")
        record.check(f"{case.name} ran", kept["finite"], str(list(output.shape)))
    if spec["device"] == "cuda":
        torch.cuda.synchronize()
