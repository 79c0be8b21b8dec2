"""Can the draft model store its keys and values in another format than the target does, in vLLM 0.33.0?

Configurations, the functions of both model runners that derive the drafter's from them, and the pairs of
formats are those of the first probe, `probe.py`; functions that plan memory moved to a module of their own.

In 0.24.0 runners took the shape of every cache from one dtype, so that some pairs had to be refused. Here
each layer's memory comes from its own specification. So every pair must be either refused by name or served:
each layer has the dtype that it was told, memory of its own size, and a view of all of that and of nothing
else.

Not asked of this release: that methods without a cache of their own refuse the setting, as the carry does.
"""

# ruff: noqa: E402 - names that moved have to be in place before the first probe is imported

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import torch
from probekit import expect
from vllm.config import SpeculativeConfig, VllmConfig, speculative
from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_planning, kv_cache_utils

if TYPE_CHECKING:
    from collections.abc import Callable

MOVED = ("get_kv_cache_groups", "get_kv_cache_config_from_groups")
for moved in MOVED:
    setattr(kv_cache_utils, moved, getattr(kv_cache_planning, moved))
if not hasattr(kv_cache_interface, "TQFullAttentionSpec"):
    kv_cache_interface.TQFullAttentionSpec = type("Gone", (), {})  # the first probe's views, not used here

import probe as first
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.gpu.spec_decode import utils as spec_utils
from vllm.v1.worker.gpu.spec_decode.dflash import utils as dflash_v2
from vllm.v1.worker.gpu.spec_decode.eagle import utils as eagle_v2
from vllm.v1.worker.utils import allocate_kv_cache

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec

MLA = "fp8_ds_mla"  # a format of layers that are built in another way
PAIRS = first.MIXES + tuple(pair for pair in first.REFUSED if MLA not in pair)
BLOCKS = 4
first_serving = first.serving


def serving(target: str, draft: str | None, method: str = "dflash") -> VllmConfig:
    """Return the first probe's configuration with a drafter of one layer."""
    config = first_serving(target, draft, method)
    cast("Any", config.speculative_config).draft_model_config.hf_config.num_hidden_layers = 1
    return config


def check_memory(what: str, specs: dict[str, KVCacheSpec]) -> KVCacheConfig:
    """Both layers must fit into one group, with memory of their own size, whatever its layout."""
    planned: Any = None
    for layout in (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC):
        config = cast("VllmConfig", SimpleNamespace(
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            attention_config=SimpleNamespace(hisparse_config=None),
            cache_config=SimpleNamespace(
                num_gpu_blocks_override=BLOCKS,
                prefix_cache_retention_interval=None,
                get_resolved_kv_cache_layout=lambda layout=layout: layout,
            ),
            kv_transfer_config=None,
            speculative_config=None,
        ))  # fmt: skip
        groups = kv_cache_planning.get_kv_cache_groups(config, dict(specs))
        expect(len(groups) == 1, f"{what}: {len(groups)} groups")
        planned = kv_cache_planning.get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)
        check_caches(f"{what}, {layout.name}", specs, allocate_kv_cache(planned, torch.device("cpu"), layout))
    return cast("KVCacheConfig", planned)


def check_caches(what: str, specs: dict[str, KVCacheSpec], caches: dict[str, torch.Tensor]) -> None:
    """Compare each view with its layer's own memory, and write to one to see that no other has it."""
    for name, cache in caches.items():
        size = cache.numel() * cache.element_size()
        wanted = BLOCKS * cast("FullAttentionSpec", specs[name]).page_size_bytes
        expect(size == wanted, f"{what}: {name} is viewed by {size} bytes of {wanted}")
    for name, cache in caches.items():
        for other in caches.values():
            other.zero_()
        cache.fill_(1)
        touched = [found for found, other in caches.items() if bool((other != 0).any())]
        expect(touched == [name], f"{what}: what is written to {name} is found in {touched}")


def check_pair(runner: str, derive: Callable[[VllmConfig], VllmConfig], target: str, draft: str) -> None:
    """Serve the pair, unless upstream names both formats in a refusal."""
    try:
        first.check_layers(runner, derive, target, draft)
    except ValueError as refusal:
        if target not in str(refusal) or draft not in str(refusal):
            raise


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    torch.set_default_dtype(torch.bfloat16)
    replaced = [
        *(
            mock.patch.object(module, "replace", first.derived)
            for module in (speculative, eagle_v2, dflash_v2)
        ),
        mock.patch.object(spec_utils, "get_pp_group", return_value=SimpleNamespace(world_size=1)),
        mock.patch.object(first, "serving", serving),
        mock.patch.object(first, "check_memory", check_memory),
        mock.patch.object(first, "check_views"),  # `check_memory` has looked at them
    ]
    with ExitStack() as stack:
        for one in (first.without_models(), *replaced):
            stack.enter_context(one)
        for runner, derive in first.RUNNERS.items():
            for target in ("auto", "fp8"):
                first.check_layers(runner, derive, target, None)
        expect(
            "kv_cache_dtype" in SpeculativeConfig.__dataclass_fields__,
            "the drafter stores what the target does: the speculative configuration has no kv_cache_dtype",
        )
        for runner, derive in first.RUNNERS.items():
            for target, draft in PAIRS:
                check_pair(runner, derive, target, draft)
        for method in ("eagle", "eagle3", "mtp", "dflash", "draft_model"):
            first.speculative(method, "bfloat16")
