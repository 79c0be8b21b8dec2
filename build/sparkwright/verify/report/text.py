"""Words and figures as a report shows them; `clean` makes text from outside harmless, for all formats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkwright.base.text import clean
from sparkwright.engine.findings import Verdict

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"
_UNBROKEN = "\N{NO-BREAK SPACE}"

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.NOT_APPLICABLE: NOTHING,
    Verdict.INCONCLUSIVE: "?",
    Verdict.INVALID: "⊘",
    Verdict.FAIL: "✗",
}
WORDS = {
    Verdict.PASS: "Passed",
    Verdict.NOT_APPLICABLE: "Not applicable",
    Verdict.INCONCLUSIVE: "Inconclusive",
    Verdict.INVALID: "Invalid",
    Verdict.FAIL: "Failed",
}

_SIGNIFICANT = 3


def number(value: float | None) -> str:
    """Return *value* with three significant digits, or a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value == int(value) and abs(value) < 1e15:  # noqa: PLR2004 - beyond, digits are no longer exact
        return f"{int(value):,}".replace("-", MINUS)
    if abs(value) >= 100:  # noqa: PLR2004 - three digits before the point
        return f"{value:,.0f}".replace("-", MINUS)
    if abs(value) < 1e-4:  # noqa: PLR2004
        return f"{value:.2e}".replace("-", MINUS)
    digits = max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".replace("-", MINUS)


def figure(value: float | str) -> str:
    """Return one entry of a finding's ``measured``."""
    return clean(value) if isinstance(value, str) else number(value)


def duration(seconds: float) -> str:
    """Return *seconds* as a moment on a time axis: ``45 s``, ``12:30 min``, ``1:05 h``."""
    if seconds < 60:  # noqa: PLR2004
        return f"{number(round(seconds, 1))} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 cell``, ``2 cells``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(value: float) -> str:
    """Return 0.25 as ``25 %``, to a tenth."""
    return f"{value * 100 + 0.0:.1f}".removesuffix(".0") + " %" if math.isfinite(value) else NOTHING


def span(values: Sequence[float]) -> str:
    """Return a range, such as ``12.1 to 24.5``, or one figure if all are the same."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def at_c(concurrency: int) -> str:
    """Return ``c = 8`` without a line break."""
    return f"c{_UNBROKEN}={_UNBROKEN}{concurrency}"
