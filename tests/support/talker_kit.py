"""A model told token by token, for tests of answers and tasks: several starts of it, healthy or lossy."""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from verify_kit import Server

from sparkwright.engine.cell import Cell
from sparkwright.engine.observations import Observation, Sample, TokenLogprobs

TIES, TIE_NAT = 0.012, 0.04
RANKS = tuple(bytes([rank]) for rank in range(5))


@dataclass
class Talker:
    """Three starts of one model, told token by token; what comes next follows from what was said.

    Attributes:
        seed: of the model.
        rounding: chance that rounding turns a near tie, for each start and batch size.
        ties: chance that speculation turns one.
        lossy: chance that speculation takes a token that is far from likely, at any position.
        at: position at which it always does; -1 for none.
        noise: how far near ties go, in nats.
        solves: share of tasks that are solved, by arm.
        misreport: whether the speculating server reports log-probabilities of other tokens.
        release: of the program: rounding differs from one to another.
    """

    seed: int = 0
    rounding: float = 0.15
    ties: float = 0.15
    lossy: float = 0.0
    at: int = -1
    noise: float = TIE_NAT
    solves: dict[str, float] = field(default_factory=lambda: {"baseline": 0.9, "main": 0.9})
    misreport: bool = False
    release: str = ""

    def measure(self, cell: Cell) -> Observation:
        snapshot = Server().snapshot()
        say = self.answer if cell.tags["kind"] == "answers" else self.task
        samples = tuple(say(cell, prompt) for prompt in cell.prompts)
        return Observation(cell=cell, samples=samples, before=snapshot, after=snapshot)

    def answer(self, cell: Cell, prompt: Any) -> Sample:
        start = f"{cell.arm} {cell.boot} {cell.load.concurrency}{self.release}"
        luck = np.random.default_rng(number_of(f"{self.seed} {start} {prompt.name}")).random((512, 2))
        main, first = cell.arm == "main", (cell.arm, cell.boot, cell.load.concurrency) == ("baseline", 0, 1)
        wrong = (luck[:, 0] < (self.lossy if main else 0.0)).tolist()
        if main and self.at >= 0:
            wrong[self.at] = True
        turns = (luck[:, 1] < (0.0 if first else self.ties if main else self.rounding)).tolist()
        state, ids, entries = f"{self.seed} {prompt.name}".encode(), [], []
        for position in range(cell.load.max_tokens):
            digest, tie, tokens, told = likely(state, self.noise)
            rank = 4 if wrong[position] else int(tie and turns[position])
            ids.append(tokens[rank])
            entries.append(told[rank])
            state = digest + RANKS[rank]
        if main and self.misreport:
            entries = [TokenLogprobs(one.token, one.logprob - 2.0, one.top) for one in entries]
        return answered(prompt, tuple(ids), tuple(entries))

    def task(self, cell: Cell, prompt: Any) -> Sample:
        chance = np.random.default_rng(number_of(f"{self.seed} {prompt.name}"))
        solved = chance.random() < self.solves[cell.arm]
        return answered(prompt, (1, 2, 3), (), text=f"It is {prompt.expect if solved else 'unclear'}.")


@lru_cache(maxsize=1 << 14)  # the starts of a model say the same until rounding parts them
def likely(state: bytes, noise: float) -> tuple[bytes, bool, tuple[int, ...], tuple[TokenLogprobs, ...]]:
    """Return the next state, whether two tokens are near, the five likeliest, and what is told of each."""
    digest = hashlib.sha256(state).digest()
    tie, share = digest[0] < 256 * TIES, int.from_bytes(digest[1:4], "big") / 2**24
    gap = share * noise if tie else 0.7 + 3 * share
    tokens = tuple(int.from_bytes(digest[8 + 4 * i : 12 + 4 * i], "big") for i in range(5))
    ranked = (-0.2, -0.2 - gap, *(-0.2 - gap - 0.6 * i for i in (1, 2, 3)))
    top = {f"token_id:{token}": logprob for token, logprob in zip(tokens, ranked, strict=True)}
    told = tuple(TokenLogprobs(*pair, top) for pair in zip(top, ranked, strict=True))
    return digest, tie, tokens, told


def number_of(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def answered(prompt: Any, ids: tuple[int, ...], entries: tuple[Any, ...], text: str = "") -> Sample:
    return Sample(
        prompt=prompt.name,
        category=prompt.category,
        started=0,
        ended=1,
        prompt_tokens=len(prompt.text) // 4,
        output_tokens=len(ids),
        token_ids=ids,
        logprobs=entries,
        text=text,
    )
