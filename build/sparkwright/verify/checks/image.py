"""Pictures in chats, with a proof that they are seen: colours that no text tells.

The same questions are sent without pictures too, so that a lucky guess and a picture that never reaches the
prompt are told apart from sight.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import msgspec

from sparkwright.engine.cell import REFUSED, Cell, Prompt
from sparkwright.engine.client.payload import COLOURS, draw_colour
from sparkwright.engine.findings import IMAGES, Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, answered, conclude
from sparkwright.verify.checks.flaws import excerpt
from sparkwright.verify.checks.triage import CheckedCells, Reason, all_refused
from sparkwright.verify.corpus import holds

LOADED = 4
LONGEST = 256
LEAST_COLOURS = 5
"""Of six: where red and blue are exchanged, three are right, and who answers one colour always has one."""
_ASKED = "Which colour is this picture? Answer with one of: " + ", ".join(COLOURS) + "."


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield a cell with a picture of each colour, and one of the same questions alone."""
    draw = random.Random(f"pictures {context.profile.seed}")  # noqa: S311 - pictures, not secrets
    prompts = [
        Prompt(f"colour/{n}", "extraction", _ASKED, expect=one, images=(draw_colour(one),))
        for n, one in enumerate(draw.sample(sorted(COLOURS), len(COLOURS)))
    ]
    bare = [msgspec.structs.replace(one, name=f"bare {one.name}", images=()) for one in prompts]
    for kind, these, tags in (("with", prompts, {REFUSED: "may"}), ("without", bare, {})):
        yield context.cell(
            "image",
            f"{kind} pictures",
            these,
            tags={"kind": kind, **tags},
            concurrency=LOADED,
            max_tokens=LONGEST,
            **CHAT,
        )


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on tokens of pictures, and one on sight."""
    for observation in seen.made:
        if observation.cell.tags["kind"] == "with" and (words := all_refused(observation)):
            lacks = {**context.lacks, IMAGES: f"chats with pictures are refused: {words}"}
            seen = CheckedCells(seen.check, (), lacks=lacks)
    return [_sent(seen), _seen(context, seen)]


CHECK = Check("image", cells, judge)


# Findings -----------------------------------------------------------------------------------------------


def _sent(seen: CheckedCells) -> Finding:
    counts = {o.cell.tags["kind"]: {s.prompt: s.prompt_tokens for s in o.counted} for o in seen.sound}
    having, bare = counts.get("with", {}), counts.get("without", {})
    more = {name: count - bare[f"bare {name}"] for name, count in having.items() if f"bare {name}" in bare}
    against: list[Reason] = []
    if lost := [name for name, tokens in more.items() if tokens <= 0]:
        shown = f"{len(lost)} of {len(more)} prompts have no more tokens with their picture, first {lost[0]}"
        against = [(Verdict.FAIL, f"{shown}: pictures are left out of the prompt")]
    least = min(more.values(), default=0)
    return conclude(
        seen,
        "image.sent",
        against=against,
        passed=f"a picture takes {least} tokens or more",
        measured={"least tokens of a picture": least},
        warnings=seen.notes,
        needs=(IMAGES,),
    )


def _seen(context: Context, seen: CheckedCells) -> Finding:
    kinds = {o.cell.tags["kind"]: _right(o) for o in seen.sound}
    found, wrong = kinds.get("with", (0, ""))
    guessed, _ = kinds.get("without", (0, ""))
    against: list[Reason] = []
    if "with" in kinds and found < LEAST_COLOURS and not context.made_up:
        shown = f"{found} of {len(COLOURS)} colours are right with pictures, {guessed} without; {wrong}"
        against = [(Verdict.FAIL, f"pictures are not seen as they are: {shown}")]
    elif guessed >= LEAST_COLOURS:
        shown = f"{guessed} of {len(COLOURS)} colours are right without a picture: they prove nothing"
        against = [(Verdict.INCONCLUSIVE, shown)]
    return conclude(
        seen,
        "image.seen",
        told={"colours": len(COLOURS)},
        against=against,
        passed=context.judged(f"{found} of {len(COLOURS)} colours are right, {guessed} without pictures"),
        measured={"colours": found, "colours without pictures": guessed},
        lenient=True,
        needs=(IMAGES,),
    )


def _right(observation: Observation) -> tuple[int, str]:
    """Return the number of answers that name the colour and no other, and the first that does not."""
    answers = answered(observation)
    wrong = []
    for sample, expect in answers:
        others = [name for name in COLOURS if name != expect]
        if not holds(expect, sample.answer) or any(holds(name, sample.answer) for name in others):
            wrong.append(f"“{expect}” is called “{excerpt(sample.answer)}”")
    return len(answers) - len(wrong), next(iter(wrong), "")
