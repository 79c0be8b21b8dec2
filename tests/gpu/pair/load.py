"""Requests for the server at one concurrency, and the rules for their results: pure functions.

The drafter proposes `DRAFTED` tokens a step, and vLLM's synthetic rejection sampler keeps
exactly `ACCEPTED` of them, so that every number below is exact. Two of three are kept, not
all: rejected tokens are what makes a drafter rewind its state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DRAFTED = 3
ACCEPTED = 2
_STEP = ACCEPTED + 1  # tokens a decode step: the accepted drafts and the one that the target adds
_FIRST_STEPS, _LAST_STEPS = 16, 24


@dataclass(frozen=True)
class Request:
    """One request: lengths in tokens, and greedy (0) or random (1) sampling."""

    name: str
    prompt: int
    output: int
    temperature: float

    @property
    def drafts(self) -> int:
        """Decode steps, each of which verifies one draft: the prefill gives the first token."""
        return -(-(self.output - 1) // _STEP)


@dataclass(frozen=True)
class Counters:
    """Rises of vLLM's own counters. `per_position[i]`: drafts whose token i was accepted."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = (0,) * DRAFTED
    generated: int = 0
    finished: int = 0
    preempted: int = 0

    def since(self, before: Counters) -> Counters:
        """The difference to an earlier reading."""
        pairs = zip(self.per_position, before.per_position, strict=True)
        then, per_position = asdict(before), tuple(now - then for now, then in pairs)
        rises = {name: now - then[name] for name, now in asdict(self).items() if name != "per_position"}
        return Counters(**rises, per_position=per_position)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a decode step, the target's own included; 0 without drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else 0.0


@dataclass(frozen=True)
class Observed:
    """Measurements at one concurrency."""

    level: int
    seconds: float
    received: dict[str, int]
    chunks: int
    counters: Counters
    peak: int  # most requests that the scheduler ran at once
    sizes: int  # different numbers of running requests
    replays: int  # of CUDA graphs
    canary: bool  # it answered one more request afterwards
    errors: tuple[str, ...] = field(default=())


def workload(level: int) -> list[list[Request]]:
    """*level* clients, each with two requests to send one after the other.

    All outputs but the last end at different steps, so that prompts arrive among decodes, and
    the last ones end one after another: the live batch walks from *level* down to 1. Outputs
    end in the middle of an accepted draft as well as at its end.
    """
    return [
        [
            _request(level, client, 0, _FIRST_STEPS + 5 * client % 7),
            _request(level, client, 1, _LAST_STEPS + client),
        ]
        for client in range(level)
    ]


def _request(level: int, client: int, turn: int, steps: int) -> Request:
    prompt = 3 + (37 * client + 101 * turn + 13 * level) % 251
    output = 1 + _STEP * steps - (client + turn) % _STEP
    return Request(f"{level}-{client}-{turn}", prompt, output, temperature=float((client + turn) % 2))


def expected(level: int) -> Counters:
    """Return what vLLM must count while it serves `workload` of *level*."""
    requests = [request for client in workload(level) for request in client]
    drafts = sum(request.drafts for request in requests)
    return Counters(
        drafts=drafts,
        draft_tokens=DRAFTED * drafts,
        accepted=ACCEPTED * drafts,
        per_position=(drafts,) * ACCEPTED + (0,) * (DRAFTED - ACCEPTED),
        generated=sum(request.output for request in requests),
        finished=len(requests),
    )


def faults(seen: Observed, *, graphs: bool) -> list[str]:
    """Everything that is wrong with a level, in words; an empty list is a pass."""
    found = list(seen.errors)
    asked = {request.name: request.output for client in workload(seen.level) for request in client}
    for name, tokens in asked.items():
        if name not in seen.received:
            found.append(f"request {name} did not finish")
        elif seen.received[name] != tokens:
            found.append(f"request {name} gave {seen.received[name]} tokens instead of {tokens}")
    found += [f"request {name} was never asked" for name in seen.received if name not in asked]
    if seen.chunks <= len(seen.received):  # some streams may arrive in one piece, not all
        found.append(f"{seen.chunks} chunks for {len(seen.received)} requests: nothing was streamed")
    found += _count_faults(seen.counters, expected(seen.level))
    if seen.peak != seen.level:
        found.append(f"at most {seen.peak} requests ran at once instead of {seen.level}")
    if graphs and not seen.replays:
        found.append("no CUDA graph was replayed")
    if not graphs and seen.replays:
        found.append(f"{seen.replays} CUDA graphs were replayed in eager mode")
    if not seen.canary:
        found.append("the engine did not answer the request that followed")
    return found


def _count_faults(counted: Counters, wanted: Counters) -> list[str]:
    seen: dict[str, Any] = asdict(counted)
    return [
        f"{name} rose by {seen[name]} instead of {value}"
        for name, value in asdict(wanted).items()
        if seen[name] != value
    ]
