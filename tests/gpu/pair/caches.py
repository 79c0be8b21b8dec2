"""A layer's KV cache in the form that these scripts compare: one for both series, and for every layout.

Up to 0.25 a layer's cache is (blocks, 2, slots, heads, values); from 0.26 on it is (blocks, heads, slots,
values of K and of V in one row). In memory the dimensions may lie in any order.
"""

from __future__ import annotations

from typing import Any

WITH_SIDES, IN_ROWS = 5, 4  # dimensions


def sides(cache: Any, blocks: int, slots: int) -> Any:
    """Return *cache* as a view (blocks, 2, slots, heads, values)."""
    shape = tuple(cache.shape)
    if len(shape) == WITH_SIDES and shape[:3] == (blocks, 2, slots):
        return cache
    if len(shape) == IN_ROWS and (shape[0], shape[2]) == (blocks, slots) and shape[3] % 2 == 0:
        return cache.unflatten(3, (2, shape[3] // 2)).permute(0, 3, 2, 1, 4)
    raise ValueError(f"a cache of shape {shape} cannot be read here")


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
