"""The cells of the fleet: which there are, what must come of each, and in what order they run."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

from fleet.shapes import DRAFTERS

CACHES = {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
USUAL = ("none", "dflash", "windows", "eagle3", "ngram")
PAIRED = {
    # Drafters of each shape; "mtp" is in the target's checkpoint, or Gemma 4's paired model.
    "hybrid": DRAFTERS,
    "gemma4": DRAFTERS,
    "gptoss": USUAL,
    "moe": USUAL,
    "dense": USUAL,
    "mla": ("none", "eagle3", "ngram"),
}
TIMES = {
    # Seconds of a cell, eager and with graphs, and more for the first one, which compiles for the others:
    # of an H200 with 16 cores, nine engines at once.
    "hybrid": (40.0, 200.0, 135.0),
    "gemma4": (15.0, 130.0, 50.0),
    "moe": (15.0, 75.0, 50.0),
    "mla": (15.0, 50.0, 60.0),
}
OTHERS = (10.0, 50.0, 35.0)


@dataclass(frozen=True)
class Cell:
    """One engine."""

    shape: str
    drafter: str = "none"
    cache: str = "bf16"
    eager: bool = True
    runner: str = "v1"
    synthetic: bool = False  # two of three drafts are accepted without being looked at

    @property
    def name(self) -> str:
        parts = [self.shape, self.drafter, self.cache, self.runner, "eager" if self.eager else "graphs"]
        return "-".join([*parts, "synthetic"] if self.synthetic else parts)


@dataclass(frozen=True)
class Expectation:
    """The result that is expected of a cell."""

    outcome: str  # serves; refused; or told: either is right, as long as it is said
    pattern: str = ""  # of the error of a refusal


@dataclass(frozen=True)
class Fleet:
    """The cells of a wheel of *version* on a *device*, ``cuda`` or ``cpu``."""

    version: str
    device: str = "cuda"

    @property
    def main(self) -> str:
        """Return the model runner that serves most of the fleet in this series."""
        return "v1" if self.version.startswith("0.24.") else "v2"

    def reference(self, cell: Cell) -> Cell:
        """Return the eager cell with the same cache and no drafter, whose answers judge those of *cell*."""
        runner = self.main if self.device == "cuda" else "v1"
        return Cell(cell.shape, cache=cell.cache, runner=runner)

    def plain(self, cell: Cell) -> Cell:
        """Return the reference with a cache of 16 bits, which tells what the cache's format changes."""
        return replace(self.reference(cell), cache="bf16")

    def expectation(self, cell: Cell) -> Expectation:
        """Return what must come of *cell* on a wheel of *version*."""
        if self.device == "cpu":
            usual = cell.drafter == "none" and cell.cache == "bf16"
            return Expectation("serves" if usual and cell.shape in ("dense", "moe") else "told")
        if cell.shape == "mla" and cell.cache == "nvfp4":
            return Expectation("refused", r"(?i)nvfp4.*not supported with MLA")
        if self.main == "v1" and cell.runner == "v2" and (cell.shape == "hybrid" or cell.drafter == "ngram"):
            return Expectation("refused", r"Model Runner V2 does not yet support|is not supported yet")
        if cell.runner != self.main or cell.shape == "mla":
            return Expectation("told")  # not the fleet's usual way
        return Expectation("serves" if cell.drafter in ("none", "dflash", "windows") else "told")

    def cells(self) -> list[Cell]:
        """Return every cell that a wheel of *version* can be asked for."""
        found = []
        for shape, drafters in PAIRED.items():
            for drafter, cache, eager, runner in product(drafters, CACHES, (True, False), ("v1", "v2")):
                if self.device == "cpu" and (not eager or cache == "nvfp4" or runner == "v2"):
                    continue
                cell = Cell(shape, drafter, cache, eager, runner)
                if self.expectation(cell).outcome == "refused":
                    # One of each refusal is enough.
                    once = "nvfp4" if shape == "mla" and runner == self.main else "bf16"
                    first = drafter == ("none" if shape in ("hybrid", "mla") else "ngram")
                    found += [cell] if eager and cache == once and first else []
                    continue
                found.append(cell)
                if drafter not in ("none", "ngram") and cache in ("bf16", "nvfp4"):
                    found.append(replace(cell, synthetic=True))
        return found

    def backend(self, cell: Cell) -> str | None:
        """Return the attention backend that is asked for; None where vLLM's own choice is taken."""
        if self.device == "cpu":
            return None
        return "TRITON_MLA" if cell.shape == "mla" else "TRITON_ATTN"

    def caches_prefixes(self, cell: Cell) -> bool:
        """Return whether the prefix cache is on: a CPU cannot keep states of drafts and prefixes at once."""
        return self.device == "cuda" or cell.shape != "hybrid" or cell.drafter == "none"

    def seconds(self, cell: Cell) -> float:
        """Return how long a cell is expected to take: boot, levels and the prefix."""
        if self.device == "cpu":
            return 150.0  # on two busy cores
        eager, graphs, first = TIMES.get(cell.shape, OTHERS)
        took = eager if cell.eager else graphs
        return took + (first if cell == Cell(cell.shape, runner=cell.runner) else 0.0)

    def ordered(self, asked: Iterable[Cell], done: set[Cell]) -> list[Cell]:
        """Return the cells of *asked* that are not *done*, each after the references that judge it.

        The series' own runner comes first, eager before graphs, what is accepted blindly last; within that
        the order is as good as random, so that a short session meets some of everything. The shape that
        compiles for longest starts at once.
        """

        def rank(cell: Cell) -> tuple[bool, ...] | tuple[bool, bool, bool, int]:
            told = self.expectation(cell).outcome != "serves"
            chance = zlib.crc32(cell.name.encode())
            return cell.synthetic, cell.runner != self.main, told or not cell.eager, chance

        found: list[Cell] = []
        left = sorted((cell for cell in asked if cell not in done), key=rank)
        slow = [cell for cell in left if cell.shape == "hybrid"][:1]
        for cell in [*slow, *left]:
            both = (self.plain(cell), self.reference(cell))
            found += [one for one in dict.fromkeys((*both, cell)) if one not in done and one not in found]
        return found
