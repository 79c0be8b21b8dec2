"""Chats of the greatest length that the server takes, and one that is too long.

Tokens are the server's own: two short documents give the tokens of the template and of a block of text, and
the number of blocks that fill a request follows from them. Long prompts grow step by step, each with the one
before it in the prefix cache, so that no single prefill outlasts the deadline of a first token.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import PREFIX_CACHE
from sparkwright.engine.cell import REFUSED, Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.common import (
    CheckedCells,
    Reason,
    conclude,
    main_facts,
    not_applicable,
    triage,
)
from sparkwright.verify.checks.text import excerpt
from sparkwright.verify.corpus import holds
from sparkwright.verify.corpus.document import write_notes

OUTPUT = 64
"""Tokens of an answer at the least; at the limit so many more that the request ends with the last place."""
GROWTH = 32_768
"""Tokens by which prompts grow; a GB10 takes half a minute to a minute for as many."""
_BLOCK = write_notes(120, 7) + "\n\n"
_SHORT, _MEDIUM = 1, 4  # blocks
_FIRST, _LAST = "Hollowmere", "Tindlehope"
_SHORTEST = 2048  # tokens of a longest request; with fewer there is nothing long about it
_LOOSE = 0.005  # of the limit, kept free where blocks have no whole number of tokens
_BEYOND = 2  # requests that are too long


@dataclass(frozen=True)
class _Size:
    """Tokens of a prompt: those around its blocks, and of one block.

    Attributes:
        around: template, facts and question.
        block: tokens of one block.
        limit: tokens of the longest request.
    """

    around: float
    block: float
    limit: int

    @property
    def spare(self) -> int:
        """Tokens by which a prompt may be longer than computed."""
        return 0 if self.block.is_integer() else math.ceil(_LOOSE * self.limit)

    @property
    def most_blocks(self) -> int:
        """Blocks of the longest prompt that leaves place for an answer."""
        return self.blocks(self.limit - OUTPUT - self.spare)

    def blocks(self, tokens: int) -> int:
        """Return the blocks of the longest prompt of up to so many *tokens*."""
        return max(0, math.floor((tokens - self.around) / self.block))

    def tokens(self, blocks: int) -> int:
        """Return the tokens of a prompt with so many *blocks*."""
        return round(self.around + self.block * blocks)


@dataclass(frozen=True)
class Limit:
    """Two short documents, then ever longer ones up to the limit, and two that are longer than that."""

    name: str = "limit"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the two short documents, from which the longer ones follow."""
        if _unfit(context):
            return ()
        return tuple(_cell(context, f"{blocks} blocks", "short", blocks) for blocks in (_SHORT, _MEDIUM))

    def extend(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return the longer documents, once the tokens of the short ones are known."""
        known = {observation.cell.key for observation in observations}
        return tuple(cell for cell in self._planned(context, observations) if cell.key not in known)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on requests of full length, and one on longer ones."""
        if why := _unfit(context):
            seen = triage(self, context, observations)
            definition = "Chats that fill the longest request, and longer ones."
            return [not_applicable(seen, name, definition, why) for name in (_FULL, _LONGER)]
        planned = self._planned(context, observations)
        seen = triage(self, context, observations, planned)
        size = _size(context, observations)
        within = seen.where(lambda cell: cell.tags["kind"] != "beyond")
        return [_full(context, within, size), _longer(seen.tagged(kind="beyond"), size)]

    def _planned(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return all cells that follow from *observations*."""
        short = self.plan(context)
        size = _size(context, observations)
        return short if size is None else (*short, *_long(context, size))


CHECK = RegisteredCheck(Limit(), profiles={"full": 65})


def _unfit(context: Context) -> str:
    """Return the reason for which the longest request is unknown or too short; empty if it can be filled."""
    longest = main_facts(context).max_model_len
    return "" if longest >= _SHORTEST else f"the longest request has {longest} tokens"


def _size(context: Context, observations: Sequence[Observation]) -> _Size | None:
    """Return the tokens of prompts; `None` before both short documents were counted."""
    counts = {
        int(o.cell.tags["blocks"]): o.counted[0].prompt_tokens
        for o in observations
        if o.cell.tags["kind"] == "short" and o.counted
    }
    short, medium = counts.get(_SHORT, 0), counts.get(_MEDIUM, 0)
    if not 0 < short < medium:
        return None
    block = (medium - short) / (_MEDIUM - _SHORT)
    return _Size(short - _SHORT * block, block, main_facts(context).max_model_len)


# Cells --------------------------------------------------------------------------------------------------


def _long(context: Context, size: _Size) -> list[Cell]:
    """Return the cells of growing documents, of the longest, and of longer ones."""
    most = size.most_blocks
    cells: list[Cell] = []
    if PREFIX_CACHE not in context.lacks:
        steps = range(GROWTH, size.tokens(most), GROWTH)
        cells += [
            _cell(context, f"up to {tokens} tokens", "growing", size.blocks(tokens)) for tokens in steps
        ]
    output = size.limit - size.spare - size.tokens(most)
    cells.append(_cell(context, "at the limit", "limit", most, output=output))
    longer = size.blocks(size.limit + size.spare) + 2
    return [*cells, _cell(context, "beyond the limit", "beyond", longer)]


def _cell(context: Context, name: str, kind: str, blocks: int, output: int = OUTPUT) -> Cell:
    prompts = [_prompt(context, f"{blocks}", blocks)]
    if kind == "limit":  # of exactly as many tokens, and from the cache
        prompts.append(_prompt(context, f"{blocks} again", blocks))
    elif kind == "beyond":
        prompts = [_prompt(context, f"{blocks + n}", blocks + n) for n in range(_BEYOND)]
    load = Load(
        requests=len(prompts),
        max_tokens=output,
        natural_stop=kind != "limit",  # there the output goes on to the last place
        chat=True,
        seed=context.profile.seed,
    )
    tags = {"kind": kind, "blocks": str(blocks)} | ({REFUSED: "must"} if kind == "beyond" else {})
    return Cell(check="limit", name=name, load=load, prompts=tuple(prompts), tags=tags)


def _prompt(context: Context, name: str, blocks: int) -> Prompt:
    """Return a document of so many *blocks* with a fact before and one after them, of which it asks that."""
    draw = random.Random(f"limit {context.profile.seed}")  # noqa: S311 - codes, not secrets
    before, after = (str(draw.randrange(100_000, 1_000_000)) for _ in range(2))
    text = (
        f"[notes {draw.randrange(10_000, 100_000)}]\nThe code for {_FIRST} is {before}.\n\n{_BLOCK * blocks}"
        f"The code for {_LAST} is {after}.\n\nThese were the notes. What is the code for {_LAST}?"
    )
    return Prompt(name=f"notes/{name}", category="extraction", text=text, expect=after)


# Findings -----------------------------------------------------------------------------------------------

_FULL, _LONGER = "requests of full length are answered", "longer requests are refused"
_REFUSED = (
    "Chats whose prompt alone is longer than the longest request get an error of the client's fault (400),"
    " neither an answer nor a broken server."
)


def _full(context: Context, seen: CheckedCells, size: _Size | None) -> Finding:
    against: list[Reason] = _uncounted(seen, size)
    sure = all(not _wrong(o) for o in seen.sound if o.cell.tags["kind"] == "short")
    for observation in seen.sound:
        against += _cut(observation, size) if size is not None else []
        if observation.cell.tags["kind"] != "short" and not context.made_up:
            against += _misread(observation, sure=sure)
    longest = max((o.counted[0].prompt_tokens for o in seen.sound), default=0)
    return conclude(
        seen,
        _FULL,
        "Chats whose prompt and output fill the longest request, template included, cold and from the cache:"
        " each token is read, and the answer to the last line is right.",
        against=against,
        passed=f"prompts of up to {longest} tokens were answered",
        threshold="every answer, if those after short prompts are right",
        measured={"longest prompt": longest, "longest request": main_facts(context).max_model_len},
        warnings=seen.notes,
    )


def _cut(observation: Observation, size: _Size) -> list[Reason]:
    """Return the reason if the server read fewer tokens than were sent."""
    planned = size.tokens(int(observation.cell.tags["blocks"]))
    read = min(sample.prompt_tokens for sample in observation.counted)
    if read >= planned - size.spare:
        return []
    shown = f"{observation.cell.name}: {read} tokens of a prompt of {planned} were read"
    return [(Verdict.FAIL, f"{shown}: the server cuts it")]


def _misread(observation: Observation, *, sure: bool) -> list[Reason]:
    """Return the reason if an answer is wrong; *sure* if those after short prompts are right."""
    wrong = _wrong(observation)
    if not wrong:
        return []
    if not sure:
        shown = f"{observation.cell.name}: the answer is wrong, and so it is after short prompts"
        return [(Verdict.INCONCLUSIVE, f"{shown}: this model cannot be tested so")]
    shown = f"{observation.cell.name}: the answer to the last line is wrong, “{excerpt(wrong[0].text)}”"
    return [(Verdict.FAIL, f"{shown}, and after short prompts it is right")]


def _wrong(observation: Observation) -> list[Sample]:
    """Return the answers without the code that they are asked for."""
    expected = {prompt.name: prompt.expect for prompt in observation.cell.prompts}
    return [sample for sample in observation.counted if not holds(expected[sample.prompt], sample.text)]


def _uncounted(seen: CheckedCells, size: _Size | None) -> list[Reason]:
    if size is not None or seen.troubles:
        return []
    return [(Verdict.INVALID, "the server counts no more tokens for a longer prompt")]


def _longer(seen: CheckedCells, size: _Size | None) -> Finding:
    against: list[Reason] = []
    if size is None:
        shown = "no prompt is known to be too long: short ones were not counted"
        return conclude(seen, _LONGER, _REFUSED, against=[(Verdict.INCONCLUSIVE, shown)], passed="")
    for observation in seen.sound:
        for sample in observation.counted[:1]:
            planned = size.tokens(int(observation.cell.tags["blocks"]))
            shown = f"a prompt of {planned} tokens is answered instead of refused, and {size.limit} are the"
            shown += " longest request"
            if sample.prompt_tokens < planned:
                shown += f": the server takes {sample.prompt_tokens} of them and says nothing"
            against.append((Verdict.FAIL, shown))
    return conclude(
        seen,
        _LONGER,
        _REFUSED,
        against=against,
        passed=f"{sum(len(o.refused) for o in seen.sound)} requests were refused",
        threshold="all",
    )
