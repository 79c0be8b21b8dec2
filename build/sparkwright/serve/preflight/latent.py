"""Findings about latent attention whose contexts take several parts, in releases that add them up wrongly."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.recipes.rule import ServerOptions
from sparkwright.serve.preflight.drafter import before
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.request import StartFacts
from sparkwright.serve.preflight.shape import model_shape, whole_number

# Read in 0.24.0: model_executor/layers/attention/mla_attention.py:1422, and line 86 of flash_attn.py in
# v1/attention/backends/mla/prefill.
_READ_UNTIL = "0.25"
_MOST, _PROMPTS, _BLOCKS, _BLOCK = 65_536, 8, 4, 16
_USUAL_REQUESTS = 256


def part_tokens(longest: int, requests: int) -> int:
    """Return the tokens of a context that one part holds when *requests* prompts have one.

    Args:
        longest: tokens of the longest request.
        requests: that may run at once.
    """
    workspace = min(max(_PROMPTS * longest, _BLOCKS * requests * _BLOCK), _MOST)
    return max(workspace, requests * _BLOCK) // requests


def check_latent(facts: StartFacts) -> Iterator[Finding]:
    """Yield a finding where contexts can take several parts whose strides differ.

    FlashAttention 2 pads the values of a head to the size of a query's. The output of a part then has another
    stride than what parts were added up to, unless both sizes are the same, as in Mistral-Small-4.
    """
    target, engine, card = facts.target, facts.engine, facts.host.card
    if target is None or engine is None or card is None or not before(engine.version, _READ_UNTIL):
        return
    config = target.text
    query = whole_number(config, "qk_nope_head_dim") + whole_number(config, "qk_rope_head_dim")
    values = whole_number(config, "v_head_dim")
    shape, options = model_shape(config), ServerOptions.of(facts.recipe, card.capability)
    pads = options.family(12) is True or options.family(8) is True
    if not shape.mla or not pads or not values or query == values:
        return
    longest = options.number("max-model-len") or shape.longest
    requests = options.number("max-num-seqs") or _USUAL_REQUESTS
    part = part_tokens(longest, requests)
    if longest <= part:
        return
    yield Finding(
        "latent-context",
        "refuse",
        f"vLLM {engine.version} can answer wrongly over long contexts, without an error",
        f"values of {target.name} have {values} numbers a head and queries {query}; a context of more than "
        f"{part:,} tokens, with {requests} at once, is read in several parts, which are added up with the "
        "wrong stride (docs/evidence.md#ten-architectures)",
        f"take vLLM 0.33; or at most {_PROMPTS} requests (max-num-seqs) whose longest contexts "
        f"(max-model-len) together have {_MOST:,} tokens",
        liftable=True,
    )
