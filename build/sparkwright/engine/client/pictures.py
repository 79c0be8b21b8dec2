"""Pictures of one colour and of large digits, as PNG; written with the standard library alone."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Final

SIZE: Final = 448
"""Pixels of width and height: encoders in use take at least 224."""
Colour = tuple[int, int, int]
COLOURS: Final[Mapping[str, Colour]] = {
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
_STROKE, _WIDTH, _HEIGHT, _PITCH = 18, 96, 200, 132
_TOP, _LEFT = (SIZE - _HEIGHT) // 2, (SIZE - 2 * _PITCH - _WIDTH) // 2
DIGITS: Final = 3
"""Digits of a number in a picture: a guess is right once in 900 times."""
_MIDDLE: Final = _HEIGHT // 2
# Left, top, right and bottom of each stroke of a digit, from its own corner.
_STROKES: Final = {
    "a": (0, 0, _WIDTH, _STROKE),
    "b": (_WIDTH - _STROKE, 0, _WIDTH, _MIDDLE),
    "c": (_WIDTH - _STROKE, _MIDDLE, _WIDTH, _HEIGHT),
    "d": (0, _HEIGHT - _STROKE, _WIDTH, _HEIGHT),
    "e": (0, _MIDDLE, _STROKE, _HEIGHT),
    "f": (0, 0, _STROKE, _MIDDLE),
    "g": (0, _MIDDLE - _STROKE // 2, _WIDTH, _MIDDLE + _STROKE // 2),
}
SHAPES: Final[Mapping[str, str]] = {
    "0": "abcdef", "1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc",
    "5": "afgcd", "6": "afgedc", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip
"""Strokes of each digit, as on a display of seven segments."""


def draw_colour(name: str) -> str:
    """Return a picture of one of `COLOURS`, as a ``data:`` address."""
    row = bytes(COLOURS[name]) * SIZE
    return _address([row] * SIZE)


def draw_number(number: str) -> str:
    """Return a picture of a *number* of `DIGITS` digits in black on white, as a ``data:`` address."""
    rows = [bytearray(COLOURS["white"] * SIZE) for _ in range(SIZE)]
    for place, digit in enumerate(number):
        for stroke in SHAPES[digit]:
            left, top, right, bottom = box(place, stroke)
            for row in rows[top:bottom]:
                row[3 * left : 3 * right] = bytes(COLOURS["black"]) * (right - left)
    return _address([bytes(row) for row in rows])


def box(place: int, stroke: str) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a *stroke* of the digit at *place*, in pixels."""
    left, top, right, bottom = _STROKES[stroke]
    shift = _LEFT + place * _PITCH
    return left + shift, top + _TOP, right + shift, bottom + _TOP


def _address(rows: list[bytes]) -> str:
    """Return rows of red, green and blue as the ``data:`` address of a PNG."""
    header = struct.pack(">II", SIZE, SIZE) + _RGB8
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    png = _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
