"""The protocol as a check of the suite: batches of requests as cells, in llama-benchy's order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sparkwright.engine.cell import CONNECTED, LISTED, Cell, Load
from sparkwright.verify.checks.common import main_facts
from sparkwright.verify.protocol.judge import conclude_protocol, fits
from sparkwright.verify.protocol.options import CHECK
from sparkwright.verify.protocol.texts import fit_tokens, make_prompt, probe_of, sizing_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkwright.engine.cell import Prompt
    from sparkwright.engine.findings import Finding
    from sparkwright.engine.observations import Observation
    from sparkwright.verify.check import Context
    from sparkwright.verify.protocol.options import ProtocolOptions
    from sparkwright.verify.protocol.texts import TokenFit

SIZING, LATENCY = "sizing", "latency"
"""Names of the cells before the first batch."""
_LATENCY_REQUESTS = 3


@dataclass(frozen=True)
class ProtocolCheck:
    """Batches of requests that are sent at once: the first batch of each test is not counted.

    Attributes:
        options: sizes.
        name: of the check.
    """

    options: ProtocolOptions
    name: str = CHECK

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the cells before the first batch: prompts whose tokens are counted, and the latency."""
        return (_sizing(context), *([_latency(context)] if self.options.latency == "generation" else []))

    def extend(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return all batches once the tokens of a word are known."""
        sizing = [seen for seen in observations if seen.cell.name == SIZING]
        if len(observations) > len(self.plan(context)) or not sizing:
            return ()
        seed = context.profile.seed
        fit = fit_tokens(sizing[0].samples, seed)
        longest = main_facts(context).max_model_len
        return _batches(self.options, fit, (seed, longest), thinking=context.profile.thinking)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on answers and lengths of prompts, with the figures of each test."""
        before = self.plan(context)
        planned = (*before, *self.extend(context, [seen for seen in observations if seen.cell in before]))
        return conclude_protocol(self, context, observations, planned)


def _sizing(context: Context) -> Cell:
    seed = context.profile.seed
    prompts = sizing_prompts(seed)
    return Cell(
        check=CHECK,
        name=SIZING,
        load=Load(requests=len(prompts), max_tokens=1, natural_stop=True, chat=True, seed=seed),
        prompts=prompts,
        tags={LISTED: "api"},
    )


def _latency(context: Context) -> Cell:
    prompts = tuple(
        make_prompt(f"{LATENCY} {number}", context.profile.seed, words=1)
        for number in range(_LATENCY_REQUESTS)
    )
    load = Load(requests=len(prompts), max_tokens=1, natural_stop=True, chat=True, seed=context.profile.seed)
    return Cell(check=CHECK, name=LATENCY, load=load, prompts=prompts)


@lru_cache(maxsize=2)  # the plan is made for each cell, and texts of long contexts take minutes
def _batches(
    options: ProtocolOptions, fit: TokenFit, server: tuple[int, int], *, thinking: bool
) -> tuple[Cell, ...]:
    """Return all batches; *server* is the seed, and the tokens of the longest request that it takes."""
    seed, longest = server
    return tuple(
        cell
        for depth in options.depths
        for pp in options.pp
        for tg in options.tg
        if fits(depth, pp, tg, longest)
        for level in options.levels
        for run in range(options.runs + 1)
        for cell in _batch(options, (depth, pp, tg, level, run), fit, seed, thinking=thinking)
    )


def _batch(
    options: ProtocolOptions,
    test: tuple[int, int, int, int, int],
    fit: TokenFit,
    seed: int,
    *,
    thinking: bool,
) -> Iterator[Cell]:
    """Yield the cell of one batch, after that of its contexts where they are cached."""
    depth, pp, tg, level, run = test
    name = f"pp{pp} tg{tg} d{depth} c{level} run {run}"
    if depth:
        sizes = {"words": fit.plain_words(pp), "context": fit.words(depth, pair=True)}
    else:
        sizes = {"words": fit.words(pp)}
    prompts = [make_prompt(f"{name} {number}", seed, **sizes) for number in range(level)]
    phases: list[tuple[str, list[Prompt]]] = [("", prompts)]
    if options.cached and depth:
        phases.insert(0, ("context", [probe_of(prompt) for prompt in prompts]))
    for phase, sent in phases:
        yield Cell(
            check=CHECK,
            name=f"{name} {phase}".strip(),
            load=Load(
                shape="burst",
                concurrency=level,
                requests=level,
                max_tokens=tg,
                natural_stop=not options.exact,
                chat=True,
                thinking=thinking,
                seed=seed,
                plain=True,
            ),
            prompts=tuple(sent),
            tags={
                "depth": str(depth),
                "pp": str(pp),
                "tg": str(tg),
                "run": str(run),
                CONNECTED: str(level),
                **({"phase": phase} if phase else {}),
            },
        )
