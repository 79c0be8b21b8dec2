"""Chats of the greatest length that the server takes, and one that is too long.

Tokens are the server's own: two short documents give the tokens of the template and of a block of text, and
the number of blocks that fill a request follows from them. Long prompts grow step by step, each with the one
before it in the prefix cache, so that no single prefill outlasts the deadline of a first token.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sparkwright.engine.cell import REFUSED, Cell, Prompt
from sparkwright.engine.findings import PREFIX_CACHE, Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, answered, conclude, not_applicable
from sparkwright.verify.checks.flaws import excerpt
from sparkwright.verify.checks.triage import CheckedCells, Reason
from sparkwright.verify.corpus import holds, write_notes

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
    """Tokens of a prompt: those around its blocks, and of one block."""

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


def cells(context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield two short documents, and once their tokens are known ever longer ones, to beyond the limit."""
    if _unfit(context):
        return
    for blocks in (_SHORT, _MEDIUM):
        yield _cell(context, f"{blocks} blocks", "short", blocks)
    if (size := _size(context, seen.values())) is None:
        return
    most = size.most_blocks
    if PREFIX_CACHE not in context.lacks:
        for tokens in range(GROWTH, size.tokens(most), GROWTH):
            yield _cell(context, f"up to {tokens} tokens", "growing", size.blocks(tokens))
    output = size.limit - size.spare - size.tokens(most)
    yield _cell(context, "at the limit", "limit", most, output=output)
    yield _cell(context, "beyond the limit", "beyond", size.blocks(size.limit + size.spare) + 2)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on requests of full length, and one on longer ones."""
    if why := _unfit(context):
        return [not_applicable(seen, key, why) for key in ("limit.full", "limit.longer")]
    size = _size(context, seen.made)
    within = seen.where(lambda cell: cell.tags["kind"] != "beyond")
    return [_full(context, within, size), _longer(seen.tagged(kind="beyond"), size)]


CHECK = Check("limit", cells, judge)


def _unfit(context: Context) -> str:
    """Return the reason for which the longest request is unknown or too short; empty if it can be filled."""
    longest = context.main.max_model_len
    return "" if longest >= _SHORTEST else f"the longest request has {longest} tokens"


def _size(context: Context, observations: Iterable[Observation]) -> _Size | None:
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
    return _Size(short - _SHORT * block, block, context.main.max_model_len)


def _cell(context: Context, name: str, kind: str, blocks: int, output: int = OUTPUT) -> Cell:
    prompts = [_prompt(context, f"{blocks}", blocks)]
    if kind == "limit":  # of exactly as many tokens, and from the cache
        prompts.append(_prompt(context, f"{blocks} again", blocks))
    elif kind == "beyond":
        prompts = [_prompt(context, f"{blocks + n}", blocks + n) for n in range(_BEYOND)]
    return context.cell(
        "limit",
        name,
        prompts,
        tags={"kind": kind, "blocks": str(blocks)} | ({REFUSED: "must"} if kind == "beyond" else {}),
        max_tokens=output,
        natural_stop=kind != "limit",  # there the output goes on to the last place
        chat=True,
    )


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


def _full(context: Context, seen: CheckedCells, size: _Size | None) -> Finding:
    against: list[Reason] = []
    if size is None and not seen.troubles:
        against.append((Verdict.INVALID, "the server counts no more tokens for a longer prompt"))
    sure = not any(_wrong(o) for o in seen.sound if o.cell.tags["kind"] == "short")
    for observation in seen.sound:
        if size is not None:
            planned = size.tokens(int(observation.cell.tags["blocks"]))
            read = min(sample.prompt_tokens for sample in observation.counted)
            if read < planned - size.spare:
                shown = f"{observation.cell.name}: {read} tokens of a prompt of {planned} were read"
                against.append((Verdict.FAIL, f"{shown}: the server cuts it"))
        if observation.cell.tags["kind"] != "short" and not context.made_up:
            against += _misread(observation, sure=sure)
    longest = max((o.counted[0].prompt_tokens for o in seen.sound), default=0)
    return conclude(
        seen,
        "limit.full",
        against=against,
        passed=f"prompts of up to {longest} tokens were answered",
        measured={"longest prompt": longest, "longest request": context.main.max_model_len},
        warnings=seen.notes,
    )


def _misread(observation: Observation, *, sure: bool) -> list[Reason]:
    """Return the reason if an answer is wrong; *sure* if those after short prompts are right."""
    wrong, where = _wrong(observation), observation.cell.name
    if not wrong:
        return []
    if not sure:
        shown = f"{where}: the answer is wrong, and so it is after short prompts"
        return [(Verdict.INCONCLUSIVE, f"{shown}: this model cannot be tested so")]
    shown = f"{where}: the answer to the last line is wrong, “{excerpt(wrong[0].text)}”"
    return [(Verdict.FAIL, f"{shown}, and after short prompts it is right")]


def _wrong(observation: Observation) -> list[Sample]:
    """Return the answers without the code that they are asked for."""
    return [sample for sample, expect in answered(observation) if not holds(expect, sample.text)]


def _longer(seen: CheckedCells, size: _Size | None) -> Finding:
    against: list[Reason] = []
    if size is None:
        shown = "no prompt is known to be too long: short ones were not counted"
        against.append((Verdict.INCONCLUSIVE, shown))
    for observation in seen.sound:
        if size is not None and observation.counted:
            planned, read = (
                size.tokens(int(observation.cell.tags["blocks"])),
                observation.counted[0].prompt_tokens,
            )
            shown = f"a prompt of {planned} tokens is answered instead of refused, and {size.limit} are the"
            shown += " longest request"
            if read < planned:
                shown += f": the server takes {read} of them and says nothing"
            against.append((Verdict.FAIL, shown))
    passed = f"{sum(len(o.refused) for o in seen.sound)} requests were refused"
    return conclude(seen, "limit.longer", against=against, passed=passed)
