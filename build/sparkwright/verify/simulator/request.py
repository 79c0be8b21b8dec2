"""One request while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.verify.simulator.cache import Holding, block_hash
from sparkwright.verify.simulator.settings import BLOCK

if TYPE_CHECKING:
    from sparkwright.verify.simulator.language import Choice, Speaker


@dataclass(frozen=True)
class StreamDelta:
    """What one step brought one request.

    Attributes:
        choices: its new tokens, at least one.
        finish: ``stop``, ``length`` or ``abort`` if that was all, else empty.
    """

    choices: tuple[Choice, ...]
    finish: str = ""


@dataclass
class Spans:
    """Simulated moments of a request, in seconds; -1 before they come."""

    arrived: float
    scheduled: float = -1
    first: float = -1
    last: float = -1


@dataclass(eq=False)
class Request:
    """A request: what it asks for, and how far it is.

    Attributes:
        number: from 1, in the order of arrival.
        name: its id.
        tokens: prompt and output so far.
        prompt_tokens: how many of them are the prompt.
        max_tokens: the longest output.
        speaker: says what comes next.
        category: of its prompt.
        identity: what decides its acceptance.
        spans: when it got where.
        limit: a fault ends it after so many tokens; 0 for none.
        limit_finish: the finish reason then.
        computed: tokens whose keys and values are in the cache.
        hashes: of the full blocks of `tokens`.
        holding: its blocks.
        cached: prompt tokens that were found in the cache when it was first scheduled; -1 before.
        drafts: steps with drafted tokens.
        steps: accepted tokens of each of them.
        preemptions: how often it lost its blocks.
        finish: the finish reason once it is done.
    """

    number: int
    name: str
    tokens: list[int]
    max_tokens: int
    speaker: Speaker
    category: str
    identity: int
    spans: Spans
    limit: int = 0
    limit_finish: str = ""
    computed: int = 0
    prompt_tokens: int = 0
    hashes: list[bytes] = field(default_factory=list)
    holding: Holding = field(default_factory=Holding)
    cached: int = -1
    steps: list[int] = field(default_factory=list)
    preemptions: int = 0
    finish: str = ""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.hash_blocks()

    @property
    def output_tokens(self) -> int:
        """Tokens that were generated."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether all but its last token is in the cache, so that it can go on."""
        return self.output_tokens > 0 and self.computed >= len(self.tokens) - 1

    @property
    def missing(self) -> int:
        """Tokens that a prefill has yet to compute."""
        return len(self.tokens) - self.computed

    def hash_blocks(self) -> None:
        """Name the blocks that have become full."""
        while (len(self.hashes) + 1) * BLOCK <= len(self.tokens):
            begin = len(self.hashes) * BLOCK
            parent = self.hashes[-1] if self.hashes else b""
            self.hashes.append(block_hash(parent, self.tokens[begin : begin + BLOCK]))

    def accept(self, choices: tuple[Choice, ...], end: int) -> StreamDelta:
        """Take the tokens of a step, up to *end* of sequence or the longest output; returns what is sent."""
        kept: list[Choice] = []
        for choice in choices:
            kept.append(choice)
            self.tokens.append(choice.token)
            if choice.token == end:
                self.finish = "stop"
            elif self.limit and self.output_tokens >= self.limit:
                self.finish = self.limit_finish
            elif self.output_tokens >= self.max_tokens:
                self.finish = "length"
            if self.finish:
                break
        self.hash_blocks()
        return StreamDelta(tuple(kept), self.finish)
