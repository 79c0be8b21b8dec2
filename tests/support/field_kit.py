"""Runs for tests of exports and protocols: requests with known times, and files of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from peers_clients import PEERS, find_python
from verify_kit import boot_facts, context, profile

from sparkwright.engine.cell import LISTED
from sparkwright.engine.observations import BootFacts, Chunk, Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.protocol.check import ProtocolCheck
from sparkwright.verify.protocol.options import parse_protocol
from sparkwright.verify.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkwright.engine.cell import Cell, Prompt

MS = 1_000_000
EACH, ALONE, PAIR = 1.25, 20.0, 30.0
"""Tokens of a word, of a template, and of one with a system message."""
STEP_MS, PREFILL_MS = 20, 0.5
MANIFEST: dict[str, Any] = {
    "title": "a server",
    "main-model": "org/model",
    "profile": "full",
    "started": "2026-11-23T09:00:00+00:00",
    "sparkwright": "0.1.0",
    "report": "/runs/of-a-server/report.html",
}


def sample(
    start_ms: float, first_ms: float, later_ms: Sequence[float], tokens: Sequence[int] = (), **changes: Any
) -> Sample:
    """Return a request with chunks at these times since the clock's origin; a token each by default."""
    times = [first_ms, *later_ms]
    counts = list(tokens) or [1] * len(times)
    fields: dict[str, Any] = {
        "prompt": "p",
        "category": "protocol",
        "request": f"chatcmpl-{start_ms}",
        "started": round(start_ms * MS),
        "responded": round(first_ms * MS),
        "ended": round((times[-1] + 1) * MS),
        "chunks": tuple(
            Chunk(at=round(at * MS), tokens=count) for at, count in zip(times, counts, strict=True)
        ),
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": sum(counts),
        "counted_by": "usage",
        "finish_reason": "length",
    }
    return Sample(**{**fields, **changes})


def protocol_context(facts: BootFacts | None = None) -> Context:
    return context(profile(), facts)


def answered(cell: Cell, at_ms: float = 0.0) -> Observation:
    """Return *cell* as a plain server answers it: prompts one after the other, all decoding together."""
    samples, ready = [], at_ms
    for number, prompt in enumerate(cell.prompts):
        tokens = _tokens(prompt)
        ready += tokens * PREFILL_MS
        steps = [ready + STEP_MS * (step + 1) for step in range(cell.load.max_tokens - 1)]
        start = at_ms if cell.load.shape == "burst" else ready - tokens * PREFILL_MS
        samples.append(
            sample(start, ready, steps, prompt=prompt.name, prompt_tokens=tokens, request=f"r{number}")
        )
    listing = (2.0, 3.0, 4.0) if LISTED in cell.tags else ()
    return Observation(cell=cell, samples=tuple(samples), listing_ms=listing)


def _tokens(prompt: Prompt) -> int:
    words = len(prompt.text.split()) + sum(len(message.content.split()) for message in prompt.history)
    nonce = 1  # a word of its own, which the template's share holds
    return round((words - nonce) * EACH + (PAIR if prompt.history else ALONE))


def carried_out(text: str = "llama-benchy pp=128 tg=8 depth=0,256 c=1,4 runs=2 exact") -> Run:
    """Return a run by the protocol *text* of a plain server."""
    check, to = ProtocolCheck(parse_protocol(text)), protocol_context()
    before = [answered(cell) for cell in check.plan(to)]
    batches = [answered(cell, 1000.0 * n) for n, cell in enumerate(check.extend(to, before), 1)]
    observations = (*before, *batches)
    findings = check.judge(counterless(to), observations)
    return Run(
        manifest={**MANIFEST, "protocol": text},
        facts={("main", 0): boot_facts()},
        observations=observations,
        findings=findings,
    )


def counterless(to: Context) -> Context:
    """Return *to* for a server without counters, whose observations have none."""
    return Context(to.profile, to.corpus, to.facts, lacks={"metrics": "there is none"})


def with_samples(observation: Observation, **changes: Any) -> Observation:
    """Return *observation* with fields of all its samples changed."""
    return msgspec.structs.replace(
        observation,
        samples=tuple(msgspec.structs.replace(one, **changes) for one in observation.samples),
    )


def peer_python(name: str) -> Path | None:
    """Return the interpreter of another program, if `scripts/bench/peers.py --prepare` made one."""
    return find_python(PEERS[name])
