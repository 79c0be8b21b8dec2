"""Options that are known not to work together; ``rules.toml`` has each reason and a working alternative.

Options, values and variables that a release does not have are not listed: `release_options` asks the release
itself. Nor is what depends on the machine or the checkpoint, which preflight reads. A rule refuses only
options that are *known* to fail: where a release's source was not read, or the card is not known, it does not
apply, and vLLM decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

from msgspec import structs
from packaging.version import InvalidVersion, Version

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import IncompatibleOptionsError
from sparkwright.recipes.recipe import Recipe

_EAGLE_LIKE = ("eagle", "eagle3", "dflash", "extract_hidden_states", "draft_model", "ngram_gpu")
_MAY_DRAFT_NOTHING = {"ngram", "ngram_gpu", "suffix"}
_NVFP4_CARRY = "nvfp4-kv-triton"
_SIXTEEN_BITS = ("bfloat16", "float16")
_NON_CAUSAL = {"FLASH_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TRITON_ATTN"}


def is_release(version: str) -> bool:
    """Tell if *version* is a valid one."""
    try:
        return bool(Version(version))
    except InvalidVersion:
        return False


def before(version: str, release: str) -> bool:
    """Tell if *version*, without its local part, is older than *release*; one that is not valid is not."""
    return is_release(version) and Version(Version(version).base_version) < Version(release)


@dataclass(frozen=True)
class ServerOptions:
    """The options of a recipe, as rules read them.

    Attributes:
        capability: compute capability of the card, major and minor; `None` where it is not known.
        carries: names of the wheel's carries; none in a wheel that this project did not build.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""
    traits: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    carries: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, recipe: Recipe, capability: str = "", carries: Collection[str] = frozenset()
    ) -> ServerOptions:
        """Return the options of *recipe* on a card of *capability*; by default the recipe's own."""
        card = capability or recipe.capability
        major, _, minor = card.partition(".")
        return cls(
            flags={name.replace("_", "-"): value for name, value in recipe.flags.items()},
            environment=recipe.environment,
            speculative=recipe.speculative,
            weights=recipe.weights,
            traits=recipe.traits,
            capability=(int(major), int(minor or 0)) if card else None,
            carries=frozenset(carries),
        )

    @property
    def kv(self) -> str:
        """Return the type of the KV cache."""
        return str(self.flags.get("kv-cache-dtype", "auto"))

    @property
    def draft_kv(self) -> str:
        """Return the type of the drafter's KV cache; by default the target's."""
        return str(self.speculative.get("kv_cache_dtype") or self.kv)

    @property
    def readers(self) -> tuple[tuple[str, str], ...]:
        """Return the requested attention backends, each with the type of KV cache that it would read."""
        config = self.flags.get("attention-config")
        inner = config.get("backend") if isinstance(config, dict) else None
        named = (
            (self.flags.get("attention-backend"), self.kv),
            (self.flags.get("attention-config.backend"), self.kv),
            (inner, self.kv),
            (self.speculative.get("attention_backend"), self.draft_kv),
        )
        return tuple((str(name).upper(), kv) for name, kv in named if name and str(name).lower() != "auto")

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the requested attention backends: the target's and the drafter's."""
        return tuple(name for name, _ in self.readers)

    @property
    def fp8_readers(self) -> tuple[str, ...]:
        """Return the backends that would read plain FP8."""
        return tuple(name for name, kv in self.readers if kv in {"fp8", "fp8_e4m3", "fp8_e5m2"})

    @property
    def nvfp4_readers(self) -> tuple[str, ...]:
        """Return the backends that would read NVFP4."""
        return tuple(name for name, kv in self.readers if kv.startswith("nvfp4"))

    @property
    def method(self) -> str:
        """Return the method of drafting; empty without speculation."""
        return str(self.speculative.get("method", "")) if self.speculative else ""

    @property
    def k(self) -> int:
        """Return the tokens drafted in a step; 0 without speculation, -1 where not given as a number."""
        value = self.speculative.get("num_speculative_tokens", -1) if self.speculative else 0
        return value if isinstance(value, int) else -1

    @property
    def runner(self) -> str:
        """Return the forced model runner, ``v1`` or ``v2``; empty where vLLM chooses."""
        value = self.environment.get("VLLM_USE_V2_MODEL_RUNNER", "")
        return {"1": "v2", "true": "v2", "0": "v1", "false": "v1"}.get(value.lower(), "")

    def number(self, flag: str) -> int | None:
        """Return a flag's value, where it is given as a whole number."""
        value = self.flags.get(flag)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def family(self, major: int) -> bool | None:
        """Tell if the card has that major capability; `None` where it is not known."""
        return None if self.capability is None else self.capability[0] == major


def _rates_wrong(options: ServerOptions) -> bool:
    """Tell if synthetic acceptance is given in a way that is refused."""
    rates = options.speculative.get("synthetic_acceptance_rates")
    length = options.speculative.get("synthetic_acceptance_length")
    if options.speculative.get("rejection_sample_method") != "synthetic":
        return rates is not None or length is not None
    if (rates is None) == (length is None):
        return True
    if rates is None:
        return not 1 <= float(length or 0) <= options.k + 1
    falling = all(after <= before for before, after in pairwise(rates))
    return len(rates) != options.k or not falling or not all(0 <= rate <= 1 for rate in rates)


def _drafts_nothing_by_load(options: ServerOptions) -> bool:
    """Tell if no token is drafted at some load."""
    by_load = options.speculative.get("num_speculative_tokens_per_batch_size") or []
    return any(drafts == 0 for *_, drafts in by_load)


def _slots_missing(options: ServerOptions) -> bool:
    """Tell if a full batch's draft slots leave no token to schedule: k - 1 of them for each request."""
    tokens, requests = options.number("max-num-batched-tokens"), options.number("max-num-seqs")
    return (
        options.method == "dflash"
        and None not in {tokens, requests}
        and (tokens or 0) - (options.k - 1) * (requests or 0) <= 0
    )


def _no_size_left(options: ServerOptions) -> bool:
    """Tell if no capture size is left when they are rounded to whole requests of 1 + k tokens."""
    sizes = options.flags.get("cudagraph-capture-sizes")
    most = options.number("max-cudagraph-capture-size")
    largest = max(sizes) if isinstance(sizes, list) and sizes else most
    return options.k > 0 and not options.flags.get("enforce-eager") and 0 < (largest or 0) < options.k + 1


_BROKEN: Mapping[str, Callable[[ServerOptions], bool]] = {
    "dflash-nvfp4-kv": lambda o: o.method == "dflash" and o.draft_kv.startswith("nvfp4"),
    "dflash-nvfp4-kv-card": lambda o: (
        o.method == "dflash" and o.draft_kv.startswith("nvfp4") and o.family(12) is False
    ),
    "nvfp4-kv-card": lambda o: (
        o.kv == "nvfp4"
        and o.family(10) is False
        and (_NVFP4_CARRY not in o.carries or "FLASHINFER" in o.nvfp4_readers)
    ),
    "nvfp4-kv-backend": lambda o: bool(
        {*o.nvfp4_readers} - {"FLASHINFER", *(["TRITON_ATTN"] if _NVFP4_CARRY in o.carries else [])}
    ),
    "draft-kv-type": lambda o: "kv_cache_dtype" in o.speculative,
    "hybrid-draft-kv": lambda o: (
        "hybrid" in o.traits and o.draft_kv in _SIXTEEN_BITS and o.kv not in {"auto", *_SIXTEEN_BITS}
    ),
    "hybrid-steps-without-drafts": lambda o: (
        "hybrid" in o.traits and (o.method in _MAY_DRAFT_NOTHING or _drafts_nothing_by_load(o))
    ),
    "mla-drafts": lambda o: (
        bool(o.method) and "mla" in o.traits and ("TRITON_MLA" in o.backends or o.family(12) is True)
    ),
    "mla-runner-v2": lambda o: o.runner == "v2" and "mla" in o.traits,
    "nvfp4-kv-mla": lambda o: o.kv == "nvfp4" and "mla" in o.traits,
    "turboquant-nvfp4-kv": lambda o: (
        o.kv.startswith("nvfp4")
        and ("TURBOQUANT" in o.backends or o.environment.get("VLLM_USE_TURBOQUANT", "0") not in {"", "0"})
    ),
    "turboquant-dflash": lambda o: o.draft_kv.startswith("turboquant_") and o.method == "dflash",
    "turboquant-backend": lambda o: any(
        kv.startswith("turboquant_") and name != "TURBOQUANT" for name, kv in o.readers
    ),
    "flash-attn-fp8-kv": lambda o: "FLASH_ATTN" in o.fp8_readers and o.family(9) is False,
    "flex-attention-fp8-kv": lambda o: "FLEX_ATTENTION" in o.fp8_readers,
    "dflash-causal-backend": lambda o: (
        o.method == "dflash"
        and bool(name := str(o.speculative.get("attention_backend", "")).upper())
        and name not in {*_NON_CAUSAL, "AUTO"}
    ),
    "quantization-other": lambda o: (
        o.weights in {"compressed-tensors", "fp8"}
        and o.flags.get("quantization") not in {None, o.weights, "humming"}
    ),
    "quantization-of-nothing": lambda o: (
        o.weights == "none"
        and str(o.flags.get("quantization", "")).startswith(("modelopt", "compressed-tensors"))
    ),
    "tied-modelopt": lambda o: o.weights.startswith("modelopt") and "tied-embeddings" in o.traits,
    "v2-hybrid-prefix-cache": lambda o: (
        o.runner == "v2" and "hybrid" in o.traits and o.flags.get("enable-prefix-caching") is True
    ),
    "v2-method": lambda o: (
        o.runner == "v2"
        and o.method not in {"", "eagle", "eagle3", "dflash"}
        and not o.method.endswith("mtp")
    ),
    "v2-dynamic-k": lambda o: (
        o.runner == "v2" and bool(o.speculative.get("num_speculative_tokens_per_batch_size"))
    ),
    "async-method": lambda o: (
        o.flags.get("async-scheduling") is True
        and o.method not in {"", *_EAGLE_LIKE}
        and not o.method.endswith("mtp")
    ),
    "async-unpadded-drafts": lambda o: (
        o.flags.get("async-scheduling") is True and bool(o.speculative.get("disable_padded_drafter_batch"))
    ),
    "drafter-missing": lambda o: o.method == "dflash" and o.k <= 0,
    "drafter-parallelism": lambda o: "tensor_parallel_size" in o.speculative,
    "synthetic-acceptance": _rates_wrong,
    "draft-slots": _slots_missing,
    "capture-sizes": _no_size_left,
    "mamba-block-size": lambda o: (
        "mamba-block-size" in o.flags and o.flags.get("enable-prefix-caching") is False
    ),
    "download-dir": lambda o: not str(o.flags.get("download-dir", "/")).startswith("/"),
}
"""The predicate of each rule, by its name."""


class Rule(Model, frozen=True):
    """One combination of options that does not work; see the head of ``rules.toml``."""

    reason: str
    instead: str
    source: str
    since: str = ""
    before: str = ""
    carry: str = ""
    name: str = ""

    def broken(self, options: ServerOptions) -> bool:
        """Tell if *options* are that combination."""
        return _BROKEN[self.name](options)

    def holds_in(self, version: str) -> bool:
        """Tell if the rule holds in that release of vLLM."""
        if not is_release(version):
            return not self.before and not self.since
        return not (self.since and before(version, self.since)) and (
            not self.before or before(version, self.before)
        )


class _Table(Model, frozen=True):
    format: Literal[1]
    rules: dict[str, Rule]


def _load() -> tuple[Rule, ...]:
    data = (resources.files("sparkwright.recipes") / "rules.toml").read_bytes()
    table = parse_toml(data, _Table, newest_format=1, name="rules.toml")
    return tuple(structs.replace(rule, name=name) for name, rule in table.rules.items())


RULES = _load()


def incompatibilities(
    recipe: Recipe, version: str, capability: str = "", carries: Collection[str] = frozenset()
) -> tuple[Rule, ...]:
    """Return the rules that *recipe* breaks.

    Where *version* is not a valid one, rules that are bound to releases do not apply; *capability* is by
    default the recipe's.
    """
    options = ServerOptions.of(recipe, capability, carries)
    return tuple(
        rule
        for rule in RULES
        if rule.carry not in options.carries and rule.holds_in(version) and rule.broken(options)
    )


def check_compatible(
    recipe: Recipe, version: str, *, capability: str = "", carries: Collection[str] = frozenset()
) -> None:
    """Refuse a recipe whose options are known not to work together; see `incompatibilities`.

    Raises:
        IncompatibleOptionsError: with every reason, and working alternatives.
    """
    if broken := incompatibilities(recipe, version, capability, carries):
        raise IncompatibleOptionsError(
            f"the recipe {recipe.name} cannot be served by vLLM {version}",
            because="; ".join(f"{rule.reason} [{rule.name}; {rule.source}]" for rule in broken),
            next_step="; ".join(dict.fromkeys(rule.instead for rule in broken)),
        )
