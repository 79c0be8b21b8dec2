"""The fleet's architectures and their drafters, tiny: configurations by the real models' rules, and weights.

Depth, width and vocabulary are small. What decides which code serves a model is as in the real one: kinds of
layers and their order, sizes of heads, windows, sinks, soft caps, expert layers, tied tables.

Weights are tables: a line has a tensor's name, its dimensions and its fill, which is `MATRIX` where none
stands; ``.weight`` is added to a name that does not end in ``=``. ``L.`` is each layer's prefix, ``E.`` that
of each expert; a line behind ``KIND:`` is for layers of that kind alone. Dimensions are numbers, or names
whose sizes the shape gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pair.load import ACCEPTED, DRAFTED
from pair.models import MAX_MODEL_LEN, VOCABULARY

from fleet.tensors import HEAD, MATRIX, TIED_NORM, Checkpoint, Tensor, kept_checkpoint

HIDDEN, EXPERTS, WINDOW = 512, 8, 64
DRAFTERS = ("none", "dflash", "windows", "mtp", "eagle3", "ngram")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def of(kind: str, table: str) -> str:
    """Return a table for layers of that kind alone."""
    return "; ".join(f"{kind}:{line.strip()}" for line in table.split(";"))


TABLES = "model.embed_tokens V D embed; model.norm D 1.0; lm_head V D head"
NORMS = "L.input_layernorm D 1.0; L.post_attention_layernorm D 1.0"
MORE_NORMS = f"{NORMS}; L.pre_feedforward_layernorm D 1.0; L.post_feedforward_layernorm D 1.0"
QKVO = "L.self_attn.q_proj Q D; L.self_attn.k_proj K D; L.self_attn.v_proj K D; L.self_attn.o_proj D Q"
ATTENTION = f"{QKVO}; L.self_attn.q_norm S 1.5; L.self_attn.k_norm S 1.5"
MLP = "L.mlp.gate_proj D D; L.mlp.up_proj D D; L.mlp.down_proj D D"
EXPERT = """L.mlp.gate 8 D router; L.mlp.experts.E.gate_proj M D; L.mlp.experts.E.up_proj M D;
    L.mlp.experts.E.down_proj D M expert"""
SHARED = """L.mlp.shared_expert.gate_proj M D; L.mlp.shared_expert.up_proj M D;
    L.mlp.shared_expert.down_proj D M; L.mlp.shared_expert_gate 1 D"""
GATED = of(
    "full", f"{QKVO}; L.self_attn.q_norm S 0.5; L.self_attn.k_norm S 0.5".replace("q_proj Q", "q_proj GQ")
)
DELTA_NET = of(
    "linear",
    """L.linear_attn.in_proj_qkvz 1536 D; L.linear_attn.in_proj_ba 8 D; L.linear_attn.conv1d 1024 1 4;
    L.linear_attn.A_log= 4 -2.0; L.linear_attn.dt_bias= 4 0.0; L.linear_attn.norm 128 1.0;
    L.linear_attn.out_proj D D""",
)
ZERO_NORMS = "L.input_layernorm D 0.0; L.post_attention_layernorm D 0.0"
MTP_HEAD = "mtp.norm D 0.0; mtp.pre_fc_norm_hidden D 0.0; mtp.pre_fc_norm_embedding D 0.0; mtp.fc D 2D"
WIDE = """L.self_attn.q_proj WQ D; L.self_attn.k_proj W D; L.self_attn.o_proj D WQ;
    L.self_attn.q_norm W 0.25; L.self_attn.k_norm W 0.25"""
NARROW = of("sliding", f"{QKVO}; L.self_attn.q_norm S 0.3; L.self_attn.k_norm S 0.3")
GEMMA = f"{of('full', WIDE)}; {NARROW}; L.layer_scalar= 1 1.0; {MLP}; {MORE_NORMS}"
ROUTED = "L.mlp.experts.routed_experts"  # the name that both releases load
GPT_OSS = f"""{QKVO}; L.self_attn.q_proj.bias= Q 0.0; L.self_attn.k_proj.bias= K 0.0;
    L.self_attn.v_proj.bias= K 0.0; L.self_attn.o_proj.bias= D 0.0; L.self_attn.sinks= 16 1.0;
    L.mlp.router 8 D router; L.mlp.router.bias= 8 0.0; {ROUTED}.gate_up_proj= 8 D 2M;
    {ROUTED}.gate_up_proj_bias= 8 2M 0.1; {ROUTED}.down_proj= 8 M D expert;
    {ROUTED}.down_proj_bias= 8 D 0.1; {NORMS}"""
SPARSE = f"""L.mlp.shared_experts.gate_proj M D; L.mlp.shared_experts.up_proj M D;
    L.mlp.shared_experts.down_proj D M; {EXPERT}"""
LATENT = f"""L.self_attn.q_proj 3072 D; L.self_attn.kv_a_proj_with_mqa 576 D;
    L.self_attn.kv_a_layernorm D 1.0; L.self_attn.kv_b_proj 4096 D; L.self_attn.o_proj D 2048; {NORMS};
    {of("dense", MLP)}; {of("sparse", SPARSE)}"""


def rows(table: str, prefix: str, kinds: Sequence[str], **sizes: int) -> dict[str, Tensor]:
    """Return the tensors of a table."""
    sizes = {"V": VOCABULARY, "D": HIDDEN, "2D": 2 * HIDDEN, **sizes}
    found = {}
    for words in (line.split() for line in table.split(";")):
        kind, _, name = words[0].rpartition(":")
        name = name[:-1] if name.endswith("=") else f"{name}.weight"
        numbers = [word for word in words[1:] if word in sizes or word.isdigit()]
        fill = words[-1] if len(numbers) < len(words) - 1 else MATRIX
        tensor = Tensor(tuple(sizes.get(one) or int(one) for one in numbers), fill)
        layers = [at for at, one in enumerate(kinds) if kind in ("", one.partition("_")[0])]
        for layer in layers if name.startswith("L.") else [0]:
            whole = name.replace("L.", f"{prefix}{layer}." if prefix.endswith(".") else f"{prefix}.", 1)
            for expert in range(EXPERTS if ".E." in name else 1):
                found[whole.replace(".E.", f".{expert}.")] = tensor
    return found


def config(architecture: str, model_type: str, layers: int, heads: tuple[int, ...], **more: Any) -> Any:
    """Return a configuration; *heads* are those of queries, of keys and values, and their size."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    found = {
        "architectures": [architecture], "model_type": model_type, "num_hidden_layers": layers,
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_MODEL_LEN, "rope_theta": 1_000_000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCABULARY,
        **dict(zip(names, heads, strict=False)), **more,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value != ...}


def dense() -> Checkpoint:
    """Return a dense model with heads of 128, as Qwen3 and Llama have them."""
    found = rows(f"{TABLES}; {ATTENTION}; {MLP}; {NORMS}", "model.layers.", [""] * 6, Q=1024, K=512, S=128)
    return Checkpoint(config("Qwen3ForCausalLM", "qwen3", 6, (8, 4, 128)), found)


def moe() -> Checkpoint:
    """Return a mixture of experts with heads of 128, as Qwen3-30B-A3B."""
    table = f"{TABLES}; {ATTENTION}; {EXPERT}; {NORMS}"
    told = config(
        "Qwen3MoeForCausalLM", "qwen3_moe", 6, (8, 4, 128), num_experts=EXPERTS, num_experts_per_tok=2,
        moe_intermediate_size=256, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[],
    )  # fmt: skip
    return Checkpoint(told, rows(table, "model.layers.", [""] * 6, Q=1024, K=512, S=128, M=256))


def hybrid() -> Checkpoint:
    """Return three gated delta nets to one full attention with heads of 256, experts and an MTP head."""
    told = config(
        "Qwen3NextForCausalLM", "qwen3_next", 8, (4, 2, 256), partial_rotary_factor=0.25,
        full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_num_key_heads=2, linear_num_value_heads=4, decoder_sparse_step=1,
        moe_intermediate_size=256, shared_expert_intermediate_size=256, num_experts=EXPERTS,
        num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[], num_nextn_predict_layers=1,
    )  # fmt: skip
    every, sizes = f"{GATED}; {EXPERT}; {SHARED}; {ZERO_NORMS}", {"GQ": 2048, "Q": 1024, "K": 512, "S": 256}
    kinds = ["full" if layer % 4 == 3 else "linear" for layer in range(8)]
    tables = TABLES.replace("norm D 1.0", "norm D 0.0")
    found = rows(f"{tables}; {every}; {DELTA_NET}", "model.layers.", kinds, M=256, **sizes)
    return Checkpoint(told, found | rows(f"{every}; {MTP_HEAD}", "mtp.layers.", ["full"], M=256, **sizes))


def gemma4() -> Checkpoint:
    """Return windows with heads of 256 beside full layers of 512 whose keys are values; tied, capped."""
    kinds = [_FULL if layer % 3 == 2 else _SLIDING for layer in range(6)]
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}
    told = config(
        "Gemma4ForCausalLM", "gemma4_text", 6, (4, 2, 256), global_head_dim=512, rope_theta=...,
        num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=128, layer_types=kinds,
        hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=30.0, tie_word_embeddings=True,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=0,
        enable_moe_block=False,
        rope_parameters={_SLIDING: {"rope_type": "default", "rope_theta": 10_000.0}, _FULL: rope},
    )  # fmt: skip
    # Scores are not divided by the root of the heads' size: the norms of queries and keys do it.
    table = f"model.embed_tokens V D tied; model.norm D {TIED_NORM}; {GEMMA}"
    return Checkpoint(told, rows(table, "model.layers.", kinds, Q=1024, K=512, S=256, WQ=2048, W=512))


def gpt_oss() -> Checkpoint:
    """Return sinks, heads of 64, windows in every other layer, and experts with biases."""
    kinds = [_FULL if layer % 2 else _SLIDING for layer in range(6)]
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    told = config(
        "GptOssForCausalLM", "gpt_oss", 6, (16, 2, 64), sliding_window=128, layer_types=kinds,
        num_local_experts=EXPERTS, num_experts_per_tok=2, intermediate_size=256, attention_bias=True,
        swiglu_limit=7.0, router_aux_loss_coef=0.9, rms_norm_eps=1e-5, rope_theta=150_000,
        rope_scaling=scaling | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    )  # fmt: skip
    sizes = {"Q": 1024, "K": 128, "M": 256, "2M": 512}
    return Checkpoint(told, rows(f"{TABLES}; {GPT_OSS}", "model.layers.", kinds, **sizes))


def mla() -> Checkpoint:
    """Return latent attention: a latent of 512, rotary parts of 64."""
    told = config(
        "DeepseekV2ForCausalLM", "deepseek_v2", 4, (16, 16), q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=EXPERTS,
        n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=256, first_k_dense_replace=1,
        moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", topk_method="greedy", n_group=1,
        topk_group=1, routed_scaling_factor=1.0,
    )  # fmt: skip
    kinds = ["dense", *["sparse"] * 3]
    return Checkpoint(told, rows(f"{TABLES}; {LATENT}", "model.layers.", kinds, M=256))


SHAPES: dict[str, Callable[[], Checkpoint]] = {
    "dense": dense,
    "moe": moe,
    "hybrid": hybrid,
    "gemma4": gemma4,
    "gptoss": gpt_oss,
    "mla": mla,
}


def checkpoint(shape: str) -> Checkpoint:
    """Return the checkpoint of a shape by its name."""
    return SHAPES[shape]()


def layers_of(shape: str) -> int:
    """Return how many layers a shape has."""
    return int(checkpoint(shape).config["num_hidden_layers"])


# Drafters ------------------------------------------------------------------------------------------------


def dflash(shape: str, *, windows: bool) -> Checkpoint:
    """Return a DFlash drafter: two layers, or four with windows and one without."""
    count, last = (5 if windows else 2), layers_of(shape) - 1
    told = config("DFlashDraftModel", "qwen3", count, (8, 4, 128), num_target_layers=last + 1)
    told["dflash_config"] = {
        "mask_token_id": VOCABULARY - 1, "target_layer_ids": [0, last // 2, last - 1],
    }  # fmt: skip
    if windows:
        kinds = [_SLIDING] * (count - 1) + [_FULL]
        told |= {"layer_types": kinds, "sliding_window": WINDOW, "use_sliding_window": True}
    table = f"fc D 1536; hidden_norm D 1.0; norm D 1.0; {ATTENTION}; {MLP}; {NORMS}"
    return Checkpoint(told, rows(table, "layers.", [""] * count, Q=1024, K=512, S=128))


def eagle3(shape: str) -> Checkpoint:
    """Return an EAGLE3 head of one layer with an output head of its own.

    Its auxiliary layers are named at the top of the configuration: model runner V2 reads them nowhere else,
    and takes the model's default ones, which in few layers are two and not three.
    """
    last = layers_of(shape) - 1
    told = config(
        "LlamaForCausalLMEagle3", "llama", 1, (8, 4, 128), draft_vocab_size=VOCABULARY,
        eagle_aux_hidden_state_layer_ids=[1, last // 2 + 1, last],
    )  # fmt: skip
    wide = QKVO.replace("q_proj Q D", "q_proj Q 2D").replace("_proj K D", "_proj K 2D")
    table = f"fc D 1536; norm D 1.0; lm_head V D {HEAD}; L.hidden_norm D 1.0; {wide}; {MLP}; {NORMS}"
    return Checkpoint(told, rows(table, "midlayer", [""], Q=1024, K=512))


def gemma_assistant() -> Checkpoint:
    """Return Gemma 4's paired drafter, whose layers read the target's KV cache."""
    kinds = [_SLIDING, _FULL]
    text = gemma4().config | {"num_hidden_layers": 2, "layer_types": kinds, "num_kv_shared_layers": 2}
    text = {**text, "vocab_size_per_layer_input": 0}
    del text["architectures"]
    told = {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
        "text_config": text, "backbone_hidden_size": HIDDEN, "use_ordered_embeddings": False,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    queries = "L.self_attn.q_proj Q D; L.self_attn.o_proj D Q; L.self_attn.q_norm S 0.3"
    table = f"""model.embed_tokens V D tied; model.norm D {TIED_NORM}; pre_projection D 2D;
        post_projection D D; L.layer_scalar= 1 1.0; {MLP}; {MORE_NORMS};
        {of("sliding", queries)}; {of("full", queries.replace("Q", "WQ").replace("S", "D"))}"""
    return Checkpoint(told, rows(table, "model.layers.", kinds, Q=1024, WQ=2048, S=256))


def drafter(shape: str, kind: str) -> Checkpoint | None:
    """Return the checkpoint of a drafter of that kind for *shape*; None where it has none of its own."""
    if kind in ("dflash", "windows"):
        return dflash(shape, windows=kind == "windows")
    if kind == "eagle3":
        return eagle3(shape)
    return gemma_assistant() if (shape, kind) == ("gemma4", "mtp") else None


def speculative(
    shape: str, kind: str, folder: Path, *, synthetic: bool, backend: str | None
) -> dict[str, Any] | None:
    """Write the drafter's checkpoint under *folder*; return vLLM's speculative configuration."""
    if kind == "none":
        return None
    found: dict[str, Any] = {"num_speculative_tokens": DRAFTED}
    found["method"] = "dflash" if kind == "windows" else kind
    own = drafter(shape, kind)
    if own is not None:
        found["model"] = str(kept_checkpoint(folder / f"{shape}-{kind}", own))
    if kind == "ngram":
        found |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    elif backend:
        found["attention_backend"] = backend
    if synthetic:
        found["rejection_sample_method"] = "synthetic"
        found["synthetic_acceptance_length"] = float(1 + ACCEPTED)
    return found
