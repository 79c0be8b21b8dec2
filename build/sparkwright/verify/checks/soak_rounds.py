"""Rounds of a soak: traffic over shared prefixes, and the same questions around it with their acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.acceptance import acceptance, paired_ratio
from sparkwright.verify.checks.triage import CheckedCells
from sparkwright.verify.compare import Ratio

ROUND_S = 300.0
LEAST_ROUNDS = 4
PREFIXES = 4
PREFIX_TOKENS = 2000
PROBES = 24
PROBE_TOKENS = 128
HOLD = 0.8
"""Accepted tokens a draft over those of the first probes, or cached over cold, below which it is a decay."""
SURE = 0.01


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

    def last_over_first(self) -> dict[str, float]:
        """Return the last probe over the first one, by kind."""
        last = {kind: ratio.value for kind, _, ratio in self.over_first()}
        return last or dict.fromkeys(("cold", "cached"), 1.0)

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
