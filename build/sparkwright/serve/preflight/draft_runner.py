"""Findings about drafters that a model runner refuses late, or serves otherwise than they were trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.engine.installed import EngineFacts
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.drafter import before, drafter_layers
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.kv_plan import UnknownFormatError, deals_out_drafter
from sparkwright.serve.preflight.request import StartFacts
from sparkwright.serve.preflight.shape import model_shape

WINDOWS_CARRY = "dflash-sliding-window"
_ONE_GROUP_SINCE = 7  # revision of series 0.24
_READ_UNTIL = "0.25"
_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
# vllm config/vllm.py:68 of 0.24.0
_V2_BY_DEFAULT = {
    "Qwen3ForCausalLM", "DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM",
    "LlamaForCausalLM", "MistralForCausalLM",
}  # fmt: skip


def keeps_one_group(engine: EngineFacts) -> bool:
    """Tell if that vLLM keeps all layers of a DFlash drafter in one KV cache group."""
    return WINDOWS_CARRY in engine.carries and not 0 < engine.revision < _ONE_GROUP_SINCE


def check_draft_runner(facts: StartFacts) -> Iterator[Finding]:
    """Yield findings about the drafter of a start and the model runner that would serve it."""
    if facts.target is None or facts.drafter is None or facts.engine is None or not facts.engine.version:
        return
    method = facts.recipe.speculative.get("method")
    if method == "dflash":
        yield from _groups(facts, facts.target, facts.drafter, facts.engine)
    elif method == "eagle3":
        yield from _aux_layers(facts, facts.target, facts.drafter, facts.engine)


def _runner(facts: StartFacts, target: Checkpoint, version: str) -> str:
    """Return the model runner, ``v1`` or ``v2``; empty where the release that chooses was not read."""
    asked = facts.request.variables.get("VLLM_USE_V2_MODEL_RUNNER", "").lower()
    if asked in {"0", "1", "false", "true"}:
        return "v2" if asked in {"1", "true"} else "v1"
    if not before(version, _READ_UNTIL):
        return ""
    return "v2" if _V2_BY_DEFAULT & set(target.architectures) else "v1"


def _groups(
    facts: StartFacts, target: Checkpoint, drafter: Checkpoint, engine: EngineFacts
) -> Iterator[Finding]:
    """Yield a finding where model runner V1 would refuse a DFlash drafter that lies in several groups."""
    known = before(engine.version, _READ_UNTIL) and _runner(facts, target, engine.version) == "v1"
    layers = drafter_layers(facts.recipe, target, drafter)
    shape = model_shape(target.text)
    if not known or keeps_one_group(engine) or not layers or not shape.attention:
        return
    try:
        if not deals_out_drafter(shape, layers, facts.options):
            return
    except UnknownFormatError:
        return
    count = sum(one.layers for one in layers)
    yield Finding(
        "draft-kv-groups",
        "refuse",
        f"{drafter.name} is refused after the weights are loaded",
        f"vLLM {engine.version} deals its {count} layers out to several KV cache groups beside those of "
        f"{target.name}, and model runner V1 ends with 'All drafting layers should belong to the same kv "
        "cache group'",
        f"use a wheel of series 0.24 of revision {_ONE_GROUP_SINCE} or later, whose carry {WINDOWS_CARRY} "
        "keeps them in one, or draft by another method",
        liftable=True,
    )


def _aux_layers(
    facts: StartFacts, target: Checkpoint, drafter: Checkpoint, engine: EngineFacts
) -> Iterator[Finding]:
    """Yield a finding where an EAGLE3 drafter names its layers where model runner V2 does not read them."""
    inner = drafter.config.get("eagle_config")
    named: Any = inner.get(_AUX_LAYERS) if isinstance(inner, dict) else None
    runner = _runner(facts, target, engine.version)
    if not isinstance(named, list) or not named or drafter.config.get(_AUX_LAYERS) or runner == "v1":
        return
    count = model_shape(target.text).layers
    default = [2, count // 2, count - 3]
    if named == default or (isinstance(inner, dict) and inner.get("use_aux_hidden_state") is False):
        return
    taken = "takes" if runner else "may take"
    yield Finding(
        "draft-aux-layers",
        "warn" if runner else "note",
        f"{drafter.name} {taken} the output of other layers than it was trained with",
        f"model runner V2 reads {_AUX_LAYERS} at the top of a drafter's configuration, and not in its "
        f"eagle_config, which names {named}; it takes the target's own, such as {default}, without an error",
        f"copy {_AUX_LAYERS} to the top of the drafter's config.json, or set VLLM_USE_V2_MODEL_RUNNER=0",
    )
