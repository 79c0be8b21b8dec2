"""Does a prefix hit of a hybrid model count more than all of its layers hold?"""

import inspect
import sys
from unittest import mock

import torch
from probekit import expect

for name in ("blake3", "cbor2", "diskcache", "gguf", "gguf.constants", "gguf.quants"):
    sys.modules.setdefault(name, mock.MagicMock())  # old releases import them

from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_coordinator, kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

BLOCK = 16  # tokens


def call(function, **arguments):
    """Call *function* with those of *arguments* that this release's has."""
    return function(
        **{name: arguments[name] for name in inspect.signature(function).parameters if name in arguments}
    )


def probe():
    kv_cache_utils.init_none_hash(sha256)
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float16)
    states = MambaSpec(
        block_size=BLOCK, shapes=((2, 512),), dtypes=(torch.float32,), mamba_cache_mode="align"
    )
    groups = [KVCacheGroupSpec(["attention"], attention), KVCacheGroupSpec(["states"], states)]
    prompt = [index.to_bytes(32, "big") for index in range(4)]  # the hashes of its blocks
    for held in range(5):
        for state in range(1, 5):
            coordinator = call(
                kv_cache_coordinator.get_kv_cache_coordinator,
                kv_cache_config=KVCacheConfig(100, [], groups),
                use_eagle=True,
                enable_caching=True,
                enable_kv_cache_events=False,
                max_model_len=1024,
                max_num_batched_tokens=1024,
                max_in_flight_tokens=1024,
                dcp_world_size=1,
                pcp_world_size=1,
                scheduler_block_size=BLOCK,
                hash_block_size=BLOCK,
            )
            pool = coordinator.block_pool
            for group, blocks in enumerate([range(held), [state - 1]]):
                for block in blocks:
                    key = kv_cache_utils.make_block_hash_with_group_id(prompt[block], group)
                    pool.cached_block_hash_to_block.insert(key, pool.get_new_blocks(1)[0])
            hit = coordinator.find_longest_cache_hit(prompt, len(prompt) * BLOCK)[1]
            # The drafter reads hidden states, so the last block of attention's hit is computed again.
            most = state * BLOCK if state < held else 0
            expect(
                hit <= most,
                f"attention holds {held} blocks, a state lies after {state}: {hit} tokens count, {most} can",
            )
