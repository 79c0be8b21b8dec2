"""Blocks of the KV cache: allotted to requests, shared by equal prefixes, found again by their hashes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full block: of its tokens and of all before it."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


@dataclass
class Holding:
    """Blocks that one request holds.

    Attributes:
        shared: hashes of those that others may find, in order.
        private: how many others it holds, each of them partly filled or equal to one that is cached already.
    """

    shared: list[bytes] = field(default_factory=list)
    private: int = 0

    @property
    def blocks(self) -> int:
        """How many it holds."""
        return len(self.shared) + self.private


class Pool:
    """All blocks of the cache. Blocks that nobody holds keep what is in them until they are needed."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._holders: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return len(self._holders) + self._private

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold."""
        return self.used / self.blocks

    @property
    def cached(self) -> int:
        """Blocks that could be found by their hashes."""
        return len(self._holders) + len(self._idle)

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of *hashes*, from the first on, are cached."""
        for count, name in enumerate(hashes):
            if name not in self._holders and name not in self._idle:
                return count
        return len(hashes)

    def take(self, holding: Holding, found: Sequence[bytes], blocks: int) -> bool:
        """Give *holding* the cached blocks *found* and as many others as make *blocks*; all or nothing."""
        more = blocks - holding.blocks - len(found)
        waking = sum(name in self._idle for name in found)
        if max(more, 0) + waking > self.blocks - self.used:
            return False
        for name in found:
            self._idle.pop(name, None)
            self._holders[name] = self._holders.get(name, 0) + 1
            holding.shared.append(name)
        if more > 0:
            holding.private += more
            self._private += more
        while self.used + len(self._idle) > self.blocks:
            self._idle.popitem(last=False)
        return True

    def fill(self, holding: Holding, name: bytes) -> None:
        """One private block of *holding* is full: others may find it, unless an equal one is cached."""
        if name in self._holders or name in self._idle or not holding.private:
            return
        holding.private -= 1
        self._private -= 1
        self._holders[name] = 1
        holding.shared.append(name)

    def release(self, holding: Holding) -> None:
        """Take everything back; later blocks of a sequence are forgotten before earlier ones."""
        self._private -= holding.private
        for name in reversed(holding.shared):
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self._idle[name] = None
        holding.shared, holding.private = [], 0

    def reset(self) -> bool:
        """Forget what is cached; only while nobody holds a block, as vLLM has it."""
        if self.used:
            return False
        self._idle.clear()
        return True
