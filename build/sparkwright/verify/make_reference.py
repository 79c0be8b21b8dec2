"""The making of a reference: prompts of several kinds, sent to a server one at a time, and again at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright import __version__
from sparkwright.base.errors import EndpointError
from sparkwright.base.events import task
from sparkwright.engine.capabilities import METRICS, VLLM, refuse_lacking
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.client import Endpoint, check_endpoint, open_session
from sparkwright.engine.observations import Observation
from sparkwright.engine.servers import read_log, standing
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.corpus import CATEGORIES, load_corpus
from sparkwright.verify.measure import measure
from sparkwright.verify.probe_capabilities import find_lacking
from sparkwright.verify.profile import Profile
from sparkwright.verify.reference import Reference, identify, trimmed

if TYPE_CHECKING:
    pass


TOP = 8
"""Alternatives of each token that are recorded."""
TOKENS = 64
"""Tokens of each answer."""
LEVELS = (1, 8)
"""Requests at a time: of the answers, and of those that show how far a server is from itself."""
_LONG_TOKENS = (600, 1200, 2400)
_MARGIN = 1.3  # documents are sized by an estimate
_UNKNOWN_LENGTH = 4096


def cells_of(prompts: int, longest: int, seed: int) -> tuple[Cell, ...]:
    """Return the cells of a reference: raw prompts, chats and long documents, at each of `LEVELS`.

    Args:
        prompts: number of all; half are raw, a quarter each are chats and documents.
        longest: tokens of the longest request; -1 if unknown.
        seed: seed of prompts.
    """
    corpus = load_corpus()
    chats = prompts // 4
    documents = prompts // 4
    longest = longest if longest > 0 else _UNKNOWN_LENGTH
    lengths = [length for length in _LONG_TOKENS if length * _MARGIN + TOKENS <= longest] or [200]
    long = tuple(
        corpus.document(lengths[number % len(lengths)], seed + number, salt="reference")
        for number in range(documents)
    )
    kinds: tuple[tuple[str, tuple[Prompt, ...], bool], ...] = (
        ("raw", _in_turn(prompts - chats - documents, seed, "reference raw"), False),
        ("chat", _in_turn(chats, seed, "reference chat"), True),
        ("long", long, False),
    )
    return tuple(
        _cell(kind, asked, level, seed, chat=chat) for level in LEVELS for kind, asked, chat in kinds
    )


def _in_turn(count: int, seed: int, salt: str) -> tuple[Prompt, ...]:
    each = -(-count // len(CATEGORIES))
    lists = [load_corpus().prompts(name, each, seed, salt) for name in CATEGORIES]
    return tuple(prompt for turn in zip(*lists, strict=True) for prompt in turn)[:count]


def _cell(kind: str, prompts: tuple[Prompt, ...], level: int, seed: int, *, chat: bool) -> Cell:
    load = Load(
        concurrency=level,
        requests=len(prompts),
        max_tokens=TOKENS,
        logprobs=TOP,
        chat=chat,
        natural_stop=chat,
        seed=seed,
    )
    return Cell(check="reference", name=f"{kind} c={level}", load=load, prompts=prompts, tags={"kind": kind})


async def make_reference(
    endpoint: Endpoint, *, prompts: int, seed: int = 0, log: str = "", profile: Profile | None = None
) -> Reference:
    """Return a reference made on the server at *endpoint*, which is left running.

    Args:
        endpoint: the server.
        prompts: number of prompts.
        seed: seed of prompts.
        log: file that the server writes its log to; empty if it cannot be read.
        profile: deadlines and clock.

    Raises:
        EndpointError: it cannot be verified, has no log-probabilities, or a request failed.
    """
    profile = profile or Profile(name="reference")
    async with open_session(endpoint) as session:
        known = await check_endpoint(session, endpoint, profile.deadlines)
        endpoint = replace(endpoint, model=known.model)
        lacks = await find_lacking(session, endpoint, known, profile.deadlines)
        refuse_lacking(lacks, (VLLM,), endpoint.url)
        path = Path(log) if log else None
        identity = await identify(
            session, endpoint, known, read_log(path), deadlines=profile.deadlines, lacks=lacks
        )
    endpoint = replace(endpoint, lacks=frozenset(lacks))
    cells = cells_of(prompts, known.max_model_len, seed)
    seen: dict[int, list[Observation]] = {level: [] for level in LEVELS}
    async with standing(endpoint, known, path) as server:
        with task("ask for the reference", total=len(cells), unit="cells") as progress:
            for cell in cells:
                observation = await measure(server, cell, profile)
                _require_sound(observation, metered=METRICS not in lacks)
                seen[cell.load.concurrency].append(trimmed(observation))
                progress.advance()
    answers, again = (tuple(seen[level]) for level in LEVELS)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Reference(identity=identity, answers=answers, again=again, created=created, made_by=__version__)


def _require_sound(observation: Observation, *, metered: bool) -> None:
    found = troubles(observation, metered=metered)
    bare = [sample.prompt for sample in observation.counted if not sample.logprobs]
    if found or bare:
        raise EndpointError(
            "no reference could be made",
            because=found[0].cause if found else f"the answer to {bare[0]} has no log-probabilities",
            next_step="verify the server first: sparkwright verify --url URL --checks boot,coherence",
        )
