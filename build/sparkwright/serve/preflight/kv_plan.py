"""The KV cache as vLLM lays it out: pages, blocks, groups of layers, and the tokens that fit.

Repeats the arithmetic of vLLM 0.24.0 to 0.33.0 (v1/core/kv_cache_utils.py and kv_cache_planning.py,
v1/kv_cache_interface.py, `_align_hybrid_block_size` of platforms/interface.py):

* layers that attend to as many tokens form one group with one block table; in other models layers are split
  into groups of as many layers as the smallest kind has, or as the largest if that is less than 1.5 times as
  many;
* with the carry dflash-sliding-window all layers of a DFlash drafter keep the whole history, in one group, to
  whose size the others are padded where they would be smaller;
* all groups draw blocks of one size from one pool, so that pages are made equal: a smaller page gets more
  tokens where that divides, or padding; a state is padded;
* in a hybrid model a block has as many tokens as make its page at least as large as a state, in multiples of
  those at which a prefill exports states.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import lcm

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.rules import before
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.machine import HostFacts
from sparkwright.serve.preflight.shape import (
    Attention,
    ModelShape,
    model_dtype,
    model_shape,
    value_bytes,
    whole_number,
)

BLOCK = 16
"""Tokens of a block where nothing asks for another size, on CUDA cards."""

CPU_BLOCK = 128
_MLA_ALIGNMENT = 128
_EIGHT_BITS = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
_ONE_VALUE = ("auto", "bfloat16", "float16", "float32")
_DS_MLA = 656  # bytes of a token of `fp8_ds_mla`
_MUCH_LARGER = 1.5
PAGES_CARRY, WINDOWS_CARRY = "kv-page-nvfp4", "dflash-sliding-window"
BATCH, REQUESTS = 8192, 256
"""vLLM's own, about, for an API server on a card of 70 GiB and more."""

_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_EXPORTS = 64  # FLASHINFER_GDN_CHECKPOINT_ALIGNMENT of vLLM 0.33.0
_NEW_CARDS, _KEY_SIZE = ("10.", "12."), 128
_KV_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


class UnknownFormatError(Exception):
    """A type of KV cache whose size is not known here."""


@dataclass(frozen=True)
class KvOptions:
    """Options that decide the layout.

    Attributes:
        dtype: type of the target's cache, as ``--kv-cache-dtype`` spells it.
        model_dtype: of the model's values, which ``auto`` stands for.
        batch: tokens of the largest batch, which windows hold on top.
        prefix_caching: true if prefixes are cached, for which a state is held twice.
        ranks: cards that share the heads.
        saves: true with the carry kv-page-nvfp4, which chooses pages at which NVFP4 saves beside others.
        together: true with the carry dflash-sliding-window and a DFlash drafter, whose layers form one group.
        exports: tokens at which a prefill exports states for the prefix cache, which a hybrid model's block
            is a multiple of; 1 where it does not.
    """

    dtype: str = "auto"
    draft_dtype: str = ""
    model_dtype: str = "bfloat16"
    block: int = BLOCK
    batch: int = 8192
    drafts: int = 0
    prefix_caching: bool = False
    ranks: int = 1
    saves: bool = True
    together: bool = False
    exports: int = 1


def flag_number(recipe: Recipe, name: str, otherwise: int) -> int:
    """Return a flag that is a whole number, also as vLLM reads ``32k`` (1000) and ``32K`` (1024)."""
    value = recipe.flags.get(name)
    if isinstance(value, str) and (match := _HUMAN.fullmatch(value.strip())):
        number, unit = match.groups()
        return int(float(number) * _UNITS[unit])
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


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
        block=flag_number(recipe, "block-size", 0) or (BLOCK if host.card else CPU_BLOCK),
        batch=flag_number(recipe, "max-num-batched-tokens", BATCH),
        drafts=whole_number(recipe.speculative, "num_speculative_tokens"),
        prefix_caching=prefixes,
        ranks=max(1, flag_number(recipe, "tensor-parallel-size", 1)),
        saves=engine is None or PAGES_CARRY in engine.carries,
        together=engine is not None
        and WINDOWS_CARRY in engine.carries
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


@dataclass(frozen=True)
class KvGroup:
    """Layers of one kind, as the pool sees them.

    Attributes:
        page: bytes of one layer's block.
        values: bytes of it that hold values.
        block: tokens of a block; 0 for states.
        window: tokens of a sliding window; 0 for all.
        states: blocks that a request holds, for states.
        tables: groups that vLLM makes of them.
        dtype: type of the cache; empty for states.
        key: what has to be equal for two kinds to be one.
    """

    what: str
    layers: int
    page: int
    values: int
    block: int
    window: int = 0
    states: int = 0
    tables: int = 1
    dtype: str = ""
    key: tuple[object, ...] = field(default=(), repr=False)

    def blocks(self, tokens: int, batch: int) -> int:
        """Return the blocks of the pool that a request of so many *tokens* holds at most."""
        if self.states:
            return self.states * self.tables
        if self.window:
            return (-(-min(self.window - 1 + batch, tokens) // self.block) + 1) * self.tables
        return -(-tokens // self.block) * self.tables


@dataclass(frozen=True)
class KvPlan:
    """The layout of a KV cache.

    Attributes:
        block_bytes: bytes of one block of the pool, which serves all layers of one group.
        batch: tokens of the largest batch.
    """

    groups: tuple[KvGroup, ...]
    block_bytes: int
    batch: int

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks that one request of *tokens* holds."""
        return sum(group.blocks(tokens, self.batch) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Return the bytes that one request of *tokens* holds."""
        return self.request_blocks(tokens) * self.block_bytes

    def tokens(self, pool: int, length: int) -> int:
        """Return the tokens that vLLM reports for a *pool* of so many bytes and requests of *length*."""
        return int(pool // self.block_bytes / self.request_blocks(length) * length) if self.groups else 0

    def longest(self, pool: int, most: int) -> int:
        """Return the longest request, at *most* so many tokens, that a *pool* of bytes holds."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_bytes(middle) <= pool // self.block_bytes * self.block_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def token_bytes(layer: Attention, dtype: str, model_dtype: str, ranks: int = 1) -> int:
    """Return the bytes that one layer keeps for a token.

    Raises:
        UnknownFormatError: the size of that type is not known here.
    """
    value = value_bytes(model_dtype if dtype == "auto" else dtype)
    if layer.latent:
        if dtype == "fp8_ds_mla":
            return _DS_MLA
        if dtype not in {*_ONE_VALUE, *_EIGHT_BITS}:
            raise UnknownFormatError(dtype)
        return layer.latent * (1 if dtype in _EIGHT_BITS else value)
    heads = max(1, layer.kv_heads // ranks)
    if dtype in _EIGHT_BITS:
        side = layer.head_size
    elif dtype == "nvfp4":
        side = layer.head_size // 2 + layer.head_size // 16
    elif dtype in _ONE_VALUE:
        side = layer.head_size * value
    else:
        raise UnknownFormatError(dtype)
    return 2 * heads * side


def plan_kv(target: ModelShape, drafter: tuple[Attention, ...], options: KvOptions) -> KvPlan:
    """Return the layout of the cache of *target* with the layers of a *drafter*.

    The layers of a *drafter* are those of an MTP head, if the target drafts for itself.

    Raises:
        UnknownFormatError: the size of a type of cache is not known here.
    """
    if options.together:
        drafter = tuple(replace(layer, window=0) for layer in drafter)
    groups, drafted, kept = _kinds(target, drafter, options)
    whole = _merged([*groups, *drafted, *kept])
    if options.together and _is_split(drafted, whole):
        return _pool([*_merged(groups), *drafted, *_merged(kept)], options, drafted[0].layers)
    return _pool(whole, options)


def _kinds(
    target: ModelShape, drafter: tuple[Attention, ...], options: KvOptions
) -> tuple[list[KvGroup], list[KvGroup], list[KvGroup]]:
    """Return the kinds of layers: the target's attention, the drafter's, and states."""
    block = _block(target, options)
    groups = [_group("", layer, options.dtype, block, options) for layer in target.attention if layer.layers]
    draft_dtype = options.draft_dtype or options.dtype
    drafted = _merged([_group("drafter's ", layer, draft_dtype, block, options) for layer in drafter])
    held = (2 if options.prefix_caching else 1) + options.drafts
    first = next(iter([*groups, *drafted]), None)
    kept: list[KvGroup] = []
    for states in target.states:
        own = states.bytes(options.drafts, value_bytes(options.model_dtype), options.ranks)
        page = max(own, first.page) if first else own
        kept.append(KvGroup("states", states.layers, page, own, 0, states=held, key=("states", page)))
    return groups, drafted, kept


def _is_split(drafted: list[KvGroup], groups: list[KvGroup]) -> bool:
    """Tell if the *drafted* layers, which are of one kind, would be in more than one of vLLM's groups."""
    if len(drafted) != 1 or drafted[0].layers == 1:
        return False
    return any(one.layers > _group_size(groups) for one in groups if one.key == drafted[0].key)


def _group_size(groups: list[KvGroup]) -> int:
    """Return how many layers vLLM puts into a group."""
    counts = [group.layers for group in groups]
    return max(counts) if max(counts) < _MUCH_LARGER * min(counts) else min(counts)


def _block(target: ModelShape, options: KvOptions) -> int:
    """Return the tokens of a block: as asked for, or as many as a state needs."""
    if not target.states or not target.attention:
        return options.block
    first = target.attention[0]
    token = token_bytes(first, options.dtype, options.model_dtype, options.ranks)
    align = lcm(max(options.block, _MLA_ALIGNMENT if first.latent else 0), options.exports)
    value = value_bytes(options.model_dtype)
    state = max(one.bytes(options.drafts, value, options.ranks) for one in target.states)
    return max(align, align * -(-state // (align * token)))


def _group(whose: str, layer: Attention, dtype: str, block: int, options: KvOptions) -> KvGroup:
    page = block * token_bytes(layer, dtype, options.model_dtype, options.ranks)
    what = (
        f"windows of {layer.window}" if layer.window else "latent attention" if layer.latent else "attention"
    )
    key = (dtype, layer.kv_heads, layer.head_size, layer.window, layer.latent)
    return KvGroup(f"{whose}{what}", layer.layers, page, page, block, layer.window, dtype=dtype, key=key)


def _merged(groups: list[KvGroup]) -> list[KvGroup]:
    """Return *groups* with those of equal keys made one."""
    found: dict[tuple[object, ...], KvGroup] = {}
    for group in groups:
        known = found.get(group.key)
        found[group.key] = replace(known, layers=known.layers + group.layers) if known else group
    return list(found.values())


def _pool(groups: list[KvGroup], options: KvOptions, least: int = 0) -> KvPlan:
    """Return the layout of *groups*, split into those of one size, which is at *least* so many layers."""
    batch = options.batch
    if not groups:
        return KvPlan((), 1, batch)
    if len({group.window for group in groups}) == 1 and not any(group.states for group in groups):
        whole = replace(groups[0], layers=sum(group.layers for group in groups))
        return KvPlan((whole,), sum(group.page * group.layers for group in groups), batch)
    page = _page(groups, saves=options.saves)
    groups = [_resized(group, page) for group in groups]
    size = max(least, _group_size(groups))
    groups = [replace(group, tables=-(-group.layers // size)) for group in groups]
    widest = max(-(-group.layers // group.tables) for group in groups)
    return KvPlan(tuple(groups), widest * page, batch)


def _page(groups: list[KvGroup], *, saves: bool) -> int:
    """Return the bytes that all pages are brought to: the largest, or with the carry the best for NVFP4.

    Beside NVFP4 that is the multiple of a page, up to twice the largest, that loses least by padding.
    """
    largest = max(group.page for group in groups)
    if not saves or any(group.states for group in groups) or all(one.dtype != "nvfp4" for one in groups):
        return largest

    def lost(size: int) -> float:
        return sum(one.layers * (1 - one.page / size) for one in groups if size % one.page)

    sizes = {size for one in groups for size in range(one.page, 2 * largest + 1, one.page) if size >= largest}
    return min(sizes, key=lambda size: (lost(size), size))


def _resized(group: KvGroup, page: int) -> KvGroup:
    """Return *group* with a *page* of that size: more tokens in a block where that divides, else padding."""
    if group.page == page or group.states or page % group.page:
        return replace(group, page=page)
    return replace(group, page=page, values=page, block=group.block * (page // group.page))
