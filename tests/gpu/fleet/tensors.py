"""Checkpoints of made-up weights: names, shapes and fills, written as safetensors files.

A fill says how a tensor's values are made: `MATRIX` for weights whose outputs are of ordinary size, `ROUTER`
and `EXPERT` for the choice among experts and for what they add, `EMBED`, `HEAD` and `TIED` for tables, any
other word for a constant. Values depend on the tensor's name alone, so that checkpoints of one shape are
equal wherever they are written. Only `write_checkpoint` needs numpy.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair.scoring import TOKENS

MATRIX, EMBED, HEAD, TIED = "matrix", "embed", "head", "tied"
ROUTER, EXPERT = "router", "expert"
# Made-up experts are unlike one another, and engines that round differently choose different ones at a near
# tie. Sharp choices give the last chosen expert little weight, and small outputs keep a swap below a near tie
# of answers. Without both, answers in bfloat16 differ by up to 2 nats from those in float32.
_SIZES = {MATRIX: 1.0, ROUTER: 4.0, EXPERT: 0.25}
TIED_NORM = 20.0  # weight of the last norm before a tied head, which gives logits their size back
_WRITING = threading.Lock()


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: its shape, and how it is filled."""

    shape: tuple[int, ...]
    fill: str = MATRIX


@dataclass(frozen=True)
class Checkpoint:
    """A model: its ``config.json`` and its tensors by name."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def values(name: str, tensor: Tensor) -> Any:
    """Return the values of a tensor in float32."""
    import numpy as np

    source = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    if tensor.fill in _SIZES:
        size = _SIZES[tensor.fill] * tensor.shape[-1] ** -0.5
        return source.standard_normal(tensor.shape, dtype=np.float32) * size
    if tensor.fill not in (EMBED, HEAD, TIED):
        return np.full(tensor.shape, float(tensor.fill), dtype=np.float32)
    table = source.standard_normal(tensor.shape, dtype=np.float32)
    if tensor.fill == EMBED:
        return table * 0.05
    # A tied table is small: a token's own row must not outweigh what the layers make of it.
    rows = table[: len(TOKENS) // 2] * (
        tensor.shape[-1] ** -0.5 * (1.0 if tensor.fill == HEAD else 1 / TIED_NORM)
    )
    table *= 0.0 if tensor.fill == HEAD else 0.04 / TIED_NORM * tensor.shape[-1] ** -0.5
    for index, token in enumerate(TOKENS):
        table[token] = rows[index // 2] * (1 if index % 2 else -1)
    return table


def rounded(array: Any) -> Any:
    """Return float32 values as the bits of bfloat16, rounded to the nearest, ties to even."""
    import numpy as np

    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, zeros: bool = False) -> Path:
    """Write ``config.json`` and the weights in 16 bits into *folder*; return it. *zeros* are a hole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.config, indent=1), encoding="utf-8")
    header, offset = {}, 0
    for name, tensor in sorted(checkpoint.tensors.items()):
        end = offset + 2 * math.prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        if zeros:
            stream.truncate(stream.tell() + offset)
            return folder
        for name, tensor in sorted(checkpoint.tensors.items()):
            stream.write(rounded(values(name, tensor)).astype("<u2").tobytes())
    return folder


def kept_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint if *folder* has none yet; return the folder. Threads may ask for one at a time."""
    with _WRITING:
        whole = (folder / "model.safetensors").is_file()
        return folder if whole else write_checkpoint(folder, checkpoint)
