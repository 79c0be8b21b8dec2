"""Rounds of a soak: traffic over shared prefixes, the same questions around it, processes and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.figures import acceptance, paired_ratio
from sparkwright.verify.checks.triage import CheckedCells
from sparkwright.verify.compare import Ratio
from sparkwright.verify.statistics import theil_sen

ROUND_S = 300.0
LEAST_ROUNDS = 4
PREFIXES = 4
PREFIX_TOKENS = 2000
PROBES = 24
PROBE_TOKENS = 128
HOLD = 0.8
"""Accepted tokens a draft over those of the first probes, or cached over cold, below which it is a decay."""
SURE = 0.01
_LONGEST_PAUSE_NS = 60_000_000_000  # of the client's clock, for counters to settle and a canary
GROWTH_MIB, GROWTH = 256.0, 0.05
"""Least growth of memory that is worth a warning, also as a share of what it was."""


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield for each round primers, probes cold and cached, and traffic; then final probes.

    The traffic of all rounds takes `Profile.soak_s`; probes take about a third of that more.
    """
    total = context.profile.soak_s
    rounds = max(LEAST_ROUNDS, math.ceil(total / ROUND_S - 1e-9))
    for number in range(rounds + 1):
        yield from _probe_cells(context, number)
        if number < rounds:
            yield _traffic_cell(context, number, total / rounds)


def _prefix(context: Context, number: int) -> str:
    return context.corpus.notes(PREFIX_TOKENS, number, f"soak {context.profile.seed}")


def _after(prefix: str, question: Prompt, mark: str, *, shared: bool) -> Prompt:
    """Return *question* after the notes in *prefix*: the shared text, or a new copy with a mark."""
    text = prefix if shared else f"[{mark} {question.name.rpartition('/')[2]}]\n{prefix}"
    return Prompt(
        name=f"{question.name}/{mark}",
        category=question.category,
        text=f"{text}[{mark}]\n{question.text}",
        expect=question.expect,
        prefix=prefix if shared else "",
    )


def _probe_cells(context: Context, number: int) -> Iterator[Cell]:
    """Yield primers of the prefixes, and probes after new copies of them and after the prefixes."""
    sizes = context.profile
    prefixes = [_prefix(context, i) for i in range(PREFIXES)]
    questions = context.prompts_in_turn(PROBES, "soak probe")
    tokens = min(PROBE_TOKENS, sizes.max_tokens)
    for kind, count, length, shared in (
        ("primer", PREFIXES, 8, True),
        ("cold", PROBES, tokens, False),
        ("cached", PROBES, tokens, True),
    ):
        prompts = [
            _after(prefixes[i % PREFIXES], question, f"{kind} {number}", shared=shared)
            for i, question in enumerate(questions[:count])
        ]
        yield context.cell(
            "soak",
            f"round {number} {kind}",
            prompts,
            tags={"kind": kind, "round": str(number)},
            concurrency=min(sizes.soak_concurrency, len(prompts)),
            max_tokens=length,
        )


def _traffic_cell(context: Context, number: int, seconds: float) -> Cell:
    """Return traffic: half after shared prefixes, a quarter after notes of its own, a quarter short.

    The questions are the same in every round, so that the mix of what is said does not change.
    """
    sizes = context.profile
    count = 4 * len(sizes.categories)
    mark = f"traffic {number}"
    prompts = []
    for i, question in enumerate(context.prompts_in_turn(count, "soak traffic")):
        # Each category gets each treatment once.
        match (i + i // len(sizes.categories)) % 4:
            case 0 | 2:
                prompts.append(_after(_prefix(context, i % PREFIXES), question, mark, shared=True))
            case 1:
                prompts.append(_after(_prefix(context, PREFIXES + i), question, mark, shared=False))
            case _:
                salted = f"[{mark}]\n{question.text}"
                prompts.append(msgspec.structs.replace(question, name=f"{question.name}/{mark}", text=salted))
    return context.cell(
        "soak",
        f"round {number} traffic",
        prompts,
        tags={"kind": "traffic", "round": str(number)},
        concurrency=sizes.soak_concurrency,
        requests=count,
        max_tokens=sizes.max_tokens,
        seconds=seconds,
        stagger_s=5.0,
    )


# Acceptance ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """One repetition of all questions, which began so many seconds after the soak."""

    number: int
    at_s: float
    seen: Observation


@dataclass(frozen=True)
class Probes:
    """All probes, by kind and in order of time."""

    cold: tuple[Probe, ...]
    cached: tuple[Probe, ...]

    @classmethod
    def of(cls, seen: CheckedCells, begun: Mapping[str, float]) -> Probes:
        """Return the probes among the sound observations of a soak whose cells began at *begun*."""

        def kind(name: str) -> tuple[Probe, ...]:
            return tuple(
                Probe(int(o.cell.tags["round"]), begun[o.cell.name], o)
                for o in seen.tagged(kind=name).sound
                if acceptance(o) is not None
            )

        return cls(kind("cold"), kind("cached"))

    @property
    def rounds(self) -> int:
        """Number of rounds with probes of both kinds."""
        return min(len(self.cold), len(self.cached))

    def over_first(self) -> list[tuple[str, Probe, Ratio]]:
        """Return each later probe over the first of its kind; all intervals together err in 1 % of soaks."""
        comparisons = max(1, len(self.cold) + len(self.cached) - 2)
        found = []
        for kind, probes in (("cold", self.cold), ("cached", self.cached)):
            for probe in probes[1:]:
                ratio = paired_ratio([probe.seen], [probes[0].seen], comparisons, SURE)
                if ratio is not None:
                    found.append((kind, probe, ratio))
        return found

    def steady_pairs(self) -> list[tuple[Probe, Probe]]:
        """Return cold and cached probes of each round in which cold ones are as good as they were at first.

        While acceptance falls anyway, a cached asking is worse for coming later than a cold one; so a round
        is left out where its cold asking or the one after it has surely fallen.
        """
        fallen = {
            probe.number for kind, probe, ratio in self.over_first() if kind == "cold" and ratio.high < HOLD
        }
        cached = {probe.number: probe for probe in self.cached}
        return [
            (probe, cached[probe.number])
            for probe in self.cold
            if probe.number in cached and not fallen & {probe.number, probe.number + 1}
        ]


# Time and processes ---------------------------------------------------------------------------------------


def clock(seconds: float) -> str:
    """Format a duration: ``90 s``, ``10 min``, ``10 min 30 s``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 2:  # noqa: PLR2004 - 90 s reads better than 1 min 30 s
        return f"{whole} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def elapsed(observations: Iterable[Observation], speed: float) -> dict[str, float]:
    """Return the start of each cell, by its name, in seconds of the server's clock since the first one did.

    Cells' durations are added up, with the pauses between them, but for long ones: the clock's origin may
    change when a run is resumed, and what the server did meanwhile was not soaking.
    """
    begun: dict[str, float] = {}
    total, last = 0.0, None
    for observation in observations:
        before, after = observation.before, observation.after
        if before is not None and last is not None and 0 < before.at - last <= _LONGEST_PAUSE_NS:
            total += (before.at - last) * speed / 1e9
        begun[observation.cell.name] = total
        if before is not None and after is not None:
            total += (after.at - before.at) * speed / 1e9
        last = after.at if after is not None else None
    return begun


def lives(made: Sequence[Observation]) -> dict[float, list[Observation]]:
    """Return the observations by server process."""
    lives: dict[float, list[Observation]] = {}
    for observation in made:
        if observation.before is not None and observation.after is not None:
            lives.setdefault(observation.after.start_s, []).append(observation)
    return lives


def longest_life(made: Sequence[Observation], speed: float) -> float:
    """Return the longest time, in server seconds, for which one process was observed."""
    return max(
        (
            sum((o.after.at - o.before.at) * speed / 1e9 for o in life if o.after and o.before)
            for life in lives(made).values()
        ),
        default=0.0,
    )


def memory_trends(made: Sequence[Observation], speed: float) -> tuple[dict[str, float | str], list[str]]:
    """Return changes of memory over a soak by robust slopes, in MiB, and warnings on steady growth.

    A clock that runs faster is a simulator's, whose memory is not this machine's.
    """
    figures: dict[str, float | str] = {}
    warnings = []
    begun = elapsed(made, speed)
    watched = (
        ("server RSS", "server_rss_mib", 1, "the server's resident memory grew"),
        ("available memory", "memory_available_mib", -1, "the machine's available memory shrank"),
    )
    for name, field, sign, shown in watched if speed == 1 else watched[:1]:
        pairs = [
            (begun[o.cell.name] + (sample.at - o.before.at) * speed / 1e9, getattr(sample, field))
            for o in made
            if o.before is not None
            for sample in o.host
            if getattr(sample, field) >= 0
        ]
        thinned = pairs[:: max(1, len(pairs) // 200)]
        times, values = [at for at, _ in thinned], [value for _, value in thinned]
        if len(set(times)) <= 2:  # noqa: PLR2004 - no trend from two
            continue
        span, slope = times[-1] - times[0], theil_sen(times, values)
        figures |= {
            f"{name} change MiB": round(slope.slope * span, 1),
            f"{name} at the start MiB": round(values[0], 1),
        }
        change = sign * slope.slope * span
        sure = slope.low > 0 if sign > 0 else slope.high < 0
        if sure and change > max(GROWTH_MIB, GROWTH * values[0]):
            how = f"by {change:.0f} MiB in {clock(span)}, from {values[0]:.0f} MiB"
            warnings.append(f"{shown} steadily: {how}")
    return figures, warnings
