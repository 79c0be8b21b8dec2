"""Findings about a drafter that does not fit its target: sizes, layers, vocabulary, form, KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.kv_plan import KvOptions, UnknownFormatError, token_bytes
from sparkwright.serve.preflight.shape import Attention, ModelShape, model_shape, whole_number
from sparkwright.serve.preflight.weights import is_head

_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_EAGLE3_LAYERS = 3  # hidden states that EAGLE3 takes by default
_LARGER = 1.001
PAGES_CARRY = "kv-page-nvfp4"
_PAGES_SINCE = "0.33"
_READ_UNTIL = "0.25"
_FLOATS = {"BF16", "F16", "F32"}
_SIXTEEN = {"bfloat16", "float16", "auto"}
_PLAIN = {*_SIXTEEN, "fp8", "fp8_e4m3", "fp8_e5m2"}


@dataclass(frozen=True)
class Drafting:
    """The facts of a drafter's configuration, whichever of the known forms it has.

    Attributes:
        form: ``speculators``, ``dflash``, ``eagle``, or empty where it has none of these.
        method: the method that a speculators configuration names; empty elsewhere.
        taken: the target's layers whose hidden states it takes, counted from 0.
        target_layers: the target's number of layers, where it says so; else 0.
        target_hidden: values of the target's hidden states.
        vocabulary: tokens that it was made for.
        drafted: tokens that it can draft, where that is a subset; else 0.
        mask: the mask's token; 0 without one.
        block: tokens of a block that it was trained to draft; 0 where it does not say.
        shape: its own sizes.
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
        else "eagle" if "Eagle" in names or "eagle_aux_hidden_state_layer_ids" in config
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
            yield Finding(
                "mtp-absent",
                "refuse",
                f"{target.name} has no MTP head",
                "no tensor of its weights is one of an MTP layer",
                "use a checkpoint that kept them, or another method of drafting",
                liftable=True,
            )
        return
    found = read_drafting(drafter.config)
    method = str(recipe.speculative.get("method", ""))
    yield from _form(method, found, drafter)
    if not found.form:
        return
    yield from _sizes(found, target, drafter)
    yield from _first_layer(method, found, drafter)
    drafts = whole_number(recipe.speculative, "num_speculative_tokens")
    if method == "dflash" and found.block and drafts >= found.block:
        yield Finding(
            "draft-length",
            "warn",
            f"{drafts} tokens are drafted, more than {drafter.name} was trained for",
            f"its blocks have {found.block} tokens, the first of which is not drafted",
            f"set num_speculative_tokens to {found.block - 1} or less",
        )


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
        yield Finding(
            "drafter-form",
            "refuse",
            f"{drafter.name} is no drafter for the method {method}",
            f"its configuration names {named or ', '.join(drafter.architectures) or 'no architecture'}, "
            "and nothing of that method",
            "name the drafter's own checkpoint, or the method that it is for",
            liftable=True,
        )


def _sizes(found: Drafting, target: Checkpoint, drafter: Checkpoint) -> Iterator[Finding]:
    shape = model_shape(target.text)
    pairs = (
        ("drafter-hidden", "hidden states", found.target_hidden, shape.hidden),
        ("drafter-layers", "layers", found.target_layers, shape.layers),
        ("drafter-vocabulary", "tokens in the vocabulary", found.vocabulary, shape.vocabulary),
    )
    for check, what, made_for, has in pairs:
        if made_for and has and made_for != has:
            yield _unfit(check, drafter, f"it is made for {made_for} {what}, and {target.name} has {has}")
    if shape.layers and (beyond := [one for one in found.taken if not 0 <= one < shape.layers]):
        because = f"it takes the output of layer {max(beyond)}, and {target.name} has {shape.layers} layers"
        yield _unfit("drafter-taken", drafter, because)
    if shape.vocabulary and found.mask >= shape.vocabulary:
        because = f"its mask is token {found.mask}, and {target.name} has {shape.vocabulary}"
        yield _unfit("drafter-mask", drafter, because)
    names = {tensor.name.rpartition(".")[2] for tensor in drafter.tensors}
    subset = found.drafted and found.drafted != (found.vocabulary or shape.vocabulary)
    if subset and names and "d2t" not in names:
        because = (
            f"it drafts {found.drafted} of {shape.vocabulary} tokens, and the table d2t of which is missing"
        )
        yield _unfit("drafter-table", drafter, because)


def _first_layer(method: str, found: Drafting, drafter: Checkpoint) -> Iterator[Finding]:
    """Compare the layer that takes the target's hidden states with their number."""
    joined = next((t for t in drafter.tensors if t.name in {"fc.weight", "model.fc.weight"}), None)
    count = len(found.taken) or (_EAGLE3_LAYERS if method == "eagle3" else 0)
    if joined is None or not count or len(joined.shape) != 2:  # noqa: PLR2004 - a matrix
        return
    if joined.dtype not in _FLOATS:
        return  # packed, so that its sizes are not those of its values
    takes = joined.shape[1]
    if takes != count * found.target_hidden:
        because = (
            f"{joined.name} takes {takes} values, and {count} hidden states of {found.target_hidden} have "
        )
        yield _unfit("drafter-inputs", drafter, f"{because}{count * found.target_hidden}")


def _unfit(check: str, drafter: Checkpoint, because: str) -> Finding:
    return Finding(
        check,
        "refuse",
        f"{drafter.name} was made for another target",
        because,
        "name the drafter that was trained for this model",
        liftable=True,
    )


def check_draft_cache(
    target: ModelShape,
    layers: tuple[Attention, ...],
    options: KvOptions,
    *,
    version: str = "",
    carries: frozenset[str] = frozenset(),
) -> Iterator[Finding]:
    """Yield findings about a drafter's type of KV cache that is refused after loading, or costs memory.

    Args:
        target: the target's sizes.
        layers: the drafter's layers of attention.
        options: of the cache.
        version: vLLM's; empty where it is not known.
        carries: names of the wheel's carries.
    """
    if not layers or not target.attention:
        return
    draft = options.draft_dtype or options.dtype
    yield from _pair(draft, options.dtype, version)
    try:
        own = token_bytes(target.attention[0], options.dtype, options.model_dtype, options.ranks)
        its = max(token_bytes(one, draft, options.model_dtype, options.ranks) for one in layers)
    except UnknownFormatError:
        return
    if not target.hybrid or its <= own * _LARGER:
        return
    factor = its / own
    because = (
        f"in a hybrid model all pages have one size, and the drafter's, of {draft}, are {factor:.2f} times "
        f"the target's, of {options.dtype}"
    )
    remedy = (
        "use a drafter with as many KV heads as the target"
        if draft == options.dtype
        else f'give the drafter the target\'s type: kv_cache_dtype = "{options.dtype}" in [speculative]'
    )
    if PAGES_CARRY in carries or (version and not before(version, _PAGES_SINCE)):
        what = f"the drafter's KV cache makes each state take {factor:.2f} times its memory"
        yield Finding("draft-kv-pages", "warn", what, because, remedy)
        return
    known = bool(version) and before(version, _READ_UNTIL)
    yield Finding(
        "draft-kv-pages",
        "refuse" if known else "warn",
        f"the drafter's KV cache {'is' if known else 'may be'} refused after the weights are loaded",
        f"{because}; vLLM {version or 'before 0.33'} without the carry {PAGES_CARRY} "
        f"{'cannot' if known else 'may not'} pad states to them",
        f"{remedy}, or use a wheel with that carry",
        liftable=True,
    )


def _pair(draft: str, target: str, version: str) -> Iterator[Finding]:
    """Yield a finding for types that vLLM 0.24 with draft-kv-dtype refuses to hold in one pool."""
    same = draft == target or {draft, target} <= _SIXTEEN
    fits = draft in _SIXTEEN or (draft in _PLAIN and (target in _PLAIN or target.startswith("turboquant_")))
    if same or fits or not version or not before(version, _READ_UNTIL):
        return
    yield Finding(
        "draft-kv-pair",
        "refuse",
        f"a drafter's KV cache of {draft} is refused beside a target's of {target}",
        f"vLLM {version} derives the shape of all caches from one type, and can hold 16 bits beside any",
        f'set kv_cache_dtype = "{target}" or "bfloat16" in [speculative]',
        liftable=True,
    )


def before(version: str, release: str) -> bool:
    """Tell if *version*, without its local part, is older than *release*; one that is not valid is not."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(version).base_version) < Version(release)
    except InvalidVersion:
        return False
