"""Does a DFlash drafter of 0.33.0 embed tokens and cap logits as its Gemma target does?

The checks of the first probe, with what the models of 0.33.0 read of the configuration, and two questions
that arose since. A drafter may have an embedding of its own for masked slots, which replaces rows of the
target's table: Gemma's factor belongs to the rows alone. And other kinds of drafters are built on this one:
DFlash 2, which has a factor of its own, and Laguna's, which does without this one's constructor. Controls:
to them nothing may happen, also beside a Gemma.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import probe as first
import torch
from probekit import expect
from torch import nn
from vllm.model_executor.models import laguna_dflash, qwen3, qwen3_dflash, qwen3_dflash2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.config import VllmConfig

MASK = 4  # of the first probe's tokens, three are masked slots
SECOND = {
    "mask_token_id": MASK,
    "target_layer_ids": [0],
    "conv_kernel_size": 2,
    "conv_group_size": 12,
    "selector_rank": 4,
    "selector_top_k": 2,
    "input_embedding_scale": 3.0,
    "final_logit_softcapping": 5.0,
}


def serving_config(*args: Any) -> VllmConfig:
    """Return the configuration of the first probe, with the fields that 0.33.0 reads besides."""
    config: Any = FIRST_CONFIG(*args)
    config.attention_config = config.load_config = None
    config.kernel_config = SimpleNamespace(linear_backend="auto")
    config.model_config.get_total_num_hidden_layers = lambda: 1
    config.model_config.head_dtype = config.model_config.dtype
    config.speculative_config.num_speculative_tokens = 3
    config.speculative_config.attention_backend = None
    config.speculative_config.kv_cache_dtype = None
    config.speculative_config.draft_model_config.hf_config.is_causal = None
    return config  # type: ignore[no-any-return]


def share_second(target: nn.Module, drafter: nn.Module, config: VllmConfig) -> None:
    """Give the drafter the target's embeddings and head, as V2's speculator does."""
    replaced = {
        "replace": lambda config, **_: config,
        "get_model": lambda **_: drafter,
        "get_draft_load_config": lambda _: None,
        "get_pp_safe_draft_load_config": lambda _: None,
    }
    with mock.patch.multiple(first.second_runner, **replaced):
        first.second_runner.load_dflash_model(target, config)


FIRST_CONFIG = first.serving_config
RUNNERS = (first.share_first, share_second)


@contextmanager
def later_release() -> Iterator[None]:
    """Give the first probe what it does not know."""
    with ExitStack() as stack:
        replaced = {"serving_config": serving_config, "share_second": share_second}
        stack.enter_context(mock.patch.multiple(first, **replaced))
        for model in (qwen3_dflash.DFlashQwen3Model, qwen3_dflash2.DFlash2Qwen3Model):
            stack.enter_context(mock.patch.object(model, "decoder_layer_cls", first.Layer))
        stack.enter_context(mock.patch.object(qwen3.Qwen3Model, "decoder_layer_type", first.Layer))
        stack.enter_context(mock.patch.object(first.Layer, "experts", None, create=True))
        yield


def check_mask_embedding(target: first.Target, share: Any) -> None:
    """Scale rows of the table as the target does, and take the drafter's mask embedding as it is."""
    pair = first.build(target, share=share)
    pair.drafter.model.has_separate_mask_embedding = True
    given = first.embedded(pair.drafter)
    wanted = pair.target.embed_input_ids(first.TOKENS)
    slots = first.TOKENS == MASK
    what = f"{target.what}, {share.__name__}"
    same = torch.equal(given[slots], pair.drafter.model.mask_embedding.expand(int(slots.sum()), -1))
    expect(same, f"{what}: the mask embedding is not taken as it is")
    same = torch.equal(given[~slots], wanted[~slots])
    expect(same, f"{what}: beside a mask embedding, rows are not the target's")


def check_second_kind() -> None:
    """DFlash 2 multiplies by the factor that it names, once, and its candidates are capped as it says."""
    with mock.patch.object(qwen3_dflash, "DFlashQwen3ForCausalLM", qwen3_dflash2.DFlash2Qwen3ForCausalLM):
        for target in (first.QWEN3, first.GEMMA4):
            pair = first.build(target, drafter={"dflash_config": SECOND}, dtype=torch.float32)
            rows = pair.target.model.embed_tokens.weight[first.TOKENS]
            same = torch.equal(first.embedded(pair.drafter), rows * 3.0)
            expect(same, f"{target.what}: DFlash 2 does not multiply embeddings by its own factor, once")
            hidden = first.hidden_states(torch.float32)
            raw = first.products(pair, hidden)
            top = first.capped(raw, 5.0).topk(2).values
            found = pair.drafter.compute_candidates(hidden)
            values = next(tensor for tensor in found if tensor.is_floating_point())
            expect(torch.equal(values, top), f"{target.what}: DFlash 2 does not cap candidates as it says")
            same = torch.equal(pair.drafter.compute_logits(hidden), raw)
            expect(same, f"{target.what}: logits of DFlash 2, which names a cap for candidates, are changed")


def check_without_constructor() -> None:
    """A drafter that takes over the lookup alone embeds the table's rows."""
    drafter: Any = object.__new__(laguna_dflash.DFlashLagunaModel)
    nn.Module.__init__(drafter)
    drafter.embed_tokens = nn.Embedding(first.VOCABULARY, first.HIDDEN)
    drafter.mask_token_id, drafter.has_separate_mask_embedding = MASK, False
    try:
        same = torch.equal(drafter.embed_input_ids(first.TOKENS), drafter.embed_tokens(first.TOKENS))
    except AttributeError as error:
        expect(False, f"Laguna's drafter cannot embed: {error}")  # noqa: FBT003 - that is the defect
        return
    expect(same, "Laguna's drafter does not embed the table's rows")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    with later_release():
        with torch.inference_mode(), first.one_rank():
            check_without_constructor()
            check_second_kind()
            for share in RUNNERS:
                check_mask_embedding(first.QWEN3, share)
        first.probe()
        with torch.inference_mode(), first.one_rank():
            for target in first.GEMMAS:
                for share in RUNNERS:
                    check_mask_embedding(target, share)
