"""Build real draft models on the CPU, from configurations as drafters have them.

Upstream's model code, attention layers, KV cache planning, proposer and metadata builders are real; linear
layers and the objects that hold the configurations together are stand-ins. One proposal is prepared for two
requests, one shorter than the window and one longer.
"""

# ruff: noqa: SLF001 - what is under test has no public name

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from configurations import HEAD_SIZE, HEADS, KV_HEADS, SIZES, Seen
from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import attention as attention_module
from vllm.model_executor.models import qwen3_dflash
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.spec_decode import dflash, llm_base_proposer

CPU = torch.device("cpu")
TARGET_LAYERS = 8
DRAFTS = 3
QUERIES = 1 + DRAFTS
BLOCK = 16
CONTEXTS = (7, 45)  # tokens before the drafted block: inside the window, and beyond it


class Plain(SimpleNamespace):
    """A model's configuration; whatever else it is asked is false."""

    get_head_size = staticmethod(lambda: HEAD_SIZE)
    get_hidden_size = get_inputs_embeds_size = staticmethod(lambda: SIZES["hidden_size"])
    get_num_attention_heads = staticmethod(lambda _parallel: HEADS)
    get_num_kv_heads = staticmethod(lambda _parallel: KV_HEADS)

    def __getattr__(self, name: str) -> bool:
        return False


class Drafter:
    """A draft model on one backend, with its proposer and the configuration that both read."""

    def __init__(self, hf_config: Any, backend: Any = TritonAttentionBackend, **cache: Any) -> None:
        self.vllm_config = serving_config(hf_config, **cache)
        self.model = build_model(self.vllm_config, backend)
        self.layers = {layer.self_attn.attn.layer_name: layer.self_attn.attn for layer in self.model.layers}
        with mock.patch.object(llm_base_proposer, "PIN_MEMORY", new=False):  # a CPU build of torch has none
            self.proposer = dflash.DFlashProposer(self.vllm_config, CPU)
        self.proposer._draft_attn_layer_names = set(self.layers)

    def kv_specs(self) -> dict[str, Any]:
        """Return the KV cache specification by layer."""
        return {name: layer.get_kv_cache_spec(self.vllm_config) for name, layer in self.layers.items()}

    def metadata(self) -> tuple[list[Any], dict[str, Any]]:
        """Return attention metadata of the proposal, by group and by layer, beside a dense target's KV."""
        groups = get_kv_cache_groups(self.vllm_config, {**target(), **self.kv_specs()})
        self.proposer.initialize_attn_backend(kv.KVCacheConfig(64, [], groups))
        return self.proposer.build_per_group_and_layer_attn_metadata(prepare(self.proposer))

    def attends(self) -> list[Seen]:
        """Return window and causality of each layer, in order."""
        _, by_layer = self.metadata()
        windows = [layer.impl.sliding_window[0] + 1 for layer in self.layers.values()]
        causal = [by_layer[name].causal for name in self.layers]
        return [Seen(window or None, *one) for window, *one in zip(windows, causal, strict=True)]


def serving_config(hf_config: Any, dtype: torch.dtype = torch.float32, **cache: Any) -> VllmConfig:
    """Return a configuration with stand-ins for both models."""
    config: Any = VllmConfig(
        cache_config=CacheConfig(block_size=BLOCK, **cache), device_config=DeviceConfig(device="cpu")
    )
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.model_config = Plain(
        architectures=["Qwen3ForCausalLM"],
        dtype=dtype,
        get_num_layers=lambda _parallel: TARGET_LAYERS,
        hf_text_config=SimpleNamespace(model_type="qwen3"),
        logprobs_mode="raw_logprobs",
        max_model_len=4096,
        model_arch_config=SimpleNamespace(is_mm_prefix_lm=False),
        runner_type="generate",
    )
    config.speculative_config = Plain(
        method="dflash",
        attention_backend=None,
        draft_model_config=Plain(hf_config=hf_config),
        draft_sample_method="greedy",
        kv_cache_dtype=None,  # another carry reads it
        moe_backend=None,
        num_speculative_tokens=DRAFTS,
        parallel_drafting=True,
        rejection_sample_method="standard",
        uses_dynamic_speculative_decoding=lambda: False,
    )
    return config


def build_model(config: Any, backend: Any) -> Any:
    """Build the draft model: all is real but for the layers with weights."""
    leaf = mock.Mock(side_effect=lambda *_, **__: torch.nn.Identity())
    module = mock.patch.multiple(
        qwen3_dflash,
        QKVParallelLinear=leaf,
        RowParallelLinear=leaf,
        ReplicatedLinear=leaf,
        VocabParallelEmbedding=leaf,
        Qwen3MLP=leaf,
        get_tensor_model_parallel_world_size=lambda: 1,
        get_draft_quant_config=lambda _config: None,
    )
    chosen = mock.patch.object(attention_module, "get_attn_backend", return_value=backend)
    with set_current_vllm_config(config), module, chosen:
        return qwen3_dflash.DFlashQwen3Model(vllm_config=config, prefix="model", start_layer_id=TARGET_LAYERS)


def prepare(proposer: dflash.DFlashProposer) -> CommonAttentionMetadata:
    """Prepare one proposal after a prefill of `CONTEXTS`; returns what metadata are built from."""
    starts = torch.tensor([0, CONTEXTS[0], sum(CONTEXTS)], dtype=torch.int32)
    lengths = torch.tensor(CONTEXTS, dtype=torch.int32)
    blocks = -(-(max(CONTEXTS) + QUERIES) // BLOCK)
    table = 1 + torch.randperm(2 * blocks).view(2, blocks).to(torch.int32)
    before = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=2,
        num_actual_tokens=sum(CONTEXTS),
        max_query_len=max(CONTEXTS),
        max_seq_len=max(CONTEXTS),
        block_table_tensor=table,
        slot_mapping=torch.zeros(sum(CONTEXTS), dtype=torch.int64),
    )
    _, _, prepared = proposer.set_inputs_first_pass(
        target_token_ids=torch.zeros(sum(CONTEXTS), dtype=torch.int32),
        next_token_ids=torch.zeros(2, dtype=torch.int32),
        target_positions=torch.cat([torch.arange(context) for context in CONTEXTS]),
        target_hidden_states=torch.zeros(sum(CONTEXTS), SIZES["hidden_size"]),
        token_indices_to_sample=None,
        cad=before,
        num_rejected_tokens_gpu=None,
    )
    return prepared


def target(*, hybrid: bool = False) -> dict[str, kv.KVCacheSpec]:
    """Return KV of a target like the drafter; hybrid: three gated delta nets to each, and larger heads."""
    heads, size = (1, KV_HEADS * HEAD_SIZE) if hybrid else (KV_HEADS, HEAD_SIZE)
    full = kv.FullAttentionSpec(block_size=BLOCK, num_kv_heads=heads, head_size=size, dtype=torch.float32)
    state = kv.MambaSpec(
        block_size=BLOCK, shapes=((8, 8),), dtypes=(torch.float32,), page_size_padded=full.page_size_bytes
    )
    count = TARGET_LAYERS * (3 if hybrid else 1)
    return {f"model.layers.{i}.mixer": state if hybrid and i % 4 < 3 else full for i in range(count)}
