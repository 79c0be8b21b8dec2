"""Is an attention backend's result the one that its case asks for? Pure functions."""

from __future__ import annotations

from typing import Any

__all__ = ["ALLOWED", "faults"]

ALLOWED = 1e-2  # relative; bfloat16 rounds by 2e-3, and the probabilities are rounded once more


def faults(line: dict[str, Any]) -> list[str]:
    """Return what is wrong with a case, in words."""
    if line["fault"]:
        return [line["fault"]]
    found = []
    if not line["error"] <= ALLOWED:  # not a number is no less than anything
        found.append(f"error {line['error']:.2e}, allowed {ALLOWED:.0e}")
    found += [
        f"no further from another {name}: {error:.2e}"
        for name, error in line["apart"].items()
        if not error > max(ALLOWED, 2 * line["error"])
    ]
    if "causality" not in line["apart"]:
        found.append("causality makes no difference here")
    if line["window"] and line["histories"] in ("beyond", "mixed") and "window -1" not in line["apart"]:
        found.append("the window makes no difference here")
    if not line["padding"]:
        found.append("rows of padding were written")
    return found
