"""Read the pictures that requests hold, as a model with vision would: their number, or their colour."""

from __future__ import annotations

import base64
import struct
import zlib

from sparkwright.engine.client.pictures import COLOURS, DIGITS, SHAPES, SIZE, Colour, box

_SIGNATURE = 8  # bytes
_ROW = 3 * SIZE + 1


def look_at(address: str) -> str:
    """Return the number in the picture at a ``data:`` *address*, or the name of its colour.

    Raises:
        ValueError: it is no picture of this project's kind.
    """
    pixels = _pixels(base64.b64decode(address.partition(",")[2]))
    strokes = [
        {stroke for stroke in "abcdefg" if _is_dark(_pixel(pixels, *_centre(place, stroke)))}
        for place in range(DIGITS)
    ]
    corner = _pixel(pixels, 0, 0)
    if not any(strokes) or _is_dark(corner):
        return min(COLOURS, key=lambda name: _distance(COLOURS[name], corner))
    shapes = {frozenset(shape): digit for digit, shape in SHAPES.items()}
    return "".join(shapes[frozenset(found)] for found in strokes)


def _pixels(png: bytes) -> bytes:
    """Return the rows of a PNG, each with the byte of its filter."""
    at, data = _SIGNATURE, b""
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    pixels = zlib.decompress(data)
    if len(pixels) != _ROW * SIZE:
        raise ValueError(f"a picture of {len(pixels)} bytes is not one of {SIZE} by {SIZE} pixels")
    return pixels


def _pixel(pixels: bytes, x: int, y: int) -> Colour:
    red, green, blue = pixels[y * _ROW + 1 + 3 * x :][:3]
    return red, green, blue


def _centre(place: int, stroke: str) -> tuple[int, int]:
    left, top, right, bottom = box(place, stroke)
    return (left + right) // 2, (top + bottom) // 2


def _is_dark(colour: Colour) -> bool:
    return sum(colour) < 3 * 128


def _distance(a: Colour, b: Colour) -> int:
    return sum((one - other) ** 2 for one, other in zip(a, b, strict=True))
