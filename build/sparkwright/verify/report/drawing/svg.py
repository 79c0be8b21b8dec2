"""SVG elements, escaped by construction: they are built as a tree and written by the standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from sparkwright.verify.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable


def _value(value: float | str) -> str:
    """An attribute's value; a hundredth of a pixel is enough, and keeps files small and equal."""
    if isinstance(value, str):
        return value
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")  # + 0.0 makes -0.0 positive


def element(tag: str, *children: ET.Element | None, **attributes: float | str) -> ET.Element:
    """One element; ``class_`` stands for ``class``, and ``_`` for ``-`` in attributes' names."""
    made = ET.Element(tag, {_name(key): _value(value) for key, value in attributes.items()})
    made.extend(child for child in children if child is not None)
    return made


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def group(children: Iterable[ET.Element | None], **attributes: float | str) -> ET.Element:
    """Elements that share attributes."""
    return element("g", *children, **attributes)


def text(content: str, x: float, y: float, class_: str, **attributes: float | str) -> ET.Element:
    """Words at a place; `text-anchor` comes from the class ``start``, ``middle`` or ``end``."""
    made = element("text", x=x, y=y, class_=class_, **attributes)
    made.text = clean(content)
    return made


def titled(made: ET.Element, words: str) -> ET.Element:
    """*made* with words that show while a pointer rests on it."""
    title = ET.Element("title")
    title.text = clean(words)
    made.insert(0, title)
    return made


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """Path data of straight lines through *points*."""
    return "M" + "L".join(f"{_value(x)},{_value(y)}" for x, y in points)


_CROSS = (
    *((-1.0, -2.75), (1.0, -2.75), (1.0, -1.0), (2.75, -1.0), (2.75, 1.0), (1.0, 1.0)),
    *((1.0, 2.75), (-1.0, 2.75), (-1.0, 1.0), (-2.75, 1.0), (-2.75, -1.0), (-1.0, -1.0)),
)

# Shapes by style number, so that series differ without their colours; each fits a circle of radius 1.
MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),  # a circle
    ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    ((0, -1.15), (1.05, 0.75), (-1.05, 0.75)),
    ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    ((0, 1.15), (1.05, -0.75), (-1.05, -0.75)),
    tuple((0.4 * x, 0.4 * y) for x, y in _CROSS),
)


def marker(style: int, x: float, y: float, radius: float, *, hollow: bool = False) -> ET.Element:
    """The mark of series *style* at a place; hollow where the figure is not to be trusted."""
    class_ = f"mark s{style % len(MARKERS)}" + (" hollow" if hollow else "")
    shape = MARKERS[style % len(MARKERS)]
    if not shape:
        return element("circle", cx=x, cy=y, r=radius, class_=class_)
    outline = path_of((x + radius * dx, y + radius * dy) for dx, dy in shape)
    return element("path", d=outline + "Z", class_=class_)


def to_text(made: ET.Element) -> str:
    """*made* as HTML5 takes it inline: without a name space, empty elements closed."""
    return ET.tostring(made, encoding="unicode")
