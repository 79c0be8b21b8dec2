"""The time that a run will take, from its cells and typical rates; refined by what cells really took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkwright.engine.cell import Cell
from sparkwright.engine.client.load import output_lengths
from sparkwright.engine.findings import SPECULATION
from sparkwright.verify.options import VerifyOptions

_WORDS_PER_TOKEN = 0.75
_CELL_S = 1.5  # counters that settle, and a plain request
_LEAST_CELL_S = 0.4  # of the client's clock, whatever the server's is
_NATURAL = 0.7  # of the longest output that answers with natural ends have
_SIMULATED_START_S = 5.0
_WEIGHT_S = 60.0  # of the estimate beside what cells took


@dataclass(frozen=True)
class Rates:
    """Typical rates of a server, in its own seconds.

    The defaults are those of a dense model of 27 billion parameters in four bits with a drafter on a GB10.

    Attributes:
        request_ms: more for each further request.
        prefill_tok_s: prompt tokens a second, all requests together.
        start_s: from the start of a server's process to its first answer.
    """

    step_ms: float = 124.0
    request_ms: float = 18.0
    prefill_tok_s: float = 1600.0
    tokens_per_step: float = 3.2
    start_s: float = 240.0


TINY = Rates(step_ms=6.0, request_ms=0.3, prefill_tok_s=40_000.0, tokens_per_step=3.2, start_s=90.0)
"""Rates of the tiny random models of a smoke run."""


def rates_of(options: VerifyOptions, lacks: Mapping[str, str], *, made_up: bool) -> Rates:
    """Return typical rates of the server that *options* select, which lacks the capabilities in *lacks*."""
    rates = TINY if made_up else Rates()
    if options.url or options.simulator:
        rates = replace(rates, start_s=_SIMULATED_START_S if options.simulator else 0.0)
    return replace(rates, tokens_per_step=1.0) if SPECULATION in lacks else rates


@dataclass(frozen=True)
class Share:
    """The part of an estimate that a check has."""

    check: str
    cells: int
    requests: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """The size of a run and its expected duration."""

    shares: tuple[Share, ...]
    starts: int
    before_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the client's clock, all together."""
        return self.before_s + math.fsum(share.seconds for share in self.shares)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Cells, requests and output tokens."""
        return (
            sum(share.cells for share in self.shares),
            sum(share.requests for share in self.shares),
            sum(share.tokens for share in self.shares),
        )


def cell_seconds(cell: Cell, rates: Rates, speed: float = 1.0) -> float:
    """Return the expected seconds of *cell* by the client's clock; *speed* is the server's seconds in one."""
    load = cell.load
    lengths = output_lengths(load)
    c = max(1, load.requests if load.shape in {"burst", "drain"} else load.concurrency)
    prompts = [len(cell.prompts[n % len(cell.prompts)].text.split()) for n in range(load.requests)] or [0]
    tokens = sum(prompts) / _WORDS_PER_TOKEN * (1 + load.warm_up / max(1, load.requests))
    answer = max(lengths) * (_NATURAL if load.natural_stop else 1.0) / rates.tokens_per_step
    running = min(c, load.requests + load.warm_up) * (0.6 if load.shape == "drain" else 1.0)
    step_s = (rates.step_ms + rates.request_ms * (running - 1)) / 1e3
    if load.seconds:
        served = load.seconds + answer * step_s / 2
    elif load.shape == "open":
        served = (load.requests + load.warm_up) / load.rate + answer * step_s
    else:
        waves = math.ceil(load.requests / c) + math.ceil(load.warm_up / c)
        served = waves * answer * step_s + tokens / rates.prefill_tok_s
    return max((served + _CELL_S) / speed, _LEAST_CELL_S)


def estimate(plans: Mapping[str, Sequence[Cell]], rates: Rates, *, speed: float = 1.0) -> Estimate:
    """Return the estimate for the cells of each check."""
    shares = tuple(
        Share(
            check=name,
            cells=len(cells),
            requests=sum(cell.load.requests + cell.load.warm_up for cell in cells),
            tokens=sum(sum(output_lengths(cell.load)) for cell in cells),
            seconds=math.fsum(cell_seconds(cell, rates, speed) for cell in cells),
        )
        for name, cells in plans.items()
    )
    places = {("main", 0), *((cell.arm, cell.boot) for cells in plans.values() for cell in cells)}
    before = rates.start_s / speed * len(places)
    return Estimate(shares, len(places), before)


@dataclass
class Remaining:
    """The time left of a run in progress: cells that were measured correct the estimate of the others."""

    rates: Rates
    speed: float
    _expected_s: float = field(default=_WEIGHT_S)
    _took_s: float = field(default=_WEIGHT_S)

    def took(self, cell: Cell, seconds: float) -> None:
        """Note that *cell* took so many seconds of the client's clock."""
        self._expected_s += cell_seconds(cell, self.rates, self.speed)
        self._took_s += seconds

    def of(self, cells: Sequence[Cell]) -> float:
        """Return the seconds that *cells* will take."""
        factor = self._took_s / self._expected_s
        return factor * math.fsum(cell_seconds(cell, self.rates, self.speed) for cell in cells)
