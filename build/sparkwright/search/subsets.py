"""Sets of changes closed under what they require, and the smallest of them that still shows a difference."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from sparkwright.base.errors import BisectionError, DependencyOrderError
from sparkwright.search.model import SearchProblem

_UNIFORM = 0.5  # share of the prior that ignores suspicion, so that a wrong one costs about one step


class Changes:
    """The changes of a problem: in an order in which each follows what it requires, most suspected first.

    Attributes:
        weights: prior probability of each, in that order; they sum to 1.
    """

    def __init__(self, problem: SearchProblem) -> None:
        """Sort the changes of *problem*."""
        ids = [change.id for change in problem.changes]
        if not ids:
            raise BisectionError(
                "there is nothing to search",
                because=f"{problem.start} and {problem.end} do not differ",
                next_step="give two specs that differ, or widen --axis",
            )
        if len(set(ids)) < len(ids):
            twice = next(name for name, count in Counter(ids).items() if count > 1)
            raise BisectionError("the changes cannot be searched", because=f"two of them are called {twice}")
        self._requires = _requirements(problem)
        prior = _prior(problem)
        self.order = _sorted(self._requires, prior)
        self.weights = tuple(prior[name] for name in self.order)
        self._place = {name: place for place, name in enumerate(self.order)}

    def close(self, ids: Iterable[str]) -> frozenset[str]:
        """Return *ids* with all that they require."""
        closed: set[str] = set()
        left = list(ids)
        while left:
            name = left.pop()
            if name not in closed:
                closed.add(name)
                left += self._requires[name]
        return frozenset(closed)

    def without(self, applied: frozenset[str], ids: Iterable[str]) -> frozenset[str]:
        """Return the changes of *applied* that require none of *ids*, nor are one of them."""
        gone = set(ids)
        for name in self.order:  # what it requires stands before it
            if self._requires[name] & gone:
                gone.add(name)
        return applied - gone

    def heads(self, applied: frozenset[str]) -> tuple[str, ...]:
        """Return the changes of *applied* that no other of them requires: `close` gives *applied* back."""
        required = {other for name in applied for other in self._requires[name]}
        return tuple(sorted(applied - required, key=self._place.__getitem__))


def _requirements(problem: SearchProblem) -> dict[str, frozenset[str]]:
    """Return the direct requirements of each change; an upstream commit requires the one before it."""
    requires = {}
    before: tuple[str, ...] = ()
    for change in problem.changes:
        chained = before if change.axis == "upstream" else ()
        requires[change.id] = frozenset((*change.requires, *chained))
        if change.axis == "upstream":
            before = (change.id,)
    for name, others in requires.items():
        if missing := others - requires.keys():
            raise DependencyOrderError(
                f"{name} cannot be searched", because=f"it requires {min(missing)}, which is no change"
            )
    return requires


def _prior(problem: SearchProblem) -> dict[str, float]:
    """Return prior probabilities: each axis has the same share, and half of it is spread evenly."""
    prior = {}
    axes = {change.axis for change in problem.changes}
    for axis in axes:
        ids = [change.id for change in problem.changes if change.axis == axis]
        weights = [max(0.0, problem.weights.get(name, 1.0)) for name in ids]
        total = sum(weights)
        for name, weight in zip(ids, weights, strict=True):
            suspicion = weight / total if total else 1 / len(ids)
            prior[name] = (_UNIFORM / len(ids) + (1 - _UNIFORM) * suspicion) / len(axes)
    return prior


def _sorted(requires: Mapping[str, frozenset[str]], prior: Mapping[str, float]) -> tuple[str, ...]:
    """Return ids with requirements first, and else the most suspected, or what that requires, first."""
    place = {name: number for number, name in enumerate(requires)}
    urgent = dict(prior)
    for name in reversed(in_order(requires, place.__getitem__)):
        for other in requires[name]:
            urgent[other] = max(urgent[other], urgent[name])
    return in_order(requires, lambda name: (-urgent[name], place[name]))


def in_order(
    requires: Mapping[str, Iterable[str]], key: Callable[[str], float | tuple[float, int]]
) -> tuple[str, ...]:
    """Return the names in *requires*, each after what it requires and else by its *key*, which no two share.

    Raises:
        DependencyOrderError: they form a cycle.
    """
    sorter = TopologicalSorter(requires)
    try:
        sorter.prepare()
    except CycleError as error:
        raise DependencyOrderError(
            "the changes cannot be searched",
            because=f"requirements form a cycle: {', '.join(sorted(set(error.args[1])))}",
        ) from error
    ready: list[tuple[float | tuple[float, int], str]] = []
    found = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (key(name), name))
        found.append(heapq.heappop(ready)[1])
        sorter.done(found[-1])
    return tuple(found)


def ddmin(
    changes: Changes,
    among: Iterable[str],
    base: frozenset[str],
    shows: Callable[[frozenset[str]], Generator[Any, Any, bool | None]],
) -> Generator[Any, Any, frozenset[str]]:
    """Return a smallest subset of *among* that shows the difference on top of *base* (Zeller 2002).

    No change of it can be left out, with those that require it, so that the difference still shows. What
    cannot be tested counts as not showing it.

    Args:
        changes: for requirements; each set that is tested is closed under them.
        among: changes to choose from; all of them on top of *base* show the difference.
        base: changes that are always applied.
        shows: tests a closed set; `None` if it cannot be tested.
    """
    current = frozenset(among)
    pieces = 2
    while len(current) > 1:
        ordered = [name for name in changes.order if name in current]
        pieces = min(pieces, len(ordered))
        bounds = [len(ordered) * piece // pieces for piece in range(pieces + 1)]
        chunks = [ordered[one:other] for one, other in pairwise(bounds)]
        alone = [(changes.close(chunk) & current, 2) for chunk in chunks]
        rest = [(changes.without(current, chunk), max(pieces - 1, 2)) for chunk in chunks]
        for smaller, next_pieces in (*alone, *rest):
            if smaller and smaller < current and (yield from shows(base | smaller)):
                current, pieces = smaller, next_pieces
                break
        else:
            if pieces == len(ordered):
                break
            pieces = min(2 * pieces, len(ordered))
    return current
