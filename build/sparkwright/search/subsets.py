"""Sets of changes closed under what they require."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkwright.search.model import Problem


class Changes:
    """The changes of a problem: in an order in which each follows what it requires, most suspected first.

    Attributes:
        order: ids.
        weights: prior probability of each, in that order; they sum to 1.
    """

    order: tuple[str, ...]
    weights: tuple[float, ...]

    def __init__(self, problem: Problem) -> None:
        """Sort the changes of *problem*.

        Raises:
            BisectionError: there is none, two have the same id, or requirements are missing or form a cycle.
        """
        raise NotImplementedError

    def close(self, ids: Iterable[str]) -> frozenset[str]:
        """Return *ids* with all that they require."""
        raise NotImplementedError

    def without(self, applied: frozenset[str], ids: Iterable[str]) -> frozenset[str]:
        """Return the changes of *applied* that require none of *ids*, nor are one of them."""
        raise NotImplementedError

    def heads(self, applied: frozenset[str]) -> tuple[str, ...]:
        """Return the changes of *applied* that no other of them requires: `close` gives *applied* back."""
        raise NotImplementedError
