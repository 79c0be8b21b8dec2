"""The blocks of the KV cache: those of each request, and the pool that requests take them from."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b


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
