"""Steps whose shape is that of decodes, told apart by what their requests do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from probekit import expect

if TYPE_CHECKING:
    from collections.abc import Callable


class Request(NamedTuple):
    """One request of a step, before the step."""

    prompt: int
    computed: int
    tokens: int  # scheduled
    drafts: int = 0  # of these
    known: int = 0  # prompt and outputs, where it is resumed


class Step(NamedTuple):
    """Requests of one step, and whether a decode graph may be replayed for them."""

    what: str
    drafts: int  # K
    requests: tuple[Request, ...]
    decodes: bool


DRAFTED = Request(prompt=50, computed=60, tokens=4, drafts=3)
DECODED = Request(prompt=50, computed=60, tokens=1)

STEPS = (
    # Controls.
    Step("two decodes of 1 + K", 3, (DRAFTED, DRAFTED), decodes=True),
    Step("the first decode after a prompt", 3, (Request(50, 50, 4, 3),), decodes=True),
    Step("two decodes without speculation", 0, (DECODED, DECODED), decodes=True),
    Step(
        "the last token of a prompt, with a state before it", 0, (Request(50, 49, 1), DECODED), decodes=True
    ),
    Step("a prompt of K tokens", 3, (Request(3, 0, 3),), decodes=False),
    Step("a decode beside one without drafts", 3, (DRAFTED, DECODED), decodes=False),
    Step("decodes with fewer drafts than K", 3, (Request(50, 60, 3, 2),) * 2, decodes=False),
    Step("two tokens over earlier ones of a prompt", 0, (Request(50, 20, 2),), decodes=False),
    # Defects.
    Step("a prompt of 1 + K tokens", 3, (Request(4, 0, 4),), decodes=False),
    Step("three prompts of 1 + K tokens", 3, (Request(4, 0, 4),) * 3, decodes=False),
    Step("the last 1 + K tokens of a prompt", 3, (Request(104, 100, 4),), decodes=False),
    Step("1 + K tokens in the middle of a prompt", 3, (Request(200, 100, 4),), decodes=False),
    Step(
        "1 + K tokens in the middle of a prompt, drafts among them",
        3,
        (Request(200, 100, 4, 2),),
        decodes=False,
    ),
    Step("a decode beside a prompt of 1 + K tokens", 3, (DRAFTED, Request(4, 0, 4)), decodes=False),
    Step("1 + K outputs computed again after preemption", 3, (Request(50, 60, 4, known=64),), decodes=False),
    Step("a prompt of one token, without speculation", 0, (Request(1, 0, 1),), decodes=False),
    Step("a prompt's first token beside a decode", 0, (DECODED, Request(80, 0, 1)), decodes=False),
)


def scheduled(step: Step) -> Any:
    """Return *step* as a scheduler hands it over."""
    tokens = {f"request {index}": request.tokens for index, request in enumerate(step.requests)}
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={
            name: [7] * request.drafts
            for name, request in zip(tokens, step.requests, strict=True)
            if request.drafts
        },
        scheduled_encoder_inputs={},
    )


def states(step: Step) -> Any:
    """Return the requests of *step* as V2 keeps them: in other rows, beside one that is gone."""
    names = [*scheduled(step).num_scheduled_tokens, "gone"]
    requests = [*step.requests, Request(9, 0, 0)]
    prefill = [request.known or request.prompt for request in requests]
    return SimpleNamespace(
        req_id_to_index={name: len(names) - 1 - row for row, name in enumerate(names)},
        prefill_len=SimpleNamespace(np=np.array(prefill[::-1])),
        num_computed_prefill_tokens=np.array(
            [min(request.computed, length) for request, length in zip(requests, prefill, strict=True)][::-1]
        ),
    )


def check(runner: str, replays: Callable[[Step], bool]) -> None:
    """Expect of *runner* a decode graph for each step of decodes, and for no other."""
    for step in STEPS:
        found = replays(step)
        graph = "a decode graph" if found else "no decode graph"
        expect(found == step.decodes, f"{step.what}, K={step.drafts}: {runner} replays {graph}")
