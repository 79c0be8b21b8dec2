"""Warn of slow kernels that a server fell back to while it started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.base.events import warn
from sparkwright.engine.slow_kernels import computes_fp4, fallbacks, lost_graphs

if TYPE_CHECKING:
    from sparkwright.engine.observations import BootFacts
    from sparkwright.engine.slow_kernels import Fallback


def warn_of_fallbacks(facts: BootFacts) -> tuple[Fallback, ...]:
    """Warn of each slow path that a card which computes in FP4 was given without being asked to.

    On any card it warns of whole graphs that drafts have lost.

    Args:
        facts: the facts of a start; without the card's compute capability nothing is judged.

    Returns:
        The slow paths that were warned of.
    """
    if lost := lost_graphs(facts):
        warn(lost)
    found = fallbacks(facts) if computes_fp4(facts.capability) else ()
    for fallback in found:
        warn(str(fallback), layers=fallback.layers)
    return found
