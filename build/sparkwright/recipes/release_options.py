"""The options of one release of vLLM, as its own parser states them, and what a recipe asks beyond them.

Nothing here runs vLLM: `sparkwright.serve.ask` asks a release, and the answer is read here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import field

from sparkwright.base.config import Model
from sparkwright.recipes.recipe import Recipe

Kind = Literal["flag", "value", "variable", "speculative key", "parser", "deprecated"]


_MOE, _LINEAR = "the flag moe-backend", "the flag linear-backend"
_INSTEAD = {
    "enable-mamba-fine-grained-prefix-cache": "enable-mamba-shared-prefix-checkpoint (vllm#57382)",
    "log-config-file": "logging-config.pylogging_config_file",
    "mamba-cache-mode all": "nothing: states are cached by enable-prefix-caching (vllm#60838)",
    "speculative-disable-by-batch-size": "num_speculative_tokens_per_batch_size in [speculative]",
    "VLLM_PLE_CPU_OFFLOAD": "the flag engram-config",
    "VLLM_FP8_MOE_BACKEND": _MOE,
    "VLLM_FLASHINFER_MOE_BACKEND": _MOE,
    "VLLM_USE_FLASHINFER_MOE_FP4": _MOE,
    "VLLM_USE_FLASHINFER_MOE_FP8": _MOE,
    "VLLM_NVFP4_GEMM_BACKEND": _LINEAR,
}
"""Replacements of options that releases dropped and guides still name."""


class ReleaseFlag(Model, frozen=True):
    """One option of ``vllm serve``.

    Attributes:
        choices: the values it takes; empty for any.
        deprecated: what the release says of its end; empty for a current one.
    """

    names: tuple[str, ...]
    choices: tuple[str, ...] = ()
    deprecated: str = ""


class ReleaseVariables(Model, frozen=True):
    """Environment variables: those that ``vllm.envs`` declares, and others that the code reads by name."""

    declared: tuple[str, ...]
    read: tuple[str, ...]


class ReleaseOptions(Model, frozen=True):
    """The options of one release with its carries.

    Attributes:
        speculative: keys of ``--speculative-config``, each with the values it is limited to.
    """

    flags: tuple[ReleaseFlag, ...]
    variables: ReleaseVariables
    speculative: dict[str, tuple[str, ...]]
    attention_backends: tuple[str, ...]
    kv_types: tuple[str, ...]
    tool_parsers: tuple[str, ...]
    reasoning_parsers: tuple[str, ...]
    quantizations: tuple[str, ...] = ()

    def flag(self, name: str) -> ReleaseFlag | None:
        """Return the option that is spelled ``--name``; of ``--config.key`` the option ``--config``."""
        wanted = {f"--{name}", f"--{name.partition('.')[0]}"}
        return next((flag for flag in self.flags if wanted.intersection(flag.names)), None)

    @property
    def flag_names(self) -> tuple[str, ...]:
        """Return every spelling of every option, without dashes."""
        return tuple(name.removeprefix("--") for flag in self.flags for name in flag.names)

    @property
    def variable_names(self) -> frozenset[str]:
        """Return the names of every variable that has an effect."""
        return frozenset({*self.variables.declared, *self.variables.read})

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values that the option *name* takes, a flag or a speculative key; none for any."""
        registries = {
            "attention-backend": self.attention_backends,
            "kv-cache-dtype": self.kv_types,
            "quantization": self.quantizations,
            "tool-call-parser": self.tool_parsers,
            "reasoning-parser": self.reasoning_parsers,
        }
        if registered := registries.get(name.replace("_", "-")):
            return registered
        if limited := self.speculative.get(name):
            return limited
        flag = self.flag(name)
        return flag.choices if flag is not None and "." not in name else ()


class ParsedCommand(Model, frozen=True):
    """The outcome of parsing one command line by a release's own parser.

    Attributes:
        error: the reason why it was refused; empty if it was accepted.
    """

    error: str = ""
    warnings: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Problem:
    """One option of a recipe that a release does not have, or refuses.

    Attributes:
        kind: the kind of option; ``parser`` for an error of the release's parser on the whole command
            line, and ``deprecated`` for an option that a later release will lack.
        name: the option; for a value, the option and the value.
        nearest: the nearest name of this release; empty where none is near.
    """

    kind: Kind
    name: str
    because: str
    nearest: str = ""

    @property
    def refuses(self) -> bool:
        """True unless the option still works."""
        return self.kind != "deprecated"

    @property
    def instead(self) -> str:
        """Return the replacement of an option that releases dropped; empty for others."""
        return _INSTEAD.get(self.name.removeprefix("--"), "") if self.refuses else ""

    def __str__(self) -> str:
        """Return one line."""
        near = f"; the nearest name is {self.nearest}" if self.nearest else ""
        return f"{self.kind} {self.name}: {self.because}{f'; use {self.instead}' if self.instead else near}"


def problems(recipe: Recipe, release: ReleaseOptions, parsed: ParsedCommand) -> tuple[Problem, ...]:
    """Return what *recipe*, with its use applied, asks that *release* does not have."""
    found = [*_flags(recipe, release), *_speculative(recipe, release), *_variables(recipe, release)]
    if parsed.error and not any(one.refuses for one in found):
        found.append(Problem("parser", "vllm serve", parsed.error))
    return tuple(found)


def _flags(recipe: Recipe, release: ReleaseOptions) -> Iterator[Problem]:
    for name, value in recipe.flags.items():
        spelled = f"no-{name}" if value is False else name
        flag = release.flag(spelled)
        if flag is None:
            yield _unknown("flag", f"--{spelled}", spelled, release.flag_names)
            continue
        if flag.deprecated:
            yield Problem("deprecated", f"--{name}", flag.deprecated)
        if name == "tool-call-parser" and "tool-parser-plugin" in recipe.flags:
            continue
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, (bool, dict)):
                yield from _value(f"--{name}", str(one), release.values(name))


def _speculative(recipe: Recipe, release: ReleaseOptions) -> Iterator[Problem]:
    for key, value in recipe.speculative.items():
        if key not in release.speculative:
            yield _unknown("speculative key", key, key, tuple(release.speculative))
        elif isinstance(value, str):
            yield from _value(f"speculative {key}", value, release.values(key))


def _variables(recipe: Recipe, release: ReleaseOptions) -> Iterator[Problem]:
    """Yield the variables of vLLM's that nothing reads; other programs' variables are not judged."""
    for name in recipe.environment:
        if name.startswith("VLLM_") and name not in release.variable_names:
            yield _unknown("variable", name, name, sorted(release.variable_names))


def _unknown(kind: Kind, shown: str, name: str, known: Sequence[str]) -> Problem:
    because = "this release has none of that name"
    if kind == "variable":
        because = "no code of this release reads it: it would change nothing"
    return Problem(kind, shown, because, _nearest(name, known))


def _value(shown: str, value: str, known: Sequence[str]) -> Iterator[Problem]:
    # Names of backends are read in any case, and `auto` names none.
    backend = "attention" in shown and "backend" in shown
    if known and not (value.upper() in {*known, "AUTO"} if backend else value in known):
        because = "this release does not take that value"
        yield Problem("value", f"{shown} {value}", because, _nearest(value, known))


def _nearest(name: str, known: Sequence[str]) -> str:
    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""
