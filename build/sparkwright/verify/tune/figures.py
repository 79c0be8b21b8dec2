"""Figures of one start, from the observations of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.observations import Observation
from sparkwright.verify.capacity.slo import parse_slo, times_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import troubles
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.statistics import percentile
from sparkwright.verify.tune.options import GOODPUT, TuneOptions
from sparkwright.verify.tune.strategy import StartFigures

CHECK = "tune"
KIND = "kind"
SPEED = "speed"
STAGGER_S = 0.02
_LEAST_RATE = 1e-3  # tokens a second, where no request kept the objective


def speed_cells(context: Context, arm: str, number: int) -> tuple[Cell, ...]:
    """Return the cells of one start: the same prompts for each configuration and each start.

    Args:
        context: sizes and prompts.
        arm: key of the configuration.
        number: of its start.
    """
    sizes = context.profile
    cells = []
    for level in sizes.levels:
        requests = max(sizes.least_requests, sizes.requests_per_client * level)
        load = Load(
            concurrency=level,
            requests=requests,
            warm_up=level,
            max_tokens=sizes.max_tokens,
            stagger_s=STAGGER_S,
            seed=sizes.seed,
        )
        prompts = context.prompts_in_turn(requests, f"tune c={level}")
        tags = {KIND: SPEED, "level": str(level)}
        name = f"c={level}"
        cells.append(
            Cell(check=CHECK, name=name, load=load, prompts=prompts, arm=arm, boot=number, tags=tags)
        )
    return tuple(cells)


def trouble_of(observation: Observation, *, metered: bool = True) -> str:
    """Return the reason for which a cell does not count; empty if it does."""
    found = troubles(observation, metered=metered)
    return found[0].cause if found else ""


def start_figures(seen: Sequence[Observation], options: TuneOptions, speed: float) -> StartFigures:
    """Return the figures of one start from its cells, in order of the levels.

    Args:
        seen: observations that count, one of each level.
        options: of the search.
        speed: server's seconds in one of the client's.
    """
    rates = tuple(_rate(one, options, speed) for one in seen)
    score = math.fsum(w * math.log(rate) for w, rate in zip(options.weighted, rates, strict=True))
    times: dict[str, tuple[float, ...]] = {}
    if options.slo:
        slo = parse_slo(options.slo)
        times = {name: tuple(_time(one, name, slo.share, speed) for one in seen) for name in slo.limits}
    memory = [s.memory_available_mib for one in seen for s in one.host if s.memory_available_mib >= 0]
    # A simulator's steps last as long on a machine that swaps.
    slowed = [] if options.simulator else [words for one in seen for words in disturbances(one)]
    return StartFigures(score, rates, times, min(memory, default=-1), slowed[0] if slowed else "")


def _rate(observation: Observation, options: TuneOptions, speed: float) -> float:
    """Return tokens a second of the objective, in the server's time."""
    found = figures(observation, speed)
    if options.objective != GOODPUT:
        return found.steady_tok_s if math.isfinite(found.steady_tok_s) else found.whole_tok_s
    slo = parse_slo(options.slo)
    good = sum(s.output_tokens for s in observation.counted if slo.met_by(s, speed))
    total = sum(s.output_tokens for s in observation.counted)
    return max(_LEAST_RATE, found.whole_tok_s * good / total) if total else _LEAST_RATE


def _time(observation: Observation, name: str, share: float, speed: float) -> float:
    """Return a percentile of a time in seconds."""
    found = [times_of(sample, speed)[name] for sample in observation.counted]
    known = [value for value in found if math.isfinite(value) and value > 0]
    return percentile(known, 100 * share) if known else math.inf
