"""The fleet's architectures, tiny: configurations by the real models' rules, and names of their weights.

Depth, width and vocabulary are small. What decides which code serves a model is as in the real one: kinds of
layers and their order, sizes of heads, windows, sinks, soft caps, expert layers, tied tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pair.models import VOCABULARY

from fleet.quantised import config_of
from fleet.tensors import (
    EMBED,
    EXPERT,
    HEAD,
    MATRIX,
    ONES,
    ROUTER,
    SHARP,
    TIED,
    TIED_NORM,
    ZEROS,
    Checkpoint,
    Tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HIDDEN", "MAX_MODEL_LEN", "SHAPES", "checkpoint", "layers_of"]

MAX_MODEL_LEN = 2048
HIDDEN, MIDDLE, EXPERTS = 512, 512, 8


def _common(**more: Any) -> dict[str, Any]:
    return {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": MIDDLE, "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_MODEL_LEN, "rope_theta": 1_000_000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCABULARY, **more,
    }  # fmt: skip


def _attention(prefix: str, heads: int, kv_heads: int, size: int, *, norm: str = SHARP) -> dict[str, Tensor]:
    """Return the tensors of an attention layer; without norms of queries and keys for norm ``""``."""
    found = {
        f"{prefix}.q_proj.weight": Tensor((heads * size, HIDDEN)),
        f"{prefix}.k_proj.weight": Tensor((kv_heads * size, HIDDEN)),
        f"{prefix}.v_proj.weight": Tensor((kv_heads * size, HIDDEN)),
        f"{prefix}.o_proj.weight": Tensor((HIDDEN, heads * size)),
    }
    if norm:
        found |= {f"{prefix}.{which}_norm.weight": Tensor((size,), norm) for which in "qk"}
    return found


def _mlp(prefix: str, middle: int = MIDDLE, *, down: str = MATRIX) -> dict[str, Tensor]:
    return {
        f"{prefix}.gate_proj.weight": Tensor((middle, HIDDEN)),
        f"{prefix}.up_proj.weight": Tensor((middle, HIDDEN)),
        f"{prefix}.down_proj.weight": Tensor((HIDDEN, middle), down),
    }


def _experts(prefix: str, middle: int) -> dict[str, Tensor]:
    found = {f"{prefix}.gate.weight": Tensor((EXPERTS, HIDDEN), ROUTER)}
    for expert in range(EXPERTS):
        found |= _mlp(f"{prefix}.experts.{expert}", middle, down=EXPERT)
    return found


def _norms(prefix: str, names: tuple[str, ...], fill: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}.weight": Tensor((HIDDEN,), fill) for name in names}


_TWO = ("input_layernorm", "post_attention_layernorm")


def _tables(prefix: str = "model", *, fill: str = ONES, embed: str = "embed_tokens") -> dict[str, Tensor]:
    return {
        f"{prefix}.{embed}.weight": Tensor((VOCABULARY, HIDDEN), EMBED),
        f"{prefix}.norm.weight": Tensor((HIDDEN,), fill),
        "lm_head.weight": Tensor((VOCABULARY, HIDDEN), HEAD),
    }


def dense() -> Checkpoint:
    """Return a dense model with heads of 128, as Qwen3 and Llama have them."""
    layers, heads, kv_heads, size = 6, 8, 4, 128
    config = _common(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", num_hidden_layers=layers, head_dim=size,
        num_attention_heads=heads, num_key_value_heads=kv_heads,
    )  # fmt: skip
    tensors = _tables()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _attention(f"{at}.self_attn", heads, kv_heads, size) | _mlp(f"{at}.mlp")
        tensors |= _norms(at, _TWO, ONES)
    return Checkpoint(config, tensors)


def moe() -> Checkpoint:
    """Return a mixture of experts with heads of 128, as Qwen3-30B-A3B."""
    base = dense()
    middle = 256
    config = base.config | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": middle, "decoder_sparse_step": 1,
        "norm_topk_prob": True, "mlp_only_layers": [],
    }  # fmt: skip
    tensors = {name: one for name, one in base.tensors.items() if ".mlp." not in name}
    for layer in range(config["num_hidden_layers"]):
        tensors |= _experts(f"model.layers.{layer}.mlp", middle)
    return Checkpoint(config, tensors)


def _gated_attention(at: str, heads: int, kv_heads: int, size: int) -> dict[str, Tensor]:
    """Return the tensors of full attention with an output gate, which doubles the rows of the queries."""
    found = _attention(f"{at}.self_attn", heads, kv_heads, size, norm="0.5")
    found[f"{at}.self_attn.q_proj.weight"] = Tensor((2 * heads * size, HIDDEN))
    return found


def _sparse(at: str, middle: int) -> dict[str, Tensor]:
    """Return the tensors of experts with a shared one behind a gate."""
    found = _experts(f"{at}.mlp", middle) | _mlp(f"{at}.mlp.shared_expert", middle)
    return found | {f"{at}.mlp.shared_expert_gate.weight": Tensor((1, HIDDEN))}


def hybrid() -> Checkpoint:
    """Return three gated delta nets to one full attention with heads of 256, experts and an MTP head."""
    layers, heads, kv_heads, size, middle = 8, 4, 2, 256, 256
    keys, key_heads, value_heads = 128, 2, 4
    config = _common(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", num_hidden_layers=layers,
        head_dim=size, num_attention_heads=heads, num_key_value_heads=kv_heads, partial_rotary_factor=0.25,
        full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=keys,
        linear_value_head_dim=keys, linear_num_key_heads=key_heads, linear_num_value_heads=value_heads,
        decoder_sparse_step=1, moe_intermediate_size=middle, shared_expert_intermediate_size=middle,
        num_experts=EXPERTS, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[],
        num_nextn_predict_layers=1,
    )  # fmt: skip
    inner, state = 2 * key_heads * keys, value_heads * keys
    tensors = _tables(fill=ZEROS)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _norms(at, _TWO, ZEROS) | _sparse(at, middle)
        if layer % 4 == 3:
            tensors |= _gated_attention(at, heads, kv_heads, size)
            continue
        tensors |= {
            f"{at}.linear_attn.in_proj_qkvz.weight": Tensor((inner + 2 * state, HIDDEN)),
            f"{at}.linear_attn.in_proj_ba.weight": Tensor((2 * value_heads, HIDDEN)),
            f"{at}.linear_attn.conv1d.weight": Tensor((inner + state, 1, 4)),
            f"{at}.linear_attn.A_log": Tensor((value_heads,), "-2.0"),
            f"{at}.linear_attn.dt_bias": Tensor((value_heads,), ZEROS),
            f"{at}.linear_attn.norm.weight": Tensor((keys,), ONES),
            f"{at}.linear_attn.out_proj.weight": Tensor((HIDDEN, state)),
        }
    ahead = "mtp.layers.0"
    tensors |= _gated_attention(ahead, heads, kv_heads, size) | _sparse(ahead, middle)
    tensors |= _norms(ahead, _TWO, ZEROS)
    tensors |= {f"mtp.{name}.weight": Tensor((HIDDEN,), ZEROS)
                for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")}  # fmt: skip
    tensors["mtp.fc.weight"] = Tensor((HIDDEN, 2 * HIDDEN))
    return Checkpoint(config, tensors)


def gemma4() -> Checkpoint:
    """Return windows with heads of 256 beside full layers of 512 whose keys are values; tied, capped."""
    layers, heads, kv_heads, size, wide, wide_heads, window = 6, 4, 2, 256, 512, 1, 128
    kinds = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(layers)]
    config = _common(
        architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", num_hidden_layers=layers,
        head_dim=size, global_head_dim=wide, num_attention_heads=heads, num_key_value_heads=kv_heads,
        num_global_key_value_heads=wide_heads, attention_k_eq_v=True, sliding_window=window,
        layer_types=kinds,
        hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=30.0, tie_word_embeddings=True,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=0,
        enable_moe_block=False,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0
            },
        },
    )  # fmt: skip
    del config["rope_theta"]
    tensors = {
        "model.embed_tokens.weight": Tensor((VOCABULARY, HIDDEN), TIED),
        "model.norm.weight": Tensor((HIDDEN,), str(TIED_NORM)),
    }
    norms = (*_TWO, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        full = kind == "full_attention"
        # Scores are not divided by the root of the heads' size: the norms of queries and keys do it.
        norm = "0.25" if full else "0.3"
        some = _attention(
            f"{at}.self_attn", heads, wide_heads if full else kv_heads, wide if full else size, norm=norm
        )
        if full:
            del some[f"{at}.self_attn.v_proj.weight"]
        tensors |= some | _mlp(f"{at}.mlp") | _norms(at, norms, ONES)
        tensors[f"{at}.layer_scalar"] = Tensor((1,), ONES)
    return Checkpoint(config, tensors)


def gpt_oss() -> Checkpoint:
    """Return sinks, heads of 64, windows in every other layer, and experts with biases."""
    layers, heads, kv_heads, size, window, middle = 6, 16, 2, 64, 128, 256
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    config = _common(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", num_hidden_layers=layers, head_dim=size,
        num_attention_heads=heads, num_key_value_heads=kv_heads, sliding_window=window, layer_types=kinds,
        num_local_experts=EXPERTS, num_experts_per_tok=2, intermediate_size=middle, attention_bias=True,
        swiglu_limit=7.0, router_aux_loss_coef=0.9, rms_norm_eps=1e-5, rope_theta=150_000,
        rope_scaling={
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
        },
    )  # fmt: skip
    tensors = _tables()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _norms(at, _TWO, ONES) | _attention(f"{at}.self_attn", heads, kv_heads, size, norm="")
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{at}.self_attn.{name}_proj.bias"] = Tensor((rows * size,), ZEROS)
        tensors |= {
            f"{at}.self_attn.o_proj.bias": Tensor((HIDDEN,), ZEROS),
            f"{at}.self_attn.sinks": Tensor((heads,), ONES),
            f"{at}.mlp.router.weight": Tensor((EXPERTS, HIDDEN), ROUTER),
            f"{at}.mlp.router.bias": Tensor((EXPERTS,), ZEROS),
            f"{at}.mlp.experts.routed_experts.gate_up_proj": Tensor((EXPERTS, HIDDEN, 2 * middle)),
            f"{at}.mlp.experts.routed_experts.gate_up_proj_bias": Tensor((EXPERTS, 2 * middle), "0.1"),
            f"{at}.mlp.experts.routed_experts.down_proj": Tensor((EXPERTS, middle, HIDDEN), EXPERT),
            f"{at}.mlp.experts.routed_experts.down_proj_bias": Tensor((EXPERTS, HIDDEN), "0.1"),
        }
    return Checkpoint(config, tensors)


def mla() -> Checkpoint:
    """Return latent attention: a latent of 512, rotary parts of 64."""
    layers, heads, nope, rope, latent, middle = 4, 16, 128, 64, 512, 256
    config = _common(
        architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=None, kv_lora_rank=latent,
        qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=nope, n_routed_experts=EXPERTS,
        n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=middle, first_k_dense_replace=1,
        moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", topk_method="greedy", n_group=1,
        topk_group=1, routed_scaling_factor=1.0,
    )  # fmt: skip
    tensors = _tables()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= _norms(at, _TWO, ONES) | {
            f"{at}.self_attn.q_proj.weight": Tensor((heads * (nope + rope), HIDDEN)),
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": Tensor((latent + rope, HIDDEN)),
            f"{at}.self_attn.kv_a_layernorm.weight": Tensor((latent,), ONES),
            f"{at}.self_attn.kv_b_proj.weight": Tensor((heads * 2 * nope, latent)),
            f"{at}.self_attn.o_proj.weight": Tensor((HIDDEN, heads * nope)),
        }
        if layer:
            tensors |= _experts(f"{at}.mlp", middle) | _mlp(f"{at}.mlp.shared_experts", middle)
        else:
            tensors |= _mlp(f"{at}.mlp")
    return Checkpoint(config, tensors)


def _in_nvfp4(form: str) -> Checkpoint:
    """Return the dense model with linear layers in NVFP4; in form ``plain``, 16 bits of the same values."""
    base = dense()
    quantisation = {} if form == "plain" else {"quantization_config": config_of(form)}
    return Checkpoint(base.config | quantisation, base.tensors, form)


def _image() -> Checkpoint:
    from fleet.images import image  # it is built of this module's parts

    return image()


SHAPES: dict[str, Callable[[], Checkpoint]] = {
    "dense": dense,
    "moe": moe,
    "hybrid": hybrid,
    "gemma4": gemma4,
    "gptoss": gpt_oss,
    "mla": mla,
    "rounded": lambda: _in_nvfp4("plain"),
    "modelopt": lambda: _in_nvfp4("modelopt"),
    "compressed": lambda: _in_nvfp4("compressed-tensors"),
    "image": _image,
}


def checkpoint(shape: str) -> Checkpoint:
    """Return the checkpoint of a shape by its name."""
    return SHAPES[shape]()


def layers_of(shape: str) -> int:
    """Return how many layers a shape's language model has."""
    config = checkpoint(shape).config
    return int(config.get("text_config", config)["num_hidden_layers"])
