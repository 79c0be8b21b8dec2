"""Compute the memory that a recipe needs: weights, and the options and layout of the KV cache."""

from __future__ import annotations

import re

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.budget import GIB, UTILIZATION, Demand
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.draft_runner import keeps_one_group
from sparkwright.serve.preflight.drafter import PAGES_CARRY, before, drafter_layers
from sparkwright.serve.preflight.host import HostFacts
from sparkwright.serve.preflight.kv_plan import (
    BLOCK,
    CPU_BLOCK,
    KvOptions,
    KvPlan,
    UnknownFormatError,
    plan_kv,
)
from sparkwright.serve.preflight.request import StartFacts
from sparkwright.serve.preflight.shape import ModelShape, model_shape, whole_number
from sparkwright.serve.preflight.weights import LoadedWeights, loaded_weights, model_dtype

_BATCH, _REQUESTS = 8192, 256  # vLLM's own for an API server on a card of 70 GiB and more, about
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_EXPORTS = 64  # FLASHINFER_GDN_CHECKPOINT_ALIGNMENT of vLLM 0.33.0
_NEW_CARDS, _KEY_SIZE = ("10.", "12."), 128
_KV_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def _flag(recipe: Recipe, name: str, otherwise: int) -> int:
    """Return a flag that is a whole number, also as vLLM reads ``32k`` (1000) and ``32K`` (1024)."""
    value = recipe.flags.get(name)
    if isinstance(value, str) and (match := _HUMAN.fullmatch(value.strip())):
        number, unit = match.groups()
        return int(float(number) * _UNITS[unit])
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _length(recipe: Recipe, shape: ModelShape | None) -> int:
    """Return the tokens of the longest request; 0 where vLLM fits it to the memory, or it is not known."""
    if str(recipe.flags.get("max-model-len")) in {"-1", "auto"}:
        return 0
    return _flag(recipe, "max-model-len", shape.longest if shape else 0)


def kv_options(
    recipe: Recipe, target: Checkpoint | None, host: HostFacts, engine: EngineFacts | None
) -> KvOptions:
    """Return the options of the KV cache that *recipe* gives the *target* on that *host*."""
    shape = model_shape(target.text) if target else None
    hybrid = shape is not None and shape.hybrid
    given = recipe.flags.get("enable-prefix-caching")
    # By default models with states have it off (vllm config/model.py).
    prefixes = given if isinstance(given, bool) else not hybrid
    dtype = str(recipe.flags.get("kv-cache-dtype", "auto"))
    return KvOptions(
        dtype=_stated_kv(target) if dtype == "auto" and target else dtype,
        draft_dtype=str(recipe.speculative.get("kv_cache_dtype") or ""),
        model_dtype=model_dtype(recipe, target) if target else "bfloat16",
        block=_flag(recipe, "block-size", BLOCK if host.card else CPU_BLOCK),
        batch=_flag(recipe, "max-num-batched-tokens", _BATCH),
        drafts=whole_number(recipe.speculative, "num_speculative_tokens"),
        prefix_caching=prefixes,
        ranks=max(1, _flag(recipe, "tensor-parallel-size", 1)),
        saves=engine is None or PAGES_CARRY in engine.carries,
        together=engine is not None
        and keeps_one_group(engine)
        and recipe.speculative.get("method") == "dflash",
        exports=_EXPORTS if prefixes and _exports_states(recipe, target, shape, host, engine) else 1,
    )


def _exports_states(
    recipe: Recipe,
    target: Checkpoint | None,
    shape: ModelShape | None,
    host: HostFacts,
    engine: EngineFacts | None,
) -> bool:
    """Tell if FlashInfer prefills all states of the target, on its way past the ends of blocks.

    `_resolve_gdn_prefill_backend` of vLLM 0.33.0 takes it for gated delta nets on 9.0, and on 10.x and 12.x
    with keys of 128 and CUDA 13, for which its wheels are built. Mamba layers export at any token, and other
    states, such as the short convolutions of Qwen4, at none.
    """
    if not (target and shape and shape.states and host.card and engine and engine.version):
        return False
    if before(engine.version, "0.33"):
        return False
    capability = host.card.capability
    supported = capability == "9.0" or (
        capability.startswith(_NEW_CARDS) and target.text.get("linear_key_head_dim") == _KEY_SIZE
    )
    return (
        supported
        and recipe.flags.get("gdn-prefill-backend", "auto") in {"auto", "flashinfer"}
        and recipe.flags.get("mamba-cache-mode", "align") == "align"
        and not any(states.mamba for states in shape.states)
        and not any("Qwen4" in name for name in target.config.get("architectures") or ())
    )


def _stated_kv(target: Checkpoint) -> str:
    """Return the type of KV cache that the checkpoint asks for; ``auto`` where it does not."""
    for config in (target.config.get("quantization_config"), target.modelopt.get("quantization")):
        if isinstance(config, dict) and (stated := config.get("kv_cache_quant_algo")):
            return _KV_TYPES.get(str(stated).lower(), "auto")
    return "auto"


def make_demand(facts: StartFacts) -> Demand:
    """Return what the server of *facts* needs."""
    recipe, target, options = facts.recipe, facts.target, facts.options
    shape = model_shape(target.text) if target else None
    plan, unknown = _plan(facts)
    loaded = loaded_weights(recipe, target) if target and target.shards else None
    drafter = facts.drafter
    drafted = loaded_weights(recipe, drafter, draft=True) if drafter and drafter.shards else None
    utilization = recipe.flags.get("gpu-memory-utilization", UTILIZATION)
    return Demand(
        weights=loaded.bytes if loaded else -1,
        weights_source=_source(facts, recipe.model, loaded)
        + (f"; over {options.ranks} cards" if loaded and options.ranks > 1 else ""),
        drafter=drafted.bytes if drafted else (-1 if recipe.drafter and recipe.speculative else 0),
        drafter_source=_source(facts, recipe.drafter, drafted),
        plan=plan,
        plan_unknown=unknown,
        length=_length(recipe, shape),
        requests=_flag(recipe, "max-num-seqs", _REQUESTS),
        shape=shape,
        batch=options.batch,
        drafts=options.drafts,
        stretched="hf-overrides" in recipe.flags
        or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in facts.request.variables,
        eager=recipe.flags.get("enforce-eager") is True,
        vision=bool(target and target.config.get("vision_config"))
        and recipe.flags.get("language-model-only") is not True,
        utilization=float(utilization) if isinstance(utilization, (int, float)) else UTILIZATION,
        pool=_fixed_pool(facts),
        ranks=options.ranks,
    )


def _source(facts: StartFacts, name: str, loaded: LoadedWeights | None) -> str:
    if loaded is None:
        return "made up when the server starts" if facts.recipe.made_up else "not on this machine"
    types = ", ".join(
        f"{dtype} {size / GIB:.2f}"
        for dtype, size in sorted(loaded.by_dtype.items(), key=lambda one: -one[1])
    )
    left = f"; {loaded.left_out / GIB:.2f} not loaded" if loaded.left_out else ""
    where = "the hub's headers" if name in facts.remote else "headers"
    return f"{where}: {types} GiB{left}"


def _plan(facts: StartFacts) -> tuple[KvPlan | None, str]:
    if facts.target is None:
        return None, "the model is not on this machine"
    shape = model_shape(facts.target.text)
    if shape.unknown:
        return None, f"the configuration has {shape.unknown}"
    if _keeps_every_state(shape, facts):
        return None, "vLLM before 0.33 may keep a state of Mamba 2 for each block of a cached prefix"
    try:
        return plan_kv(shape, drafter_layers(facts.recipe, facts.target, facts.drafter), facts.options), ""
    except UnknownFormatError as error:
        return None, f"the size of a token in {error} is not known here"


def _keeps_every_state(shape: ModelShape, facts: StartFacts) -> bool:
    """Tell if states may be kept in the mode ``all`` (vllm model_executor/models/config.py of 0.24.0)."""
    mamba = any(states.mamba for states in shape.states)
    version = facts.engine.version if facts.engine else ""
    return mamba and facts.options.prefix_caching and (not version or before(version, "0.33"))


def _fixed_pool(facts: StartFacts) -> int:
    """Return the bytes of a KV cache that the recipe fixes, or -1."""
    fixed = _flag(facts.recipe, "kv-cache-memory-bytes", -1)
    space = facts.request.variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    if fixed < 0 and facts.host.card is None and space.replace(".", "", 1).isdecimal():
        return int(float(space) * GIB)
    return fixed
