"""Does a DFlash drafter embed tokens and cap logits as the Gemma target does whose weights it is given?

Target and drafter are real models of tiny size on the CPU, built under the default dtype as the loader
builds them and joined by upstream's own code, once by that of each model runner. Their decoder layers have
stand-ins, which remember what they get: only what comes before the first layer and after the last is in
question. One rank is assumed in place of process groups.

Healthy: bit for bit, the drafter's first layer is given the embeddings that the target's is given, and the
same hidden states become the same logits. Values in the drafter's own configuration win.
Controls, true of every tree: with a Qwen3 target, embeddings are rows of the table and logits are products
with the head, whatever the drafter's configuration says; and a drafter's parameters are the same for all
targets.
"""

# ruff: noqa: SLF001 - sharing is done by private methods of the proposer

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from torch import nn
from torch.nn import functional
from transformers import Gemma3TextConfig, Qwen3Config
from transformers.models.gemma4.configuration_gemma4 import Gemma4Config, Gemma4TextConfig
from transformers.models.gemma4_unified.configuration_gemma4_unified import Gemma4UnifiedTextConfig
from vllm.config import CompilationConfig, CompilationMode
from vllm.config import vllm as current_config
from vllm.distributed import parallel_state
from vllm.model_executor.models import gemma3, gemma4, qwen3, qwen3_dflash
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu.spec_decode.dflash import utils as second_runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig
    from vllm.config import VllmConfig

VOCABULARY = 128
HIDDEN = 48  # its root, 6.928…, has to be rounded in bfloat16, and in float32
CAP = 30.0
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "pad_token_id": 0,
}
ONE_LAYER = {"layer_types": ["full_attention"], "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
TOKENS = torch.tensor([4, 4, 4, 17, 0, 101])


class Layer(nn.Module):
    """Stands in for a decoder layer of any of the models."""

    seen: torch.Tensor

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        super().__init__()

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Remember the hidden states and pass them on."""
        del positions, residual
        self.seen = hidden_states
        return hidden_states, torch.zeros_like(hidden_states)


class Target(NamedTuple):
    """A target: its class, the name of its layers' class in its module, and its configuration."""

    what: str
    module: Any
    name: str
    config: PretrainedConfig

    @property
    def text(self) -> PretrainedConfig:
        """The configuration of the text model."""
        return self.config.get_text_config()

    @property
    def layers(self) -> str:
        """The name of the class of its decoder layers."""
        return f"{self.name}DecoderLayer"

    def build(self, config: VllmConfig) -> nn.Module:
        """Build the model as the loader does."""
        model: nn.Module = getattr(self.module, f"{self.name}ForCausalLM")(vllm_config=config)
        return model


def gemma4_text(**more: object) -> Gemma4TextConfig:
    """A text configuration of Gemma 4 without its per-layer embeddings."""
    return Gemma4TextConfig(**SHAPE, **ONE_LAYER, **more)


GEMMA4 = Target("Gemma 4", gemma4, "Gemma4", gemma4_text(final_logit_softcapping=CAP))
GEMMAS = (
    GEMMA4,
    Target(
        "multimodal Gemma 4",
        gemma4,
        "Gemma4",
        Gemma4Config(text_config=gemma4_text(final_logit_softcapping=CAP).to_dict()),
    ),
    Target(
        "unified Gemma 4",
        gemma4,
        "Gemma4",
        Gemma4UnifiedTextConfig(**SHAPE, **ONE_LAYER, final_logit_softcapping=CAP),
    ),
    Target("Gemma 4 without a cap", gemma4, "Gemma4", gemma4_text()),
    Target("Gemma 3", gemma3, "Gemma3", Gemma3TextConfig(**SHAPE)),
)
QWEN3 = Target("Qwen3", qwen3, "Qwen3", Qwen3Config(**SHAPE, tie_word_embeddings=True))


@contextmanager
def one_rank() -> Iterator[None]:
    """Answer for the process groups that are not there."""
    group = SimpleNamespace(
        world_size=1,
        rank_in_group=0,
        is_first_rank=True,
        is_last_rank=True,
        all_reduce=lambda tensor: tensor,
        gather=lambda tensor, *_: tensor,
        all_gather=lambda tensor, *_: tensor,
    )
    with ExitStack() as stack:
        for name in ("_TP", "_PP"):
            stack.enter_context(mock.patch.object(parallel_state, name, group))
        yield


def serving_config(target: Target, drafter: dict[str, Any], dtype: torch.dtype) -> VllmConfig:
    """The parts of a vLLM configuration that the models read, the drafter's wrapped as upstream wraps it."""
    own = Qwen3Config(
        **{
            **SHAPE,
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0]},
            **drafter,
        }
    )
    config: Any = SimpleNamespace(
        compilation_config=CompilationConfig(mode=CompilationMode.NONE, custom_ops=["none"]),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        parallel_config=SimpleNamespace(),
        attention_config=None,
        load_config=None,
        quant_config=None,
        lora_config=None,
        model_config=SimpleNamespace(
            hf_config=target.config,
            hf_text_config=target.text,
            dtype=dtype,
            get_num_layers=lambda _: 1,
            get_vocab_size=lambda: VOCABULARY,
        ),
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(
                hf_config=EAGLEConfig(own, method="dflash", model_type="eagle"), quantization=None
            )
        ),
    )
    return cast("VllmConfig", config)


class Pair(NamedTuple):
    """A target and a drafter that was given the target's weights."""

    target: Any
    drafter: Any


def fill(model: nn.Module) -> None:
    """Give *model* weights that depend on nothing."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def share_first(target: nn.Module, drafter: nn.Module, config: VllmConfig) -> None:
    """Give the drafter the target's embeddings and head, as V1's proposer does."""
    proposer: Any = SimpleNamespace(model=drafter, vllm_config=config, use_local_argmax_reduction=False)
    SpecDecodeBaseProposer._maybe_share_embeddings(proposer, target)
    SpecDecodeBaseProposer._maybe_share_lm_head(proposer, target)


def share_second(target: nn.Module, drafter: nn.Module, config: VllmConfig) -> None:
    """Do the same as V2's speculator does."""
    replaced = {"replace": lambda config, **_: config, "get_model": lambda **_: drafter}
    with mock.patch.multiple(second_runner, **replaced):
        second_runner.load_dflash_model(target, config)


def build(
    target: Target,
    *,
    drafter: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    share: Any = share_first,
) -> Pair:
    """Build a target and a drafter with *drafter* in its configuration, and join them."""
    config = serving_config(target, drafter or {}, dtype)
    with ExitStack() as stack:
        stack.enter_context(set_default_torch_dtype(dtype))
        stack.enter_context(current_config.set_current_vllm_config(config))
        stack.enter_context(mock.patch.object(target.module, target.layers, Layer))
        stack.enter_context(mock.patch.object(qwen3_dflash, "DFlashQwen3DecoderLayer", Layer))
        pair = Pair(target.build(config), qwen3_dflash.DFlashQwen3ForCausalLM(vllm_config=config))
        for model in pair:
            fill(model)
        share(*pair, config)
    return pair


def embedded(drafter: Any) -> torch.Tensor:
    """What the drafter's first layer is given for the tokens."""
    drafter(TOKENS, torch.arange(len(TOKENS)))
    seen: torch.Tensor = drafter.model.layers[0].seen
    return seen


def hidden_states(dtype: torch.dtype) -> torch.Tensor:
    """Hidden states whose logits exceed the cap."""
    return 9 * torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


def products(pair: Pair, hidden: torch.Tensor) -> torch.Tensor:
    """The logits of *hidden* before anything is done to them."""
    weight = pair.target.lm_head.weight[:VOCABULARY]
    raw = functional.linear(hidden, weight)
    if raw.abs().max() <= 2 * CAP:
        raise ValueError("no logit is large enough to show a cap")
    return raw


def capped(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """Cap *raw* as `LogitsProcessor` does."""
    return torch.tanh(raw / cap) * cap


def check_others(share: Any, dtype: torch.dtype, drafter: dict[str, Any]) -> None:
    """With another target than Gemma nothing is done to embeddings or logits."""
    pair = build(QWEN3, drafter=drafter, dtype=dtype, share=share)
    rows = pair.target.model.embed_tokens.weight[TOKENS]
    expect(
        torch.equal(embedded(pair.drafter), rows),
        "a drafter of a Qwen3 target does not embed the table's rows",
    )
    hidden = hidden_states(dtype)
    same = torch.equal(pair.drafter.compute_logits(hidden), products(pair, hidden))
    expect(same, "a drafter of a Qwen3 target changes its logits")


def check_parameters() -> None:
    """What a checkpoint of a drafter holds does not depend on the target."""
    kept = {target.what: set(build(target).drafter.state_dict()) for target in (QWEN3, GEMMA4)}
    expect(kept["Qwen3"] == kept["Gemma 4"], f"the drafter's state depends on the target: {kept}")


def check_gemma(target: Target, share: Any, dtype: torch.dtype) -> None:
    """The drafter does with the target's weights what the target does."""
    pair = build(target, dtype=dtype, share=share)
    what = f"{target.what}, {dtype}, {share.__name__}"
    if pair.drafter.model.embed_tokens is not pair.target.model.embed_tokens:
        raise ValueError(f"{what}: the drafter was not given the target's embeddings")
    if pair.drafter.lm_head is not pair.target.lm_head:
        raise ValueError(f"{what}: the drafter was not given the target's head")
    given, wanted = embedded(pair.drafter), pair.target.embed_input_ids(TOKENS)
    ratio = float(wanted.norm() / given.norm())
    expect(
        given.dtype == wanted.dtype and torch.equal(given, wanted),
        f"{what}: the drafter's embeddings are not the target's, which are {ratio:.4g} times as large",
    )
    hidden = hidden_states(dtype)
    products(pair, hidden)
    found, expected = pair.drafter.compute_logits(hidden), pair.target.compute_logits(hidden)
    expect(
        torch.equal(found, expected),
        f"{what}: the drafter's logits reach {float(found.abs().max()):.4g}, "
        f"the target's {float(expected.abs().max()):.4g}",
    )


def check_own_scale(drafter: dict[str, Any], factor: float) -> None:
    """A factor of the drafter's own wins over the target's."""
    pair = build(GEMMA4, drafter=drafter)
    rows = pair.target.model.embed_tokens.weight[TOKENS]
    same = torch.equal(embedded(pair.drafter), rows * torch.tensor(factor).bfloat16())
    expect(same, f"embeddings are not multiplied by {factor}, as the drafter says: {drafter}")


def check_own_cap(drafter: dict[str, Any], cap: float | None) -> None:
    """A cap of the drafter's own wins over the target's."""
    pair = build(GEMMA4, drafter=drafter, dtype=torch.float32)
    hidden = hidden_states(torch.float32)
    raw = products(pair, hidden)
    expected = raw if cap is None else capped(raw, cap)
    same = torch.equal(pair.drafter.compute_logits(hidden), expected)
    expect(same, f"logits are not capped at {cap}, as the drafter says: {drafter}")


def check_smaller_vocabulary() -> None:
    """Tokens that a drafter does not know stay impossible; the others are capped."""
    pair = build(GEMMA4, drafter={"draft_vocab_size": 64}, dtype=torch.float32, share=share_second)
    pair.drafter.draft_id_to_target_id.data = torch.arange(64)  # knows the even tokens
    found = pair.drafter.compute_logits(hidden_states(torch.float32))
    expect(
        bool((found[:, 1::2] == -torch.inf).all()),
        "a token outside the drafter's vocabulary has become possible",
    )
    expect(bool((found[:, ::2].abs() <= CAP).all()), "a smaller vocabulary escapes the cap")


def check_no_constants() -> None:
    """The factor is part of what moves with the model, and no constant of a compiled graph."""
    pair = build(GEMMA4)
    before = embedded(pair.drafter)
    for name, buffer in pair.drafter.model.named_buffers():
        if "embed" in name:
            buffer.mul_(2)
    expect(torch.equal(embedded(pair.drafter), before * 2), "the factor is not a buffer of the drafter's")


def probe() -> None:
    """Controls first; then the target's ways, and what the drafter says against them."""
    own = {"input_embedding_scale": 2.0, "final_logit_softcapping": 5.0}
    with torch.inference_mode(), one_rank():
        check_parameters()
        for share in (share_first, share_second):
            for drafter in ({}, own, {"dflash_config": {"mask_token_id": 4, "target_layer_ids": [0], **own}}):
                check_others(share, torch.bfloat16, drafter)
            check_others(share, torch.float32, {})
        for target in GEMMAS:
            for share in (share_first, share_second):
                for dtype in (torch.bfloat16, torch.float32):
                    check_gemma(target, share, dtype)
        for drafter in ({}, own):
            nested = {
                "mask_token_id": 4,
                "target_layer_ids": [0],
                "input_embedding_scale": 3.0,
                "final_logit_softcapping": 7.0,
            }
            check_own_scale({**drafter, "dflash_config": nested}, 3.0)
            check_own_cap({**drafter, "dflash_config": nested}, 7.0)
        check_own_scale(own, 2.0)
        check_own_scale({"input_embedding_scale": None}, 1.0)
        check_own_cap(own, 5.0)
        for none in (None, 0.0):
            check_own_cap({"final_logit_softcapping": none}, None)
        check_smaller_vocabulary()
        check_no_constants()
