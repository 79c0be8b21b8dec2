"""Pictures of one colour, as PNG; written with the standard library alone."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Final

SIZE: Final = 448
"""Pixels of width and height: encoders in use take at least 224."""
COLOURS: Final[Mapping[str, tuple[int, int, int]]] = {
    "red": (220, 20, 30),
    "green": (20, 150, 50),
    "blue": (25, 50, 215),
    "yellow": (250, 225, 20),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}
"""Colours that have one name; three of them change where red and blue are taken for each other."""
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB8: Final = bytes((8, 2, 0, 0, 0))  # depth, colour type, compression, filters, interlacing


def draw_colour(name: str) -> str:
    """Return a picture of one of `COLOURS`, as a ``data:`` address."""
    header = struct.pack(">II", SIZE, SIZE) + _RGB8
    data = zlib.compress((b"\0" + bytes(COLOURS[name]) * SIZE) * SIZE, 9)
    png = _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
