"""Inline SVG from Vega-Lite: specifications are compiled here, and their elements made fit for an HTML page.

Colours in a specification are the page's own custom properties (``var(--s0)``), so that its light, dark and
print styles apply; the font is the page's too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET
from zlib import crc32

from sparkwright.base.events import warn
from sparkwright.base.process import Completed, Dialogue
from sparkwright.base.text import clean

_VEGA_LITE = "6.4"
_PAINT = f"""
import json, sys
from vl_convert import vegalite_to_svg
for line in sys.stdin:
    made = vegalite_to_svg(line, vl_version="{_VEGA_LITE}", show_warnings=False, allowed_base_urls=[])
    print(json.dumps(made), flush=True)
"""
_DRAWN_WITHIN_S = 120.0
_UNDRAWN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 40"><g/>'
    '<text y="24" fill="var(--soft)">This chart could not be drawn.</text></svg>'
)
_INHERITED = {"fill", "stroke", "stroke-width", "stroke-dasharray", "font-weight", "text-anchor"}
_KEPT = {"transform", "d", "x", "x2", "y", "y2", "width", "height", "opacity", "stroke-opacity"}
_DEFAULT = {
    ("opacity", "1"),
    ("font-weight", "normal"),
    ("x2", "0"),
    ("y2", "0"),
    ("transform", "translate(0,0)"),
}
_LONG = re.compile(r"-?\d*\.\d+")
_MOVED = re.compile(r"translate\(([^,()]+),([^,()]+)\)")

Spec = dict[str, Any]
# Text is measured larger than the page's 12.5 px and in a font that the library holds: a reader's font may be
# wider, and the drawing must not depend on the fonts of this machine.
DRAWINGS: Spec = json.loads(Path(__file__).with_name("charts.json").read_text(encoding="utf-8"))
"""Words of charts, drawings, and parts of drawings."""


def bind(name: str, **values: Any) -> Spec:
    """Return a drawing of ``charts.json``: in the place of ``$word`` the value or the part of this name.

    Layers without rows are left out, and marks without words are not read out.
    """
    return cast("Spec", _bound(DRAWINGS[name], values))


def _bound(part: Any, values: Spec) -> Any:
    if isinstance(part, str) and part.startswith("$"):
        name = part[1:]
        return values[name] if name in values else _bound(DRAWINGS[name], values)
    if isinstance(part, list):
        made = [_bound(one, values) for one in part]
        return [one for one in made if not isinstance(one, dict) or one.get("data") != {"values": []}]
    if not isinstance(part, dict):
        return part
    spec = {name: _bound(one, values) for name, one in part.items()}
    if isinstance(spec.get("mark"), dict):
        spec["mark"] = {**spec["mark"], "aria": "description" in spec["encoding"]}
    return spec


@dataclass(frozen=True)
class Naming:
    """The title and the description of a drawing, and the key of their ids."""

    key: str
    title: str
    description: str


def inline_svg(spec: dict[str, Any], naming: Naming, class_: str = "") -> ET.Element:
    """Return the drawing of *spec* as an element for HTML, with a title and a description."""
    drawing = ET.fromstring(_compiled(json.dumps(spec)))  # noqa: S314 - made by the library
    size = {"viewBox": drawing.get("viewBox", "")}
    drawing.remove(drawing[0])  # the background
    _simplify(drawing)
    _share_symbols(drawing, naming.key)
    name, words = (ET.Element(tag, {"id": f"{naming.key}-{tag}"}) for tag in ("title", "desc"))
    name.text, words.text = clean(naming.title), clean(naming.description)
    drawing[:0] = [name, words]
    named = {"role": "img", "aria-labelledby": f"{naming.key}-title {naming.key}-desc"}
    drawing.attrib = size | named | ({"class": class_} if class_ else {})
    return drawing


@lru_cache(maxsize=256)
def _compiled(spec: str) -> str:
    """Return the SVG of a specification in JSON, an empty drawing if none can be made."""
    return _painter().draw(spec) or _UNDRAWN


@lru_cache(maxsize=1)
def _painter() -> _Painter:
    """Return the painter of this process, which ends with it."""
    painter = _Painter()
    atexit.register(painter.end)
    return painter


class _Painter:
    """Draws in a process of its own: the library's JavaScript engine ends the one that it runs in.

    It does where it gets no address space, as under ``ulimit -v``; the results must not be lost with it.
    """

    def __init__(self) -> None:
        self._child: Dialogue | None = None
        self._failed = False

    def draw(self, spec: str) -> str:
        """Return the SVG of *spec*, empty once a drawing has failed."""
        if self._failed:
            return ""
        with contextlib.suppress(EOFError, ValueError):
            # Without -P, a json.py in the user's folder would be run.
            self._child = self._child or Dialogue([sys.executable, "-P", "-c", _PAINT], patience_s=5.0)
            self._child.send(spec.encode() + b"\n")
            return str(json.loads(self._child.line(_DRAWN_WITHIN_S) or b""))
        self._failed = True
        ended = self.end()
        because = f"the program that draws them ended with status {ended.status}" if ended else ""
        warn(f"the report has no charts: {because}", output=ended.stderr if ended else "")
        return ""

    def end(self) -> Completed | None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        return child.end() if child else None


def _simplify(element: ET.Element) -> None:
    """Turn labels of marks into titles, which show under a pointer, and drop needless attributes."""
    element.tag = element.tag.rpartition("}")[2]
    label = element.get("aria-label") if element.get("role") == "graphics-symbol" else None
    class_ = _class(element.get("class", ""))
    element.attrib = {
        name: _LONG.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
        for name, value in element.attrib.items()
        if name in _KEPT | _INHERITED and (name, value) not in _DEFAULT
    } | ({"class": class_} if class_ else {})
    for child in list(element):
        if _invisible(child):
            element.remove(child)
            continue
        _simplify(child)
    _flatten(element)
    _share(element)
    _flatten(element)
    if element.tag == "text":
        _place(element)
    if label:
        title = ET.Element("title")
        title.text = label
        element.insert(0, title)


def _flatten(element: ET.Element) -> None:
    """Put the content of groups that say nothing in their place."""
    for child in list(element):
        if child.tag == "g" and (not child.attrib or not len(child)):
            index = list(element).index(child)
            element[index : index + 1] = list(child)


def _class(given: str) -> str:
    """Return the class of a group of marks by that of the library: of words with a halo, and of lines."""
    if "mark-text" in given and "role-mark" in given:
        return "inside" if "inside" in given else "missing words" if "missing" in given else "words"
    return "line" if "mark-line" in given else ""


def _place(element: ET.Element) -> None:
    """Write a translation as a place, which is shorter."""
    if moved := _MOVED.fullmatch(element.get("transform", "")):
        del element.attrib["transform"]
        element.set("x", moved[1])
        element.set("y", moved[2])


def _share_symbols(drawing: ET.Element, key: str) -> None:
    """Draw each symbol once, and refer to it where it is repeated, which keeps pages small."""
    symbols = [one for one in drawing.iter("path") if _MOVED.fullmatch(one.get("transform", ""))]
    ids: dict[str, str] = {}
    prefix = f"{crc32(key.encode()):x}"[:4]  # ids are of the whole page
    for symbol in symbols:
        shape = ids.setdefault(symbol.attrib.pop("d"), f"s{prefix}{len(ids)}")
        symbol.tag = "use"
        symbol.set("href", f"#{shape}")
        _place(symbol)
    if ids:
        shapes = ET.Element("defs")
        shapes.extend(ET.Element("path", {"id": id_, "d": shape}) for shape, id_ in ids.items())
        drawing.insert(0, shapes)


def _invisible(element: ET.Element) -> bool:
    """Tell if an element is a ground without colour, a label that found no space, or an empty text."""
    empty = element.tag.endswith("}text") and not element.text
    return empty or element.get("opacity") == "0" or element.get("class") in {"background", "foreground"}


def _share(group: ET.Element) -> None:
    """Move attributes that all children of a group have in common to the group, which keeps pages small."""
    if group.tag != "g" or not len(group):
        return
    common = set.intersection(*(set(child.attrib.items()) for child in group))
    for name, value in sorted(common):
        if name in _INHERITED:
            group.set(name, value)
            for child in group:
                del child.attrib[name]
