"""The header of a safetensors file: names, types and shapes of tensors, without their bytes.

The format: eight bytes of length (little endian), a JSON object of that length, then the tensors. Nothing
after the header is read, so a folder of hundreds of gigabytes takes milliseconds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# The format's own limit (safetensors, MAX_HEADER_SIZE): a longer header is refused by every reader.
_LONGEST_HEADER = 100_000_000
_LENGTH = 8
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it.

    Attributes:
        dtype: the format's name of its type, such as ``BF16``.
        bytes: bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def count(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)


class Readable(Protocol):
    """A file, or a part of one that is fetched."""

    def read(self, count: int, /) -> bytes:
        """Return the next *count* bytes."""


@dataclass(frozen=True)
class Shard:
    """One file of weights.

    Attributes:
        size: its bytes.
        expected: the bytes that its header promises; -1 where that could not be read.
        problem: the reason for which it cannot be read; empty if it can.
        pointer: true if it is a Git LFS pointer and not the file.
    """

    name: str
    size: int
    expected: int = -1
    tensors: tuple[Tensor, ...] = ()
    problem: str = ""
    pointer: bool = False


def is_pointer(path: Path) -> bool:
    """Tell if the file at *path* is a Git LFS pointer."""
    try:
        if path.stat().st_size > _LARGEST_POINTER:
            return False
        with path.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def read_shard(path: Path) -> Shard:
    """Return what the header of the safetensors file at *path* says; a damaged one has a `Shard.problem`."""
    try:
        size = path.stat().st_size
        if is_pointer(path):
            return Shard(path.name, size, pointer=True)
        with path.open("rb") as stream:
            return parse_shard(path.name, size, stream)
    except OSError as error:
        return Shard(path.name, -1, problem=f"it cannot be read: {error!r}")


def parse_shard(name: str, size: int, stream: Readable) -> Shard:
    """Return what the header says at the beginning of *stream*; a damaged one has a `Shard.problem`.

    Args:
        name: of the file.
        size: its bytes.
        stream: the file from its beginning on.
    """
    try:
        length = int.from_bytes(stream.read(_LENGTH), "little")
        if size < _LENGTH or length > min(_LONGEST_HEADER, size):
            return Shard(name, size, problem=f"it has {size} bytes, and a header of {length} at most")
        header = json.loads(stream.read(length))
        tensors = tuple(_tensor(name, entry) for name, entry in header.items() if name != "__metadata__")
        end = max((int(entry["data_offsets"][1]) for entry in _entries(header)), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        return Shard(name, -1, problem=f"its header cannot be read: {error!r}")
    return Shard(name, size, _LENGTH + length + end, tensors)


def _entries(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(
        name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), int(end) - int(begin)
    )
