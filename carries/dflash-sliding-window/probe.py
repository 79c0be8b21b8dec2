"""Does every layer of a DFlash drafter attend within its own window, and with its own causality?

Real draft models are built on the CPU from configurations as drafters have them, native and in the
speculators format: upstream's model code, attention layers, KV cache planning, proposer and metadata
builders. Linear layers and the objects that hold the configurations together are stand-ins. One proposal is
prepared for two requests, one shorter than the window and one longer, and the layers' attention is then
computed by the Triton backend (interpreted) and held against a masked reference. FlashAttention has no
kernel for CPUs: there the arguments of its call are checked.

The controls are drafters without sliding layers, and which hidden states of the target a drafter asks for.
"""

# ruff: noqa: SLF001 - what is under test has no public name

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import kv_groups
import torch
from probekit import expect
from vllm.config import AttentionConfig, CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import attention as attention_module
from vllm.model_executor.models import qwen3_dflash
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.spec_decode import dflash, llm_base_proposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

CPU = torch.device("cpu")
TARGET_LAYERS = 8
DRAFTS = 3
QUERIES = 1 + DRAFTS
BLOCK = 16
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
WINDOW = 20
CONTEXTS = (7, 45)  # tokens before the drafted block: inside the window, and beyond it
SLIDING, FULL = "sliding_attention", "full_attention"
MIXED = [SLIDING] * 4 + [FULL]
AUX_LAYERS = (2, 4, 7)  # the target's layers whose output the drafters read
SIZES: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "num_attention_heads": HEADS,
    "num_hidden_layers": len(MIXED),
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "vocab_size": 512,
}


class Plain(SimpleNamespace):
    """A model's configuration that says no to whatever else it is asked."""

    get_head_size = staticmethod(lambda: HEAD_SIZE)
    get_hidden_size = get_inputs_embeds_size = staticmethod(lambda: SIZES["hidden_size"])
    get_num_attention_heads = staticmethod(lambda _parallel: HEADS)
    get_num_kv_heads = staticmethod(lambda _parallel: KV_HEADS)

    def __getattr__(self, name: str) -> bool:
        return False


class Seen(NamedTuple):
    """How one layer attends: the window is that of its kernel, in tokens, its own included."""

    window: int | None
    causal: bool


SLIDES, LOOKS_BACK = Seen(WINDOW, causal=True), Seen(None, causal=False)


def native(options: dict[str, Any] | None = None, **given: Any) -> Any:
    """A drafter's configuration from a config.json as z-lab writes it, as `SpeculativeConfig` wraps it."""
    dflash_config = {"mask_token_id": 511, "target_layer_ids": [i - 1 for i in AUX_LAYERS], **(options or {})}
    found = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], **SIZES, **given}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**found, "dflash_config": dflash_config}))
        config = get_config(folder, trust_remote_code=False)
    return EAGLEConfig(config, method="dflash", model_type="eagle")


def speculators(layer: dict[str, Any] | None = None, **given: Any) -> Any:
    """The same in the format of the speculators library, through upstream's converter."""
    found = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": {**SIZES, "model_type": "qwen3", **(layer or {})},
        "mask_token_id": 511,
        "aux_hidden_state_layer_ids": list(AUX_LAYERS),
        **given,
    }
    return SpeculatorsConfig(**SpeculatorsConfig.extract_transformers_pre_trained_config(found))


def windowed(types: list[str]) -> dict[str, Any]:
    """What a configuration says of *types* of layers."""
    return {"layer_types": types, "sliding_window": WINDOW, "use_sliding_window": True}


class Drafter:
    """A draft model on one backend, its proposer, and what the two need around them."""

    def __init__(self, hf_config: Any, backend: Any = TritonAttentionBackend, **cache: Any) -> None:
        self.vllm_config = serving_config(hf_config, **cache)
        self.model = build_model(self.vllm_config, backend)
        self.layers = {layer.self_attn.attn.layer_name: layer.self_attn.attn for layer in self.model.layers}
        with mock.patch.object(llm_base_proposer, "PIN_MEMORY", new=False):  # a CPU build of torch has none
            self.proposer = dflash.DFlashProposer(self.vllm_config, CPU)
        self.proposer._draft_attn_layer_names = set(self.layers)

    def kv_specs(self) -> dict[str, Any]:
        """KV cache specification by layer."""
        return {name: layer.get_kv_cache_spec(self.vllm_config) for name, layer in self.layers.items()}

    def metadata(self) -> tuple[list[Any], dict[str, Any]]:
        """Attention metadata of the proposal, by group and by layer, beside a dense target's KV."""
        groups = get_kv_cache_groups(self.vllm_config, {**target(), **self.kv_specs()})
        self.proposer.initialize_attn_backend(kv.KVCacheConfig(64, [], groups))
        return self.proposer.build_per_group_and_layer_attn_metadata(prepare(self.proposer))

    def attends(self) -> list[Seen]:
        """How each layer attends, in order."""
        _, by_layer = self.metadata()
        windows = [layer.impl.sliding_window[0] + 1 for layer in self.layers.values()]
        causal = [by_layer[name].causal for name in self.layers]
        return [Seen(window or None, *one) for window, *one in zip(windows, causal, strict=True)]


def serving_config(hf_config: Any, dtype: torch.dtype = torch.float32, **cache: Any) -> VllmConfig:
    """A configuration with stand-ins for both models."""
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
    """The draft model: all real but for the layers with weights."""
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
    """KV of a target like the drafter; hybrid, with three gated delta net layers to each and larger heads."""
    heads, size = (1, KV_HEADS * HEAD_SIZE) if hybrid else (KV_HEADS, HEAD_SIZE)
    full = kv.FullAttentionSpec(block_size=BLOCK, num_kv_heads=heads, head_size=size, dtype=torch.float32)
    state = kv.MambaSpec(
        block_size=BLOCK, shapes=((8, 8),), dtypes=(torch.float32,), page_size_padded=full.page_size_bytes
    )
    count = TARGET_LAYERS * (3 if hybrid else 1)
    return {f"model.layers.{i}.mixer": state if hybrid and i % 4 < 3 else full for i in range(count)}


def planned(config: Any, *, hybrid: bool) -> list[kv.KVCacheGroupSpec]:
    """The KV cache groups of a target with the drafter of *config*."""
    drafter = Drafter(config)
    groups = get_kv_cache_groups(drafter.vllm_config, {**target(hybrid=hybrid), **drafter.kv_specs()})
    of_drafter = [group for group in groups if drafter.layers.keys() & set(group.layer_names)]
    expect(len(of_drafter) == 1, f"the drafter's layers are in {len(of_drafter)} KV cache groups")
    return groups


def check_attends(what: str, config: Any, wanted: list[Seen]) -> None:
    """Both backends have each layer attend as *wanted*."""
    for backend in (TritonAttentionBackend, FlashAttentionBackend):
        found: object
        try:
            found = Drafter(config, backend).attends()
        except (AssertionError, ValueError) as error:
            found = repr(error)
        expect(found == wanted, f"{what}, on {backend.get_name()}: layers attend as {found}, not as {wanted}")


def reference(
    layer: Any, seen: Seen, query: torch.Tensor, cache: torch.Tensor, metadata: Any
) -> torch.Tensor:
    """Attention of the drafted blocks with an explicit mask, one request after the other."""
    outputs = []
    for request, context in enumerate(CONTEXTS):
        rows = slice(request * QUERIES, (request + 1) * QUERIES)
        length = context + QUERIES
        pages = cache[metadata.block_table[request].long()]
        keys, values = (
            pages[:, kind].reshape(-1, KV_HEADS, HEAD_SIZE)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
            for kind in (0, 1)
        )
        distance = torch.arange(context, length)[:, None] - torch.arange(length)
        mask = (distance >= 0) if seen.causal else torch.ones_like(distance, dtype=torch.bool)
        if seen.window is not None:
            mask &= distance.abs() < seen.window
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * layer.impl.scale
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def check_numbers(what: str, config: Any, wanted: list[Seen]) -> None:
    """What the Triton backend computes for each layer is what the mask says."""
    drafter = Drafter(config)
    _, by_layer = drafter.metadata()
    query = torch.randn(len(CONTEXTS) * QUERIES, HEADS, HEAD_SIZE)
    cache = torch.randn(16, 2, BLOCK, KV_HEADS, HEAD_SIZE)
    for (name, layer), seen in list(zip(drafter.layers.items(), wanted, strict=True))[-2:]:
        output = torch.empty_like(query)
        layer.impl.forward(layer, query, query, query, cache, by_layer[name], output)
        goal = reference(layer, seen, query, cache, by_layer[name])
        error = (output - goal).abs().max().item()
        expect(error < 1e-4, f"{what}: {name} is off by {error:.3g} from attention as {seen}")


def check_flash_arguments(config: Any, wanted: list[Seen]) -> None:
    """FlashAttention is called with each layer's window and causality, and with no schedule made for one."""
    drafter = Drafter(config, FlashAttentionBackend)
    schedule = mock.patch.object(
        flash_attn, "get_scheduler_metadata", create=True, side_effect=ValueError("made for one window")
    )
    # As on a card whose FlashAttention schedules ahead: drafting must not, whatever the card.
    ahead = mock.patch.object(flash_attn, "get_flash_attn_version", return_value=3)
    with schedule, ahead:
        _, by_layer = drafter.metadata()
    query, cache = torch.zeros(QUERIES, HEADS, HEAD_SIZE), torch.zeros(16, 2, BLOCK, KV_HEADS, HEAD_SIZE)
    for (name, layer), seen in zip(drafter.layers.items(), wanted, strict=True):
        layer.impl.vllm_flash_attn_version = 2
        layer.impl.dcp_world_size = 1
        with mock.patch.object(flash_attn, "flash_attn_varlen_func", create=True) as call:
            layer.impl.forward(layer, query, query, query, cache, by_layer[name], query)
        given = call.call_args.kwargs
        left = -1 if seen.window is None else seen.window - 1
        window = [left, left if seen.window is None or not seen.causal else 0]
        found = given["causal"], given["window_size"]
        expect(found == (seen.causal, window), f"{name}: FlashAttention is called with {found}")
        expect(given["scheduler_metadata"] is None, f"{name}: FlashAttention was scheduled ahead")


def check_objects(what: str, config: Any, count: int) -> None:
    """*count* metadata objects serve all layers, on the same tensors."""
    by_group, by_layer = Drafter(config).metadata()
    objects = {id(one): one for one in by_layer.values()}
    tensors = {(one.block_table.data_ptr(), one.seq_lens.data_ptr()) for one in objects.values()}
    right = len(objects) == len(by_group) == count and len(tensors) == 1
    expect(right, f"{what}: {len(objects)} metadata objects on {len(tensors)} sets of tensors")


def check_assertion(config: Any) -> None:
    """Metadata of a backend that does not do what a layer needs stop the proposal."""
    for fixed in (True, False):

        class Builder(TritonAttentionBackend.get_builder_cls()):  # type: ignore[misc]
            def build(self, *arguments: Any, **named: Any) -> Any:
                return replace(super().build(*arguments, **named), causal=fixed)  # noqa: B023

        backend = type("Fixed", (TritonAttentionBackend,), {"get_builder_cls": staticmethod(lambda: Builder)})
        try:
            found = Drafter(config, backend).attends()
        except AssertionError:
            continue
        expect(found == [Seen(None, fixed)] * 5, f"layers that attend as {found} are let through")


def selected(config: Any, asked: Any = None, **cache: Any) -> tuple[Any, bool]:
    """The backend that the drafter's layers are built with (None: automatic), and whether non-causal."""
    proposer = Drafter(config).proposer
    base = SimpleNamespace(
        attention_config=SimpleNamespace(**vars(AttentionConfig())),
        cache_config=CacheConfig(block_size=BLOCK, **cache),
        model_config=proposer.vllm_config.model_config,
        speculative_config=proposer.speculative_config,
    )
    proposer.vllm_config = base  # type: ignore[assignment]
    proposer.speculative_config.attention_backend = asked

    replaced = mock.Mock(side_effect=lambda one, **changes: SimpleNamespace(**{**vars(one), **changes}))
    with (
        mock.patch.object(dflash, "replace", replaced),
        mock.patch.object(llm_base_proposer, "replace", replaced),
    ):
        chosen = proposer._create_draft_vllm_config().attention_config
    return chosen.backend and getattr(chosen.backend, "name", chosen.backend), chosen.use_non_causal


def check_selection() -> None:
    """With windows, a backend that knows them is named; without, selection stays automatic."""
    mixed = native(**windowed(MIXED))
    for what, found, wanted in (
        ("no windows", selected(native()), (None, True)),
        ("no windows, FP8", selected(native(), cache_dtype="fp8"), (None, True)),
        ("windows", selected(mixed), ("FLASH_ATTN", True)),
        ("windows, FP8", selected(mixed, cache_dtype="fp8"), ("TRITON_ATTN", True)),
        ("windows, another asked for", selected(mixed, "FLEX_ATTENTION"), ("FLEX_ATTENTION", True)),
        ("windows, all causal", selected(native(**windowed([SLIDING] * 5))), ("FLASH_ATTN", False)),
    ):
        expect(found == wanted, f"{what}: backend and non-causal are selected as {found}, not as {wanted}")


def refusal(config: Any, backend: Any = TritonAttentionBackend, **cache: Any) -> str:
    """Why a drafter is refused; empty if it is built."""
    try:
        Drafter(config, backend, **cache)
    except (IndexError, ValueError) as error:
        return str(error)
    return ""


def check_refusals() -> None:
    """What cannot be served is refused while the model is built, and says why."""
    planner = type("Planner", (TritonAttentionBackend,), {"get_name": staticmethod(lambda: "FLASHINFER")})
    mixed = native(**windowed(MIXED))
    skip = {"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["sliding_window"]}
    short = native(**windowed(MIXED))
    short.layer_types = MIXED[1:]
    none = native(**windowed(MIXED))
    none.sliding_window = None
    for why, found in {
        "TRITON_ATTN": refusal(mixed, planner),
        "kv_cache_dtype_skip_layers": refusal(mixed, **skip),
        "4 layer_types": refusal(short),
        "swa_window_size": refusal(none),
        "use_sliding_window": refusal(native(layer_types=MIXED, sliding_window=WINDOW)),
        "one precision, here bfloat16": refusal(mixed, **{**skip, "cache_dtype": "bfloat16"}),
    }.items():
        expect(why in found, f"a drafter that cannot be served is not refused for {why}: {found!r}")
    for what, found in {
        "windows, on a backend that knows them": refusal(mixed),
        "no windows, on any backend": refusal(native(), planner),
        "no windows, with layers left out of quantization": refusal(native(), **skip),
        "windows, and KV in the model's precision": refusal(mixed, **{**skip, "cache_dtype": "auto"}),
        "windows, and KV in that precision by name": refusal(
            mixed, dtype=torch.bfloat16, **{**skip, "cache_dtype": "bfloat16"}
        ),
    }.items():
        expect(not found, f"a drafter with {what} is refused: {found}")


def runner(config: Any, asked: str | None = None) -> str:
    """Which model runner serves a dense Qwen3 with this drafter, or why none does."""
    vllm_config = serving_config(config)
    with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": asked} if asked else {}):
        if not vllm_config.use_v2_model_runner:
            return "v1"
        try:
            vllm_config._validate_v2_model_runner()
        except ValueError as error:
            return str(error)
        return "v2"


def check_runner() -> None:
    """Model runner V2 takes no windows: such a drafter goes to V1, and V2 refuses it."""
    chosen, forced = (runner(native(**windowed(MIXED)), asked) for asked in (None, "1"))
    expect(chosen == "v1", f"a drafter with windows goes to model runner {chosen}")
    expect("VLLM_USE_V2_MODEL_RUNNER=0" in forced, f"asked for V2, a drafter with windows gets: {forced}")


def check_table() -> None:
    """What configurations may say, and what comes of it for the five layers."""
    types = windowed(MIXED)
    non_causal = [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK]
    mixed, all_causal = [SLIDES] * 4 + [LOOKS_BACK], [SLIDES] * 4 + [Seen(None, causal=True)]
    table: list[tuple[str, Any, list[Seen]]] = [
        ("every layer slides", native(**windowed([SLIDING] * 5)), [SLIDES] * 5),
        ("the full layer is not last", native(**windowed(MIXED[::-1])), mixed[::-1]),
        ("all causal", native({"causal": True}, **types), all_causal),
        ("none causal", native({"causal": False}, **types), non_causal),
        ("null is no word", native({"causal": None}, **types), mixed),
        ("all but the first slide", native(**{**windowed(MIXED), "layer_types": None}, max_window_layers=1),
         [LOOKS_BACK] + [SLIDES] * 4),
        ("neither on nor off", native({"swa_window_size": WINDOW}, layer_types=MIXED), mixed),
        ("speculators, layers within", speculators(types), mixed),
        ("speculators, layers beside", speculators(None, **types), mixed),
        ("speculators, causal", speculators(types, sliding_window_non_causal=False), mixed),
        ("speculators, not causal", speculators(types, sliding_window_non_causal=True), non_causal),
        ("speculators, switched off", speculators(types, use_sliding_window=False), [LOOKS_BACK] * 5),
        ("speculators, index without switch", speculators({"sliding_window": 8, "max_window_layers": 0}),
         [LOOKS_BACK] * 5),
        ("speculators, by index", speculators(None, **{**types, "layer_types": None}, max_window_layers=4),
         [LOOKS_BACK] * 4 + [SLIDES]),
        ("speculators, all causal", speculators(types, causal=True), all_causal),
        ("speculators, all by one word", speculators(use_swa=True, swa_window_size=WINDOW),
         [Seen(WINDOW, causal=False)] * 5),
    ]  # fmt: skip
    for what, config, wanted in table:
        check_attends(what, config, wanted)


def check_combinations() -> None:
    """What any config.json says, from its own words: Transformers fills in others and drops the window."""
    from vllm.v1.spec_decode.dflash_layers import resolve_dflash_layers

    some = (None, [FULL] * 5, MIXED, [SLIDING] * 5)
    for types, on, plain, own, use_swa in product(some, (None, True, False), (None, 20), (None, 8), (0, 1)):
        said = {"layer_types": types, "sliding_window": plain, "use_sliding_window": on}
        options = {"use_swa": bool(use_swa)} | ({"swa_window_size": own} if own else {})
        given = {key: value for key, value in said.items() if value is not None}
        named = [kind == SLIDING for kind in types or [FULL] * 5]
        slides = [on is not False and one for one in named] if any(named) else [bool(use_swa)] * 5
        window = own or ((plain or 4096) if on else None)
        wanted: Any = [Seen(window if one else None, causal=one and any(named)) for one in slides]
        try:
            found: Any = [Seen(*layer) for layer in resolve_dflash_layers(native(options, **given))]
        except ValueError:
            found = "refused"
        wanted = "refused" if any(slides) and not window else wanted
        expect(found == wanted, f"{given}, {options}: layers are resolved as {found}, not as {wanted}")


def check_controls() -> None:
    """Drafters without sliding layers, and what is read of the target: the same on both trees."""
    check_attends("no sliding layers", native(), [LOOKS_BACK] * 5)
    check_attends("all causal, no sliding layers", native({"causal": True}), [Seen(None, causal=True)] * 5)
    check_attends("speculators without sliding layers", speculators(), [LOOKS_BACK] * 5)
    check_numbers("no sliding layers", native(), [LOOKS_BACK] * 5)
    check_flash_arguments(native(), [LOOKS_BACK] * 5)
    check_objects("no sliding layers", native(), 1)
    check_assertion(native())
    with mock.patch.dict(SIZES, num_hidden_layers=1):
        single = Drafter(native())
    kv_groups.check_other_plans(single, Drafter(native()))
    expect(runner(native()) == "v2", f"a drafter without windows goes to {runner(native())}")
    for config in (native(), speculators(), native(**windowed(MIXED)), speculators(windowed(MIXED))):
        named = config.dflash_config["target_layer_ids"]
        read = GPUModelRunner._get_eagle3_aux_layers_from_config(SimpleNamespace(
            speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config))
        ))  # fmt: skip
        same = read == AUX_LAYERS and named == [i - 1 for i in AUX_LAYERS]
        expect(same, f"{type(config).__name__}: hidden states {read} are read for layers {named}")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    torch.manual_seed(0)
    check_controls()
    mixed, wanted = native(**windowed(MIXED)), [SLIDES] * 4 + [LOOKS_BACK]
    check_attends("four layers slide", mixed, wanted)
    check_objects("four layers slide", mixed, 2)
    check_objects("windows, but one causality", native({"causal": False}, **windowed(MIXED)), 1)
    check_numbers("four layers slide", mixed, wanted)
    check_flash_arguments(mixed, wanted)
    not_causal = speculators(windowed(MIXED), sliding_window_non_causal=True)
    check_numbers("no layer is causal", not_causal, [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK])
    check_flash_arguments(not_causal, [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK])
    check_assertion(mixed)
    for hybrid in (False, True):
        same = planned(mixed, hybrid=hybrid) == planned(native(), hybrid=hybrid)
        expect(same, f"windows change the KV cache groups; hybrid target: {hybrid}")
    for what, (counts, *wanted) in kv_groups.SHAPES.items():
        for config in (mixed, native()):
            kv_groups.check_one_group(what, Drafter(config), counts, tuple(wanted))
    check_table()
    check_combinations()
    check_selection()
    check_refusals()
    check_runner()
