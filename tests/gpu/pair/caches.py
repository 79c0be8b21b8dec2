"""A layer's KV cache in the form that these scripts compare: one for both series, and for every layout.

Up to 0.25 a layer's cache is (blocks, 2, slots, heads, values); from 0.26 on it is (blocks, heads, slots,
values of K and of V in one row). In memory the dimensions may lie in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Region", "distinct", "region", "sides", "some_skipped"]

WITH_SIDES, IN_ROWS = 5, 4  # dimensions


def sides(cache: Any, blocks: int, slots: int) -> Any:
    """Return *cache* as a view (blocks, 2, slots, heads, values).

    Raises:
        ValueError: it has neither of the two forms, or not these blocks and slots.
    """
    shape = tuple(cache.shape)
    if len(shape) == WITH_SIDES and shape[:3] == (blocks, 2, slots):
        return cache
    if len(shape) == IN_ROWS and (shape[0], shape[2]) == (blocks, slots) and shape[3] % 2 == 0:
        return cache.unflatten(3, (2, shape[3] // 2)).permute(0, 3, 2, 1, 4)
    raise ValueError(f"a cache of shape {shape} cannot be read here")


@dataclass(frozen=True)
class Region:
    """Memory that holds the same pages of all blocks: bytes from the storage's start, and bytes of a page."""

    start: int
    page: int


def region(first: int, stride: int, kernel_blocks: int, blocks: int) -> Region:
    """Return the region that a layer's cache lies in.

    Args:
        first: bytes from the storage's start to the cache's first value.
        stride: bytes from one of its blocks to the next.
        kernel_blocks: its blocks, of which a manager's block may have several.
        blocks: the manager's blocks.

    Raises:
        ValueError: the layer's blocks are no whole number of the manager's.
    """
    if kernel_blocks % blocks:
        raise ValueError(f"{kernel_blocks} blocks of a layer are no multiple of {blocks}")
    page = stride * (kernel_blocks // blocks)
    return Region(first // (page * blocks) * (page * blocks), page)


def some_skipped(mapping: Any, every: int) -> Any:
    """Return a copy of a slot mapping in which one row in *every* has no slot.

    *mapping* is a tensor, or since 0.33 a list with one for each layer; None stays None.
    """
    if mapping is None:
        return None
    if isinstance(mapping, list | tuple):
        return [some_skipped(one, every) for one in mapping]
    copy = mapping.clone()
    copy[::every] = -1
    return copy


def distinct(caches: Sequence[Any], blocks: int, bytes_of: Callable[[Any, Region], Any]) -> list[Any]:
    """Return what *bytes_of* makes of each region once; it gets a cache that lies in it."""
    seen: dict[tuple[int, int], Any] = {}
    for cache in caches:
        size = cache.element_size()
        found = region(cache.storage_offset() * size, cache.stride(0) * size, cache.shape[0], blocks)
        key = (cache.untyped_storage().data_ptr(), found.start)
        if key not in seen:
            seen[key] = bytes_of(cache, found)
    return list(seen.values())
