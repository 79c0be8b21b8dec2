"""What a card runs of the NVFP4 reader and Triton's interpreter does not: its PTX, and its launches.

Imported once the tree under test is known to have the reader.
"""

# ruff: noqa: ANN001, ANN202, ARG001, N803, PLR0917, SLF001 - functions of Triton's, and what is private to the reader

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import compiling
import torch
from attending import Shape, attention_error
from ptx import InlineAssembly
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from vllm.triton_utils import tl, triton
from vllm.v1.attention.ops import triton_nvfp4_kv as kv
from vllm.v1.attention.ops import triton_unified_attention as reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAMILIES = (90, 120) if hasattr(kv, "nvfp4_converted") else (90,)  # of cards with a decoder of their own
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PAIRS = 1 << 16  # of a byte of codes and a byte of a scale
_interpreted_dot = InterpreterBuilder.create_dot
CONVERTS = len(FAMILIES) > 1


def text_for_a_card(dtype: torch.dtype, family: int = 90) -> str:
    """The assembly that queries of *dtype* are read with on a CUDA card."""
    card = SimpleNamespace(is_cuda=lambda: True, is_device_capability_family=lambda other: other == family)
    with (
        mock.patch.object(kv, "current_platform", card),
        mock.patch.object(triton.runtime, "JITFunction", object),  # interpreted functions are none
    ):
        text: str | None = kv.nvfp4_ptx.__wrapped__(dtype)
    if text is None:
        raise RuntimeError("the reader has no assembly for a CUDA card")
    return text


def _dot(builder: Any, a: Any, b: Any, *others: Any) -> Any:
    """``tl.dot``; of bfloat16 the interpreter has bits, and would multiply them as integers."""
    a, b = (
        TensorHandle((x.data.astype("uint32") << 16).view("float32"), tl.float32)
        if x.dtype == tl.bfloat16
        else x
        for x in (a, b)
    )
    return _interpreted_dot(builder, a, b, *others)


@contextmanager
def replayed(family: int = 90) -> Iterator[InlineAssembly]:
    """Have the attention kernel decode with the assembly that a card runs, executed here."""
    assembly = InlineAssembly()
    chosen = {"nvfp4_ptx": partial(text_for_a_card, family=family)}
    if CONVERTS:
        chosen["nvfp4_converted"] = partial(bool, family == 120)
    with (
        mock.patch.object(InterpreterBuilder, "create_inline_asm", assembly),
        mock.patch.object(InterpreterBuilder, "create_dot", _dot),
        mock.patch.multiple(reader, **chosen),
    ):
        yield assembly


@triton.jit
def _decode_ptx_of_one_kind(codes, scale, dtype: tl.constexpr, PTX: tl.constexpr, CONVERTED: tl.constexpr):  # type: ignore[no-untyped-def]
    return kv._decode_ptx(codes, scale, dtype, PTX)


_decode, _decode_ptx = kv._decode, kv._decode_ptx if CONVERTS else _decode_ptx_of_one_kind


@triton.jit
def _decode_all(
    codes_ptr, scales_ptr, low_ptr, high_ptr, COUNT: tl.constexpr, PTX: tl.constexpr, CONVERTED: tl.constexpr
):  # type: ignore[no-untyped-def]
    at = tl.arange(0, COUNT)
    codes, scale = tl.load(codes_ptr + at), tl.load(scales_ptr + at)
    if PTX is None:
        low, high = _decode(codes, scale, low_ptr.dtype.element_ty)
    else:
        low, high = _decode_ptx(codes, scale, low_ptr.dtype.element_ty, PTX, CONVERTED)
    tl.store(low_ptr + at, low)
    tl.store(high_ptr + at, high)


def e4m3(code: int) -> float:
    """Magnitude of an E4M3 code, by the format's definition."""
    exponent, fraction = code >> 3 & 15, code & 7
    if (exponent, fraction) == (15, 7):
        return float("nan")
    return (fraction + 8 * (exponent > 0)) / 8 * 2.0 ** (max(exponent, 1) - 7)


def expected(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``code * scale / 128`` for codes of four bits, which *dtype* holds exactly."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
    magnitudes = torch.tensor([e4m3(code) for code in range(256)], dtype=torch.float64)
    exact = values[codes.long()] * magnitudes[scales.long()] / 128
    held = exact.to(dtype)
    if not (exact.isnan() | (held.double() == exact)).all():
        raise RuntimeError(f"{dtype} does not hold all values")
    return held


def wrongly_decoded(dtype: torch.dtype, *, family: int | None) -> list[str]:
    """Bytes of codes and of scales, in any of the four places of a word, that are read as something else.

    *family* is of the cards whose assembly is executed; None is for what Triton makes of the plain decoder.

    All 65,536 pairs are decoded in every place, beside random others.
    """
    shuffled = torch.randperm(PAIRS, generator=torch.Generator().manual_seed(3))
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    found = []
    for place in range(4):
        pairs = shuffled.roll(place)
        codes, scales = (pairs % 256).to(torch.uint8), (pairs // 256).to(torch.uint8)
        low, high = torch.zeros(PAIRS, dtype=dtype), torch.zeros(PAIRS, dtype=dtype)
        with replayed():
            text = text_for_a_card(dtype, family) if family else None
            _decode_all[(1,)](codes, scales, low, high, COUNT=PAIRS, PTX=text, CONVERTED=family == 120)
        for half, values, nibbles in (("low", low, codes & 15), ("high", high, codes >> 4)):
            wanted = expected(nibbles, scales, dtype)
            same = (values.view(integer) == wanted.view(integer)) | (values.isnan() & wanted.isnan())
            found += [
                f"{half} half of {int(codes[i]):#04x} with scale {int(scales[i]):#04x}: {float(values[i])}"
                for i in (~same).nonzero().flatten()[:3]
            ]
    return found


def options_of_decode(family: int, *, cuda: bool) -> set[str]:
    """Names of the options that decode with heads of 128 is launched with on a platform."""
    platform = SimpleNamespace(
        is_cuda=lambda: cuda, is_device_capability_family=lambda other: other == family
    )
    with mock.patch.object(kv, "current_platform", platform):
        _, _, options = kv.nvfp4_launch_config(128, torch.bfloat16, 4, 1, 16, has_window=False)
    return set(options)


# Segments, queries, heads, a window, the card; and the warps that decode is launched with.
WARPS = (
    ((64, 1, 128, None, 90), 2),
    ((33, 1, 128, None, 90), 4),
    ((64, 4, 128, None, 90), 2),  # drafts of 4 by two heads each, in 16 rows
    ((64, 16, 128, None, 90), 4),
    ((64, 1, 96, None, 90), 4),
    ((64, 1, 128, 20, 90), 4),
    ((64, 1, 128, None, 120), 4),  # none of these was timed with two
)


def odd_warps() -> list[str]:
    """Launches by two warps where that was not measured to gain, or by four where it was."""
    found = []
    for (segments, queries, head_size, window, family), wanted in WARPS:
        shape = Shape(head_size=head_size, queries=(queries,), lengths=(40,), window=window)
        shape = shape._replace(segmented=True, dtype=torch.bfloat16)
        platform = SimpleNamespace(
            is_cuda=lambda: True, is_device_capability_family=lambda other, own=family: other == own
        )
        with (
            mock.patch.object(kv, "current_platform", platform),
            mock.patch.object(reader, "nvfp4_segments", return_value=segments),
        ):
            warps = launch_of(partial(attention_error, shape), invariant=False)["num_warps"]
        if warps != wanted:
            found.append(f"{segments} segments, {shape} on family {family}: {warps} warps")
    return found


class Launched(Exception):  # noqa: N818 - it ends a run
    """The attention kernel was launched."""


def launch_of(run: Callable[[], object], *, invariant: bool) -> dict[str, Any]:
    """Constants and options that the attention kernel is launched with in *run*, but for the grid."""
    names = ("BLOCK_M", "BLOCK_Q", "TILE_SIZE", "IS_3D", "NVFP4_HALVES", "num_warps", "num_stages")

    def launch(**given: Any) -> None:
        raise Launched({name: given[name] for name in names})

    with (
        mock.patch.object(reader, "is_batch_invariant", invariant),
        mock.patch.object(reader, "kernel_unified_attention", defaultdict(lambda: launch)),
    ):
        try:
            run()
        except Launched as seen:
            found: dict[str, Any] = seen.args[0]
            return found
    raise RuntimeError("the attention kernel was not launched")


def launched(arch: int, wanted: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """What the launches for heads, by dtype and size, take on a card of *arch*: compiled for it here.

    Raises:
        RuntimeError: the compiler could not run.
    """
    interpreter = [sys.executable, "-I", "-X", f"pycache_prefix={sys.pycache_prefix}"]
    told = [json.dumps(one) for one in (arch, sys.path, wanted)]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    file = str(Path(compiling.__file__))
    done = subprocess.run([*interpreter, file, *told], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compiling for sm_{arch} failed: {done.stderr[-1500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found
