"""The blocks of the KV cache: those of each request, and the pool that requests take them from."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from sparkwright.verify.simulator.model import Choice, TokenGenerator
from sparkwright.verify.simulator.settings import BLOCK


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block: of its tokens and of all before it."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


@dataclass
class BlockTable:
    """The blocks of one request.

    Attributes:
        shared: hashes of the cached blocks, which other requests may reuse, in order.
        private: number of other blocks, each partly filled or equal to one that is cached already.
    """

    shared: list[bytes] = field(default_factory=list)
    private: int = 0

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.shared) + self.private


class BlockPool:
    """All blocks of the cache. Free blocks keep their content until they are needed."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._holders: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._private = 0

    @property
    def used(self) -> int:
        """Return the number of blocks that requests hold."""
        return len(self._holders) + self._private

    @property
    def usage(self) -> float:
        """Return the share of the blocks that requests hold."""
        return self.used / self.blocks

    @property
    def cached(self) -> int:
        """Return the number of blocks that can be found by their hashes."""
        return len(self._holders) + len(self._idle)

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many of *hashes*, from the first on, are cached."""
        for count, name in enumerate(hashes):
            if name not in self._holders and name not in self._idle:
                return count
        return len(hashes)

    def allocate(self, block_table: BlockTable, found: Sequence[bytes], blocks: int) -> bool:
        """Add the cached blocks *found* to *block_table*, and new ones up to *blocks*; all or nothing."""
        more = blocks - block_table.blocks - len(found)
        waking = sum(name in self._idle for name in found)
        if max(more, 0) + waking > self.blocks - self.used:
            return False
        for name in found:
            self._idle.pop(name, None)
            self._holders[name] = self._holders.get(name, 0) + 1
            block_table.shared.append(name)
        if more > 0:
            block_table.private += more
            self._private += more
        while self.used + len(self._idle) > self.blocks:
            self._idle.popitem(last=False)
        return True

    def cache_block(self, block_table: BlockTable, name: bytes) -> None:
        """Cache one full private block of *block_table*, unless an equal one is cached."""
        if name in self._holders or name in self._idle or not block_table.private:
            return
        block_table.private -= 1
        self._private -= 1
        self._holders[name] = 1
        block_table.shared.append(name)

    def release(self, block_table: BlockTable) -> None:
        """Free all blocks; later blocks of a sequence are evicted before earlier ones."""
        self._private -= block_table.private
        for name in reversed(block_table.shared):
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self._idle[name] = None
        block_table.shared, block_table.private = [], 0


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
    preemptions: int = 0
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
        cached: prompt tokens found in the cache when it was first scheduled; -1 before.
        steps: accepted tokens of each step with drafted tokens.
        thoughts: generated tokens that are reasoning.
    """

    number: int
    name: str
    tokens: list[int]
    max_tokens: int
    generator: TokenGenerator
    category: str
    identity: int
    limit: int = 0
    limit_finish: str = ""
    computed: int = 0
    prompt_tokens: int = 0
    hashes: list[bytes] = field(default_factory=list)
    block_table: BlockTable = field(default_factory=BlockTable)
    cached: int = -1
    steps: list[int] = field(default_factory=list)
    preemptions: int = 0
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
