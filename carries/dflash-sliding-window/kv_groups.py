"""Are all layers of a drafter in one KV cache group, beside targets with several kinds of layers?"""

from __future__ import annotations

from typing import Any

import torch
from drafters import Drafter, target
from probekit import expect
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

# Layers of each kind in the target; with five draft layers: how many groups, and layers in the largest.
SHAPES = {
    "dense": ({"same": 8}, 1, 13),
    "gated delta nets": ({"state": 6, "full": 2}, 4, 5),
    "windows and wide heads": ({"slides": 4, "wide": 2}, 3, 5),
    "windows and layers like the drafter's": ({"slides": 6, "same": 6}, 3, 6),
    "one layer of a kind": ({"state": 3, "full": 1}, 3, 5),
    "many gated delta nets": ({"state": 48, "full": 16}, 15, 5),
    "almost as many": ({"slides": 12, "same": 12}, 2, 17),
}
MEMORY = 1 << 24


def planned(config: Any, *, hybrid: bool) -> list[kv.KVCacheGroupSpec]:
    """Return the KV cache groups of a target with the drafter of *config*."""
    drafter = Drafter(config)
    groups = get_kv_cache_groups(drafter.vllm_config, {**target(hybrid=hybrid), **drafter.kv_specs()})
    of_drafter = [group for group in groups if drafter.layers.keys() & set(group.layer_names)]
    expect(len(of_drafter) == 1, f"the drafter's layers are in {len(of_drafter)} KV cache groups")
    return groups


def of_shape(drafter: Any, **counts: int) -> dict[str, kv.KVCacheSpec]:
    """Return KV of a target with so many layers of each kind; those of `same` are like the drafter's."""
    like = next(iter(drafter.kv_specs().values()))
    shared = {"block_size": like.block_size, "dtype": like.dtype, "indexes_kv_by_block_stride": True}
    all_heads = like.num_kv_heads * like.head_size
    full = kv.FullAttentionSpec(num_kv_heads=1, head_size=all_heads, **shared)
    kinds: dict[str, kv.KVCacheSpec] = {
        "same": like,
        "full": full,
        "wide": kv.FullAttentionSpec(num_kv_heads=1, head_size=2 * all_heads, **shared),
        "slides": kv.SlidingWindowSpec(
            num_kv_heads=like.num_kv_heads, head_size=like.head_size, sliding_window=64, **shared
        ),
        "state": kv.MambaSpec(
            block_size=like.block_size,
            shapes=((8, 8),),
            dtypes=(torch.float32,),
            page_size_padded=full.page_size_bytes,
        ),
    }
    names = [kind for kind, count in counts.items() for _ in range(count)]
    return {f"target.layers.{index}.{kind}": kinds[kind] for index, kind in enumerate(names)}


def planned_beside(drafter: Any, **counts: int) -> list[kv.KVCacheGroupSpec]:
    """Return the KV cache groups of a target of that shape with the drafter."""
    specs = {**of_shape(drafter, **counts), **drafter.kv_specs()}
    groups = get_kv_cache_groups(drafter.vllm_config, dict(specs))
    names = sorted(name for group in groups for name in group.layer_names)
    expect(names == sorted(specs), f"{counts}: layers are lost, or planned twice: {names}")
    return groups


def check_one_group(what: str, drafter: Any, counts: dict[str, int], wanted: tuple[int, int]) -> None:
    """Expect all draft layers in one group, and memory of its own for each layer of a group."""
    groups = planned_beside(drafter, **counts)
    names = [set(group.layer_names) for group in groups]
    holding = sum(not drafter.layers.keys().isdisjoint(one) for one in names)
    expect(holding == 1, f"{what}: the drafter's layers are in {holding} KV cache groups")
    found = len(groups), max(map(len, names))
    expect(found == wanted, f"{what}: {found} groups and layers in the largest, not {wanted}")
    config = get_kv_cache_config_from_groups(drafter.vllm_config, groups, MEMORY)
    for tensor in config.kv_cache_tensors:
        most = max(len(one & set(tensor.shared_by)) for one in names)
        expect(most == 1, f"{what}: {most} layers of one group share their memory")
    drafter.proposer.initialize_attn_backend(config)
    taken = names[drafter.proposer.kv_cache_gid]
    expect(drafter.layers.keys() <= taken, f"{what}: the proposer takes another group's block table")


def check_other_plans(one: Any, five: Any) -> None:
    """Expect upstream's plans for a drafter of *one* layer, and for *five* of another method or in stages."""
    sizes = [len(group.layer_names) for group in planned_beside(one, slides=2, same=6)]
    expect(sizes == [2, 2, 2, 2, 1], f"beside a drafter of one layer, groups have {sizes} layers")
    dealt = [2] * 6 + [1]
    five.vllm_config.parallel_config.pipeline_parallel_size = 2
    sizes = [len(group.layer_names) for group in planned_beside(five, state=6, full=2)]
    expect(sizes == dealt, f"with pipeline parallelism, groups have {sizes} layers")
    five.vllm_config.parallel_config.pipeline_parallel_size = 1
    five.vllm_config.speculative_config.method = "eagle3"
    sizes = [len(group.layer_names) for group in planned_beside(five, state=6, full=2)]
    expect(sizes == dealt, f"beside a drafter of another method, groups have {sizes} layers")
