"""One rule about options that do not work together, and the options as rules read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.recipes.recipe import Recipe


def before(version: str, release: str) -> bool:
    """Tell if *version*, without its local part, is older than *release*; one that is not valid is not."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(version).base_version) < Version(release)
    except InvalidVersion:
        return False


@dataclass(frozen=True)
class ServerOptions:
    """The options of a recipe, as rules read them.

    Attributes:
        flags: flags of ``vllm serve``, with dashes.
        weights: quantization of the checkpoint.
        traits: properties of the model.
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


@dataclass(frozen=True)
class Rule:
    """One combination of options that does not work.

    Attributes:
        name: short and unique.
        instead: a working alternative.
        source: release and file:line under ``vllm/`` that decides it.
        broken: predicate of the combination.
        since: the first release in which it fails so; empty where it is not known to have worked before.
        before: the first release in which it works, or whose source was not read; empty where none is known.
        carry: the carry that repairs it, in wheels that hold it.
    """

    name: str
    reason: str
    instead: str
    source: str
    broken: Callable[[ServerOptions], bool]
    since: str = ""
    before: str = ""
    carry: str = ""

    def holds_in(self, version: str) -> bool:
        """Tell if the rule holds in that release of vLLM."""
        from packaging.version import InvalidVersion, Version

        try:
            release = Version(version)
        except InvalidVersion:
            return not self.before and not self.since
        base = Version(release.base_version)
        return (not self.since or base >= Version(self.since)) and (
            not self.before or base < Version(self.before)
        )
