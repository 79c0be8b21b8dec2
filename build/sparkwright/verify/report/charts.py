"""The chart of a page: load over concurrency, as inline SVG in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkwright.verify.report.figures import Level

# The narrowest page has room for a drawing of this width without scaling, so that its words stay readable.
_WIDTH, _HEIGHT = 340.0, 112.0  # of the drawing, and of a panel
_LEFT, _RIGHT, _ABOVE, _BELOW = 48.0, 14.0, 30.0, 40.0
_MARK = "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0-7,0"
_TICKS = 4
_PANELS = {  # fields of `Level`: solid, and dashed
    "tokens/s": ("tok_s",),
    "TTFT ms": ("ttft_p50_ms", "ttft_p95_ms"),
    "TPOT ms": ("tpot_p50_ms", "tpot_p95_ms"),
}

Places = Sequence[tuple[float, float]]
"""Points of a line: place on the x axis, and value."""


def load_chart(found: Sequence[Level]) -> str:
    """Return panels of throughput and times over concurrency as an SVG element; empty for one concurrency."""
    found = [one for one in found if one.concurrency > 0]
    if len(found) < 2:  # noqa: PLR2004 - no course
        return ""
    low, high = (math.log2(one.concurrency) for one in (found[0], found[-1]))
    width = _WIDTH - _LEFT - _RIGHT
    across = {one.concurrency: width * (math.log2(one.concurrency) - low) / (high - low) for one in found}
    top, body = 0.0, ""
    for title, fields in _PANELS.items():
        lines = [
            [
                (across[one.concurrency], value)
                for one in found
                if 0 < (value := getattr(one, name)) < math.inf
            ]
            for name in fields
        ]
        if any(lines):
            top += _ABOVE
            body += f'<g transform="translate({_LEFT:g},{top:g})">{_panel(title, lines, width)}</g>'
            top += _HEIGHT
    for level, place in across.items():
        body += _text(_LEFT + place, top + 18, f"{level}", "middle")
    body += _text(_LEFT + width / 2, top + 35, "requests at a time (c)", "middle")
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {top + _BELOW:g}" role="img" aria-labelledby="load-title load-desc">'
        '<title id="load-title">Throughput and latency over concurrency</title>'
        '<desc id="load-desc">The table of key figures has every value.</desc>'
        f"{body}</svg>"
    )


def _panel(title: str, lines: Sequence[Places], width: float) -> str:
    high = 1.05 * max(value for line in lines for _, value in line)
    drawn = _text(-_LEFT, -13, title)
    for value in round_values(high):
        down = _HEIGHT * (1 - value / high)
        drawn += f'<path class="rule" d="M0,{down:.1f}h{width:g}"/>'
        drawn += _text(-6, down + 4, f"{value:,g}", "end")
    for shape, line in zip(("line", "dashed"), lines, strict=False):
        points = [f"{at:.1f},{_HEIGHT * (1 - value / high):.1f}" for at, value in line]
        drawn += f'<path class="{shape}" d="M{"L".join(points)}"/>' if points else ""
        drawn += f'<path class="marks" d="{"".join(f"M{point}{_MARK}" for point in points)}"/>'
    return drawn


def round_values(high: float) -> list[float]:
    """Return a few round values from 0 to *high*."""
    power = 10 ** math.floor(math.log10(high / _TICKS))
    step = next(one * power for one in (1, 2, 5, 10) if one * power * _TICKS >= high)
    return [step * number for number in range(math.floor(high / step + 1e-9) + 1)]


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
