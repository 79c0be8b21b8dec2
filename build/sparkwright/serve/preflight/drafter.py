"""Findings about a drafter: sizes, layers, vocabulary, form and KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.rules import before
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding, finding
from sparkwright.serve.preflight.kv_plan import (
    PAGES_CARRY,
    KvOptions,
    UnknownFormatError,
    token_bytes,
)
from sparkwright.serve.preflight.shape import Attention, ModelShape, is_head, model_shape, whole_number

_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_EAGLE3_LAYERS = 3  # hidden states that EAGLE3 takes by default
_LARGER = 1.001
_PAGES_SINCE = "0.33"
_READ_UNTIL = "0.25"
_FLOATS = {"BF16", "F16", "F32"}
_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Drafting:
    """The facts of a drafter's configuration, whichever of the known forms it has.

    Attributes:
        form: ``speculators``, ``dflash``, ``eagle``, or empty where it has none of these.
        method: the method that a speculators configuration names; empty elsewhere.
        taken: the target's layers whose hidden states it takes, counted from 0.
        target_layers: the target's number of layers, where it says so; else 0.
        target_hidden: values of the target's hidden states.
        drafted: tokens that it can draft, where that is a subset; else 0.
        block: tokens of a block that it was trained to draft; 0 where it does not say.
    """

    form: str
    method: str
    taken: tuple[int, ...]
    target_layers: int
    target_hidden: int
    vocabulary: int
    drafted: int
    mask: int
    block: int
    shape: ModelShape


def read_drafting(config: Mapping[str, Any]) -> Drafting:
    """Return what a drafter's *config* says."""
    inner = config.get("transformer_layer_config")
    body: Mapping[str, Any] = inner if isinstance(inner, dict) else config
    special = config.get("dflash_config")
    dflash: Mapping[str, Any] = special if isinstance(special, dict) else {}
    listed = config.get("architectures")
    names = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    method = str(config.get("speculators_model_type") or "")
    form = (
        "speculators" if method
        else "dflash" if dflash or "DFlash" in names
        else "eagle" if "Eagle" in names or _AUX_LAYERS in config
        else ""
    )  # fmt: skip
    # A speculators configuration counts the embeddings' output as the first.
    listed = [one - 1 for one in _numbers(config.get("aux_hidden_state_layer_ids"))]
    return Drafting(
        form=form,
        method=method,
        taken=tuple(_numbers(dflash.get("target_layer_ids")) or listed),
        target_layers=whole_number(config, "num_target_layers"),
        target_hidden=whole_number(config, "target_hidden_size") or whole_number(body, "hidden_size"),
        vocabulary=whole_number(body, "vocab_size") or whole_number(config, "vocab_size"),
        drafted=whole_number(config, "draft_vocab_size"),
        mask=whole_number({**config, **dflash}, "mask_token_id"),
        block=whole_number(dflash, "block_size") or whole_number(config, "block_size"),
        shape=model_shape(body),
    )


def _numbers(value: Any) -> list[int]:
    return [one for one in value if isinstance(one, int)] if isinstance(value, list) else []


def drafter_layers(recipe: Recipe, target: Checkpoint, drafter: Checkpoint | None) -> tuple[Attention, ...]:
    """Return the layers of attention that drafting adds to the KV cache."""
    if not recipe.speculative:
        return ()
    if drafter is not None:
        # A paired head, such as Gemma 4's assistant, reads the target's cache and has none.
        return () if _is_mtp(recipe) else read_drafting(drafter.config).shape.attention
    if not _is_mtp(recipe):
        return ()
    shape, count = model_shape(target.text), max(1, _heads_of(target))
    return tuple(replace(layer, layers=count) for layer in shape.attention[:1])


def check_drafter(recipe: Recipe, target: Checkpoint, drafter: Checkpoint | None) -> Iterator[Finding]:
    """Yield findings where the drafter of *recipe* does not fit the *target*."""
    if drafter is None:
        if _is_mtp(recipe) and not _heads_of(target) and target.config:
            yield finding("mtp-absent", model=target.name)
        return
    found = read_drafting(drafter.config)
    method = str(recipe.speculative.get("method", ""))
    yield from _form(method, found, drafter)
    if not found.form:
        return
    yield from _sizes(found, target, drafter)
    yield from _first_layer(method, found, drafter)
    drafts, block = whole_number(recipe.speculative, "num_speculative_tokens"), found.block
    if method == "dflash" and block and drafts >= block:
        yield finding("draft-length", drafts=drafts, drafter=drafter.name, block=block, most=block - 1)


def _is_mtp(recipe: Recipe) -> bool:
    return str(recipe.speculative.get("method", "")).endswith("mtp")


def _heads_of(target: Checkpoint) -> int:
    """Return the number of MTP layers of *target*: none where its weights are known and lack them."""
    stated = next((n for c in (target.text, target.config) if (n := whole_number(c, *_MTP_KEYS))), 0)
    tensors = list(target.tensors)
    if not tensors:
        return stated
    behind = whole_number(target.text, "num_hidden_layers")
    present = any(is_head(tensor.name, behind) for tensor in tensors)
    return max(1, stated) if present else 0


def _form(method: str, found: Drafting, drafter: Checkpoint) -> Iterator[Finding]:
    wanted = {"dflash": "dflash", "eagle3": "eagle", "eagle": "eagle"}.get(method)
    if wanted is None or not drafter.config:
        return
    named = found.method or {"eagle": "eagle3"}.get(found.form, found.form)
    if found.form == "" or not named.startswith(wanted):
        named = named or ", ".join(drafter.architectures) or "no architecture"
        yield finding("drafter-form", drafter=drafter.name, method=method, named=named)


def _sizes(found: Drafting, target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    shape = model_shape(target.text)
    names = {"drafter": drafter.name, "model": target.name}
    for row, made_for, has in (
        ("drafter-hidden", found.target_hidden, shape.hidden),
        ("drafter-layers", found.target_layers, shape.layers),
        ("drafter-vocabulary", found.vocabulary, shape.vocabulary),
    ):
        if made_for and has and made_for != has:
            yield finding(row, made_for=made_for, has=has, **names)
    if shape.layers and (beyond := [one for one in found.taken if not 0 <= one < shape.layers]):
        yield finding("drafter-taken", layer=max(beyond), has=shape.layers, **names)
    if shape.vocabulary and found.mask >= shape.vocabulary:
        yield finding("drafter-mask", mask=found.mask, has=shape.vocabulary, **names)
    tensors = {tensor.name.rpartition(".")[2] for tensor in drafter.tensors}
    subset = found.drafted and found.drafted != (found.vocabulary or shape.vocabulary)
    if subset and tensors and "d2t" not in tensors:
        yield finding("drafter-table", drafted=found.drafted, has=shape.vocabulary, **names)


def _first_layer(method: str, found: Drafting, drafter: Checkpoint) -> Iterator[Finding]:
    """Compare the layer that takes the target's hidden states with their number."""
    joined = next((t for t in drafter.tensors if t.name in {"fc.weight", "model.fc.weight"}), None)
    count = len(found.taken) or (_EAGLE3_LAYERS if method == "eagle3" else 0)
    if joined is None or not count or len(joined.shape) != 2:  # noqa: PLR2004 - a matrix
        return
    takes, hidden = joined.shape[1], found.target_hidden
    # The sizes of packed values are not those of the matrix.
    if joined.dtype in _FLOATS and takes != count * hidden:
        facts = {"takes": takes, "count": count, "hidden": hidden, "has": count * hidden}
        yield finding("drafter-inputs", drafter=drafter.name, tensor=joined.name, **facts)


# The KV cache ----------------------------------------------------------------------------------------------


def check_draft_cache(
    target: ModelShape, layers: tuple[Attention, ...], options: KvOptions, engine: EngineFacts
) -> Iterator[Finding]:
    """Yield findings about a drafter's type of KV cache that costs memory."""
    if not layers or not target.attention:
        return
    draft, version = options.draft_dtype or options.dtype, engine.version
    try:
        own = token_bytes(target.attention[0], options.dtype, options.model_dtype, options.ranks)
        its = max(token_bytes(one, draft, options.model_dtype, options.ranks) for one in layers)
    except UnknownFormatError:
        return
    if not target.hybrid or its <= own * _LARGER:
        return
    row = "draft-kv-pages/unread"
    if PAGES_CARRY in engine.carries or (version and not before(version, _PAGES_SINCE)):
        row = "draft-kv-pages/padded"
    elif version and before(version, _READ_UNTIL):
        row = "draft-kv-pages"
    remedy = (
        "use a drafter with as many KV heads as the target"
        if draft == options.dtype
        else f'give the drafter the target\'s type: kv_cache_dtype = "{options.dtype}" in [speculative]'
    )
    types = {"draft": draft, "target": options.dtype, "version": version or "before 0.33"}
    yield finding(row, factor=its / own, remedy=remedy, **types)
