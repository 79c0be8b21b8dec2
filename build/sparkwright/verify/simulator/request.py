"""Requests and their progress, the server's counters, and the blocks that the prefix cache holds."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from sparkwright.verify.simulator.model import Choice, TokenGenerator
from sparkwright.verify.simulator.settings import BLOCK


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block: of its tokens and of all before it."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class PrefixCache:
    """Full blocks that were computed, by their hashes; with too many, the least recently used ones go."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many of *hashes*, from the first on, are cached."""
        count = next((count for count, name in enumerate(hashes) if name not in self._known), len(hashes))
        self.add(hashes[:count])
        return count

    def add(self, hashes: Iterable[bytes]) -> None:
        """Note blocks as computed, or as used."""
        for name in hashes:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > self.blocks:
            self._known.popitem(last=False)


@dataclass
class Counters:
    """The counters of one start of the server."""

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    generated: int = 0
    prompt: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    success: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )

    def __post_init__(self) -> None:
        self.per_position = [0] * self.k

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Count one draft of *drafted* tokens of which the first *accepted* were accepted."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.per_position[position] += 1

    def tokens(self, request: Request, count: int) -> None:
        """Count *count* tokens that *request* just got; with its first ones, those of its prompt."""
        self.generated += count
        if request.output_tokens == count:
            self.prompt += request.prompt_tokens


@dataclass(frozen=True)
class StreamDelta:
    """The tokens that one step adds to one request.

    Attributes:
        finish: ``stop``, ``length`` or ``abort`` if the request is finished, else empty.
    """

    choices: tuple[Choice, ...]
    finish: str = ""


@dataclass(eq=False)
class Request:
    """A request and its progress.

    Attributes:
        number: from 1, in the order of arrival.
        tokens: prompt and output so far.
        identity: source of the draws that decide acceptance.
        limit: a fault ends it after so many tokens; 0 for none.
        limit_finish: the finish reason in that case.
        computed: tokens whose keys and values are in the cache.
        hashes: hashes of the full blocks of `tokens`.
        filled: number of them that the prefix cache was told of.
        cached: prompt tokens found in the cache when it was first scheduled; -1 before.
        steps: accepted tokens of each step with drafted tokens.
        thoughts: generated tokens that are reasoning.
    """

    number: int
    name: str
    tokens: list[int]
    max_tokens: int
    generator: TokenGenerator
    identity: int
    limit: int = 0
    limit_finish: str = ""
    computed: int = 0
    prompt_tokens: int = 0
    hashes: list[bytes] = field(default_factory=list)
    filled: int = 0
    cached: int = -1
    steps: list[int] = field(default_factory=list)
    finish: str = ""
    thoughts: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.hash_blocks()

    @property
    def output_tokens(self) -> int:
        """Return the number of generated tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Tell if all but its last token is in the cache, so that it can decode."""
        return self.output_tokens > 0 and self.computed >= len(self.tokens) - 1

    @property
    def missing(self) -> int:
        """Return the number of tokens that a prefill has yet to compute."""
        return len(self.tokens) - self.computed

    def hash_blocks(self) -> None:
        """Hash the blocks that have become full."""
        while (len(self.hashes) + 1) * BLOCK <= len(self.tokens):
            begin = len(self.hashes) * BLOCK
            parent = self.hashes[-1] if self.hashes else b""
            self.hashes.append(block_hash(parent, self.tokens[begin : begin + BLOCK]))

    def accept(self, choices: tuple[Choice, ...], end: int) -> StreamDelta:
        """Append the tokens of a step, up to *end* of sequence or the longest output; returns them."""
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
