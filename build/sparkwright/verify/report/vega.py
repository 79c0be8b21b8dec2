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
from typing import Any
from xml.etree import ElementTree as ET

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
STANDALONE_STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif;
  --card: #ffffff; --ink: #14181f; --soft: #4d5766; --line: #dde1e8;
  --s0: #069ce4; --s1: #823bae; --s2: #368223; --s3: #e5598e; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171c; --card: #14171c; --ink: #e9ecf1; --soft: #a7b0be; --line: #2b313b;
    --s0: #4ba3f7; --s1: #b57adb; --s2: #5fb447; --s3: #f3669a; } }
text { font-size: 12.5px; font-variant-numeric: tabular-nums; }
"""
"""The colours and font of a drawing that is a file of its own, outside the page."""
# Text is measured larger than the page's 12.5 px and in a font that the library holds: a reader's font may be
# wider, and the drawing must not depend on the fonts of this machine.
_MEASURED = {"fontSize": 14.5, "font": "Liberation Sans"}
_LABELS = {"labelFontSize": 14.5, "labelFont": "Liberation Sans"}
_TITLES = {"titleFontSize": 14.5, "titleFont": "Liberation Sans", "titleFontWeight": "normal"}
CONFIG: dict[str, Any] = {
    "axis": {
        **_LABELS,
        **_TITLES,
        "aria": False,
        "domainColor": "var(--soft)",
        "gridColor": "var(--line)",
        "labelColor": "var(--soft)",
        "labelFlush": False,
        "labelOverlap": True,
        "labelSeparation": 6,
        "tickColor": "var(--soft)",
        "titleColor": "var(--soft)",
    },
    "axisX": {"grid": False, "titlePadding": 8},
    "axisY": {
        "domain": False,
        "labelPadding": 8,
        "ticks": False,
        "titleAlign": "left",
        "titleAnchor": "start",
        "titleAngle": 0,
        "titleX": 0,
        "titleY": -14,
    },
    "header": {**_LABELS, "labelColor": "var(--ink)", "labelFontWeight": 600},
    "text": {**_MEASURED, "color": "var(--ink)"},
    "view": {"stroke": None},
}
_INHERITED = {"fill", "stroke", "stroke-width", "stroke-dasharray", "font-weight", "text-anchor"}
_KEPT = {"class", "transform", "d", "x", "x2", "y", "y2", "width", "height", "opacity", "stroke-opacity"}
_DEFAULT = {
    ("opacity", "1"),
    ("font-weight", "normal"),
    ("x2", "0"),
    ("y2", "0"),
    ("transform", "translate(0,0)"),
}
_LONG = re.compile(r"(\.\d\d)\d+")


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
    element.attrib = {
        name: _LONG.sub(r"\1", value)
        for name, value in element.attrib.items()
        if name in _KEPT | _INHERITED and (name, value) not in _DEFAULT
    }
    if element.tag == "g" and "role-mark" not in element.get("class", ""):
        element.attrib.pop("class", None)
    for child in list(element):
        if _invisible(child):
            element.remove(child)
            continue
        _simplify(child)
        if child.tag == "g" and (not child.attrib or not len(child)):
            index = list(element).index(child)
            element[index : index + 1] = list(child)
    _share(element)
    if label:
        title = ET.Element("title")
        title.text = label
        element.insert(0, title)


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
