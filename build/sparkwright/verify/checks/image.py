"""Pictures in chats, with a proof that they are seen: colours and numbers that no text tells.

The same questions are sent without pictures too, so that a lucky guess and a picture that never reaches the
prompt are told apart from sight.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sparkwright.engine.capabilities import IMAGES
from sparkwright.engine.cell import REFUSED, Cell, Load, Prompt
from sparkwright.engine.client.pictures import COLOURS, draw_colour, draw_number
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.chatter import answers_in
from sparkwright.verify.checks.common import CheckedCells, Reason, all_refused, conclude, triage
from sparkwright.verify.checks.text import excerpt
from sparkwright.verify.corpus import holds

LOADED = 4
LONGEST = 256
NUMBERS = 4
LEAST_COLOURS = 5
"""Of six: where red and blue are exchanged, three are right, and who answers one colour always has one."""
_COLOUR, _NUMBER = "colour", "number"
_ASKED = {
    _COLOUR: "Which colour is this picture? Answer with one of: " + ", ".join(COLOURS) + ".",
    _NUMBER: "Which number is in this picture? Answer with its digits alone.",
}


@dataclass(frozen=True)
class Image:
    """Pictures of colours and numbers, several at a time, and the same questions without them."""

    name: str = "image"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return a cell with pictures, and one without."""
        if IMAGES in context.lacks:
            return ()
        prompts = _prompts(context)
        bare = tuple(
            msgspec.structs.replace(prompt, name=f"bare {prompt.name}", images=()) for prompt in prompts
        )
        return (_cell(context, "with", prompts), _cell(context, "without", bare))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on tokens of pictures, and one on sight."""
        for observation in observations:
            if observation.cell.tags["kind"] == "with" and (words := all_refused(observation)):
                lacks = {**context.lacks, IMAGES: f"chats with pictures are refused: {words}"}
                context = dataclasses.replace(context, lacks=lacks)
                observations = ()
        seen = triage(self, context, observations)
        return [_sent(seen), _seen(context, seen)]


CHECK = RegisteredCheck(Image(), profiles={"full": 28}, tries=(IMAGES,))


def _prompts(context: Context) -> tuple[Prompt, ...]:
    draw = random.Random(f"pictures {context.profile.seed}")  # noqa: S311 - pictures, not secrets
    colours = draw.sample(sorted(COLOURS), len(COLOURS))
    numbers = draw.sample(range(100, 1000), NUMBERS)
    return (
        *(_prompt(_COLOUR, n, name, draw_colour(name)) for n, name in enumerate(colours)),
        *(_prompt(_NUMBER, n, str(value), draw_number(str(value))) for n, value in enumerate(numbers)),
    )


def _prompt(kind: str, number: int, expect: str, picture: str) -> Prompt:
    return Prompt(
        name=f"{kind}/{number}", category="extraction", text=_ASKED[kind], expect=expect, images=(picture,)
    )


def _cell(context: Context, kind: str, prompts: tuple[Prompt, ...]) -> Cell:
    load = Load(
        concurrency=LOADED,
        requests=len(prompts),
        max_tokens=LONGEST,
        natural_stop=True,
        chat=True,
        seed=context.profile.seed,
    )
    return Cell(
        check="image",
        name=f"{kind} pictures",
        load=load,
        prompts=prompts,
        tags={"kind": kind} | ({REFUSED: "may"} if kind == "with" else {}),
    )


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
        "pictures are in the prompt",
        "Each prompt has more tokens with its picture than without.",
        against=against,
        passed=f"a picture takes {least} tokens or more",
        threshold="at least one token",
        measured={"least tokens of a picture": least},
        warnings=seen.notes,
        needs=(IMAGES,),
    )


def _seen(context: Context, seen: CheckedCells) -> Finding:
    right = {(o.cell.tags["kind"], kind): _right(o, kind) for o in seen.sound for kind in (_COLOUR, _NUMBER)}
    found, wrong = right.get(("with", _COLOUR), (0, ""))
    guessed, _ = right.get(("without", _COLOUR), (0, ""))
    read, _ = right.get(("with", _NUMBER), (0, ""))
    against: list[Reason] = []
    if ("with", _COLOUR) in right and found < LEAST_COLOURS and not context.made_up:
        shown = f"{found} of {len(COLOURS)} colours are right with pictures, {guessed} without; {wrong}"
        against = [(Verdict.FAIL, f"pictures are not seen as they are: {shown}")]
    elif guessed >= LEAST_COLOURS:
        shown = f"{guessed} of {len(COLOURS)} colours are right without a picture: they prove nothing"
        against = [(Verdict.INCONCLUSIVE, shown)]
    unread = [f"{read} of {NUMBERS} numbers in pictures were read"] if 2 * read < NUMBERS else []
    return conclude(
        seen,
        "pictures are seen",
        "Pictures of one colour are named by it, and those of three digits by their number.",
        against=against,
        passed="not judged: the model's weights are made up"
        if context.made_up
        else f"{found} of {len(COLOURS)} colours and {read} of {NUMBERS} numbers are right;"
        f" {guessed} colours without pictures, of {answers_in(seen)} answers",
        threshold=f"{LEAST_COLOURS} of {len(COLOURS)} colours; numbers give a warning alone",
        measured={"colours": found, "numbers": read, "colours without pictures": guessed},
        warnings=[] if context.made_up or against else unread,
        lenient=True,
        needs=(IMAGES,),
    )


def _right(observation: Observation, kind: str) -> tuple[int, str]:
    """Return the number of right answers of a *kind*, and the first wrong one."""
    expected = {prompt.name: prompt.expect for prompt in observation.cell.prompts}
    of_kind = [s for s in observation.counted if s.prompt.removeprefix("bare ").startswith(kind)]
    wrong = [s for s in of_kind if not _names(expected[s.prompt], s.answer, kind)]
    shown = f"“{expected[wrong[0].prompt]}” is called “{excerpt(wrong[0].answer)}”" if wrong else ""
    return len(of_kind) - len(wrong), shown


def _names(expect: str, answer: str, kind: str) -> bool:
    """Tell if *answer* names what is expected, and no other colour."""
    others = [name for name in COLOURS if name != expect] if kind == _COLOUR else []
    return holds(expect, answer) and not any(holds(name, answer) for name in others)
