"""The cells of the fleet: which there are, what must come of each, and which are worth a card's time first.

A cell is one engine. Its value is what it has that no earlier cell had: pairs of properties, and triples. A
short session so meets every pair of shape, drafter, cache, mode and runner before it repeats one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import inf
from typing import TYPE_CHECKING

from fleet.drafters import DRAFTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CACHES",
    "Cell",
    "Expectation",
    "cells",
    "expectation",
    "of_drafter",
    "ordered",
    "plain",
    "reference",
    "seconds",
]

CACHES = {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4", "turbo": "turboquant_k8v4"}
PAIRED = {
    # Drafters of each shape; "mtp" is in the target's checkpoint, or Gemma 4's paired model.
    "hybrid": DRAFTERS,
    "gemma4": DRAFTERS,
    "gptoss": ("none", "dflash", "windows", "eagle3", "ngram"),
    "moe": ("none", "dflash", "windows", "eagle3", "ngram"),
    "dense": ("none", "dflash", "windows", "eagle3", "ngram"),
    "mla": ("none", "eagle3", "ngram"),
    "modelopt": ("none", "dflash"),
    "compressed": ("none", "dflash"),
    "rounded": ("none",),
    "image": ("none", "ngram"),
}
TWINS = {"modelopt": "rounded", "compressed": "rounded"}  # 16 bits of the same values
WORTH = {
    "hybrid": 4.0,
    "gemma4": 3.0,
    "gptoss": 2.0,
    "moe": 2.0,
    "modelopt": 1.5,
    "compressed": 1.5,
    "image": 1.5,
}
EAGER = {"hybrid": 40.0, "gemma4": 15.0, "image": 25.0, "moe": 15.0, "mla": 15.0}
GRAPHS = {"hybrid": 200.0, "gemma4": 130.0, "moe": 75.0}
FIRST = {"hybrid": 135.0, "gemma4": 50.0, "image": 50.0, "moe": 50.0, "mla": 60.0}
"""Seconds of a cell by shape, eager and with graphs, and more of them for the first one of a shape."""
LONG = 100.0  # a first engine that compiles for so long is started before all others
_FASTEST = 1 / 10.0  # of all cells' rates, by a unit of worth
SURE = {"serves": 1.0, "told": 0.4, "refused": 0.4}  # how much of a cell's value is counted on
ON_TWO_CARDS = ("hybrid", "gemma4", "moe")


@dataclass(frozen=True)
class Cell:
    """One engine.

    Attributes:
        shape: name of the architecture.
        drafter: one of `fleet.drafters.DRAFTERS`.
        cache: key of `CACHES`.
        eager: without CUDA graphs.
        runner: ``v1`` or ``v2``.
        cards: tensor parallelism.
        synthetic: two of three drafts are accepted without being looked at.
    """

    shape: str
    drafter: str = "none"
    cache: str = "bf16"
    eager: bool = True
    runner: str = "v1"
    cards: int = 1
    synthetic: bool = False

    @property
    def name(self) -> str:
        """Such as ``hybrid-dflash-fp8-v1-graphs``."""
        parts = [self.shape, self.drafter, self.cache, self.runner, "eager" if self.eager else "graphs"]
        parts += [f"tp{self.cards}"] if self.cards > 1 else []
        return "-".join([*parts, "synthetic"] if self.synthetic else parts)


@dataclass(frozen=True)
class Expectation:
    """The result that is expected of a cell.

    Attributes:
        outcome: ``serves``; ``refused``, with an error before anything is served; or ``told``, where either
            is right as long as it is said: what is served must be right, and what is refused is recorded.
        pattern: what the error of a refusal must match.
    """

    outcome: str
    pattern: str = ""


def series_of(version: str) -> str:
    """Return the series of a version, such as ``0.24``."""
    return ".".join(version.split(".")[:2])


def main_runner(version: str) -> str:
    """Return the model runner that serves most of the fleet in this series."""
    return "v1" if series_of(version) == "0.24" else "v2"


def reference(cell: Cell, version: str, *, device: str = "cuda") -> Cell:
    """Return the eager cell with the same cache and no drafter, whose answers judge those of *cell*."""
    runner = main_runner(version) if device == "cuda" else "v1"
    return Cell(TWINS.get(cell.shape, cell.shape), cache=cell.cache, runner=runner)


def plain(cell: Cell, version: str, *, device: str = "cuda") -> Cell:
    """Return the reference with a cache of 16 bits, which tells what the cache's format changes."""
    return replace(reference(cell, version, device=device), cache="bf16")


@lru_cache(None)
def expectation(cell: Cell, version: str, *, device: str = "cuda") -> Expectation:
    """Return what must come of *cell* on a wheel of *version*."""
    if device == "cpu":
        plain = cell.drafter == "none" and cell.cache == "bf16"
        return Expectation("serves" if plain and cell.shape in ("dense", "moe", "rounded") else "told")
    early = series_of(version) == "0.24"
    if cell.shape == "mla" and cell.cache == "nvfp4":
        return Expectation("refused", r"(?i)nvfp4.*not supported with MLA")
    if early and cell.runner == "v2" and (cell.shape == "hybrid" or cell.drafter == "ngram"):
        return Expectation("refused", r"Model Runner V2 does not yet support|is not supported yet")
    if cell.runner != main_runner(version) or cell.cards > 1:
        return Expectation("told")  # neither is the fleet's usual way, nor was it ever run
    if cell.cache == "turbo" or cell.shape in ("mla", "modelopt", "compressed", "image"):
        return Expectation("told")
    return Expectation("serves" if cell.drafter in ("none", "dflash", "windows") else "told")


def cells(version: str, *, device: str = "cuda", cards: int = 1) -> list[Cell]:
    """Return every cell that a wheel of *version* can be asked for on that many cards."""
    found = []
    runners = ("v1",) if device == "cpu" else ("v1", "v2")
    for shape, drafters in PAIRED.items():
        if cards > 1 and shape not in ON_TWO_CARDS:
            continue
        for drafter, cache, eager, runner in product(drafters, CACHES, (True, False), runners):
            if device == "cpu" and (not eager or cache in ("nvfp4", "turbo")):
                continue
            if shape == "mla" and cache == "turbo":
                continue
            cell = Cell(shape, drafter, cache, eager, runner, cards)
            if expectation(cell, version, device=device).outcome == "refused":
                # One of each refusal is enough.
                once = "nvfp4" if shape == "mla" and runner == main_runner(version) else "bf16"
                first = drafter == ("none" if shape in ("hybrid", "mla") else "ngram") and cards == 1
                found += [cell] if eager and cache == once and first else []
                continue
            found.append(cell)
            if drafter not in ("none", "ngram") and cache in ("bf16", "nvfp4"):
                found.append(replace(cell, synthetic=True))
    return found


def backend(cell: Cell, version: str, *, device: str = "cuda") -> str | None:
    """Return the attention backend that is asked for; None where vLLM's own choice is taken."""
    if device == "cpu":
        return None
    if cell.shape == "mla":
        return "TRITON_MLA"
    return None if cell.cache == "turbo" else "TRITON_ATTN"


def of_drafter(cell: Cell, version: str, *, device: str = "cuda") -> dict[str, str]:
    """Return the backend that a drafter is asked for, where vLLM's own choice is not taken."""
    of_target = backend(cell, version, device=device)
    return {"attention_backend": of_target} if of_target == "TRITON_ATTN" else {}


def caches_prefixes(cell: Cell, *, device: str = "cuda") -> bool:
    """Return whether the prefix cache is on: a CPU cannot keep states of drafts and of prefixes at once."""
    return device == "cuda" or cell.shape != "hybrid" or cell.drafter == "none"


def seconds(cell: Cell, *, device: str = "cuda") -> float:
    """Return how long a cell is expected to take, in seconds: boot, levels and the prefix.

    Measured on an H200 with 16 cores, nine engines at once, forked from one process. A shape's first engine
    compiles kernels for those after it. On a CPU two busy cores are assumed.
    """
    if device == "cpu":
        return 150.0
    took = EAGER.get(cell.shape, 10.0) if cell.eager else GRAPHS.get(cell.shape, 50.0)
    first = cell == Cell(cell.shape, runner=cell.runner)
    return took + (FIRST.get(cell.shape, 35.0) if first else 0.0) + (10.0 if cell.cards > 1 else 0.0)


@lru_cache(None)
def groups(cell: Cell) -> frozenset[tuple[str, ...]]:
    """Return the pairs and the triples of properties that a cell has."""
    found = [
        f"shape={cell.shape}", f"drafter={cell.drafter}", f"cache={cell.cache}", f"eager={cell.eager}",
        f"runner={cell.runner}", f"synthetic={cell.synthetic}",
    ]  # fmt: skip
    return frozenset([*combinations(found, 2), *combinations(found, 3)])


def worth(cell: Cell, met: set[tuple[str, ...]]) -> float:
    """Return the value of a cell where *met* is known: a triple counts a tenth of a pair."""
    new = groups(cell) - met
    of_answers = (
        0.5 if cell.synthetic else 1.0
    )  # what is accepted blindly shows counters, and no right answer
    return of_answers * WORTH.get(cell.shape, 1.0) * sum(1.0 if len(one) == 2 else 0.1 for one in new)


def ordered(
    asked: Iterable[Cell],
    done: dict[Cell, bool],
    version: str,
    *,
    device: str = "cuda",
    first: Iterable[Cell] = (),
) -> list[tuple[Cell, float]]:
    """Return the cells of *asked* that are not *done*, each with its value, most value per second first.

    *done* says of each cell that ran if it was served: one that was refused has shown nothing else.

    A cell's value is its shape's worth times what it is the first to have. References come right before the
    first cell that they judge, that of 16 bits first. A shape whose kernels compile for long starts at once,
    and after it the cells of *first* in their order.
    """
    left = {cell: inf for cell in asked if cell not in done}
    met = set().union(*(groups(cell) for cell, served in done.items() if served))
    known, found = set(done), []
    slow = [
        cell
        for cell in left
        if FIRST.get(cell.shape, 0.0) >= LONG and cell == plain(cell, version, device=device)
    ]
    leading = [*slow, *(cell for cell in first if cell in left and cell not in slow)]
    while left:
        leading = [cell for cell in leading if cell in left]
        best = leading.pop(0) if leading else _best(left, met, known, version, device)
        for one in [*_missing(best, known, version, device), best]:
            found.append((one, round(worth(one, met), 1)))
            known.add(one)
            met |= groups(one)
            left.pop(one, None)
    return found


def _missing(cell: Cell, known: set[Cell], version: str, device: str) -> list[Cell]:
    """Return the references of a cell that have not run, the cell itself left out."""
    both = (plain(cell, version, device=device), reference(cell, version, device=device))
    return [one for one in dict.fromkeys(both) if one not in known and one != cell]


def _best(
    left: dict[Cell, float], met: set[tuple[str, ...]], known: set[Cell], version: str, device: str
) -> Cell:
    """Return the cell of *left* with the most value a second.

    *left* has of each cell the worth that it had when it was last looked at. Worth never rises, so that cells
    whose last one would not do are not looked at.
    """
    best, most = None, -inf
    for cell in sorted(left, key=left.__getitem__, reverse=True):
        rate = _rate(cell, known, version, device)
        if left[cell] * _FASTEST <= most:
            break
        if rate * left[cell] <= most:
            continue
        left[cell] = worth(cell, met) + 0.001
        if rate * left[cell] > most:
            best, most = cell, rate * left[cell]
    return best or next(iter(left))


def _rate(cell: Cell, known: set[Cell], version: str, device: str) -> float:
    """Return the reciprocal of a cell's seconds, with those of references that have not run."""
    more = sum(seconds(one, device=device) for one in _missing(cell, known, version, device))
    sure = SURE[expectation(cell, version, device=device).outcome]
    sure *= 1.0 if cell.runner == main_runner(version) else 0.8
    return sure / (seconds(cell, device=device) + more)
