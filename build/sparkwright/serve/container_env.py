"""The variables of a container, mapped onto a recipe: those that users of existing images know.

All faults are collected and reported in one message. Unknown variables that begin like known ones, such as a
misspelt ``DFLASH_DRAFTR``, are refused: ignored, they would leave something else served than was asked for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import Recipe, served_recipe

_OFF = frozenset({"off", "none", "no", "false", "0", "disabled"})
_ON = frozenset({"1", "on", "true", "yes"})
# Variables by the flag that each of them sets.
FLAGS: Mapping[str, str] = {
    "MAX_MODEL_LEN": "max-model-len",
    "MAX_NUM_SEQS": "max-num-seqs",
    "MAX_NUM_BATCHED_TOKENS": "max-num-batched-tokens",
    "GPU_MEMORY_UTILIZATION": "gpu-memory-utilization",
    "KV_CACHE_DTYPE": "kv-cache-dtype",
    "ATTENTION_BACKEND": "attention-backend",
    "MOE_BACKEND": "moe-backend",
    "LINEAR_BACKEND": "linear-backend",
    "DTYPE": "dtype",
    "QUANTIZATION": "quantization",
    "LOAD_FORMAT": "load-format",
    "TENSOR_PARALLEL": "tensor-parallel-size",
    "TENSOR_PARALLEL_SIZE": "tensor-parallel-size",
    "TOOL_CALL_PARSER": "tool-call-parser",
    "REASONING_PARSER": "reasoning-parser",
    "CHAT_TEMPLATE": "chat-template",
}
_DRAFTERS = ("DRAFTER", "DFLASH_DRAFTER", "DRAFTER_PATH")
_TOKENS = ("SPEC_TOKENS", "DFLASH_NUM_SPEC_TOKENS", "DFLASH_SPEC_TOKENS", "NUM_SPEC_TOKENS")
_MTP_TOKENS = ("MTP_SPEC_TOKENS", "MTP_NUM_SPEC_TOKENS")
_OTHERS = (
    "RECIPE", "USE", "SETTINGS", "MODEL_PATH", "MODEL", "SERVED_MODEL_NAME", "SPEC_METHOD", "EXTRA_ARGS",
    "API_KEY_FILE", "VLLM_API_KEY_FILE", "VLLM_API_KEY", "API_KEY", "HOST", "PORT",
    "ENABLE_TURBOQUANT", "TQ_MODE",
)  # fmt: skip
KNOWN = frozenset({*FLAGS, *_DRAFTERS, *_TOKENS, *_MTP_TOKENS, *_OTHERS})
_OURS = re.compile(
    r"(?:DFLASH|SPEC|MTP|DRAFTER|DRAFT|TQ|MAX_NUM|MAX_MODEL|GPU_MEMORY|KV_CACHE|TENSOR_PARALLEL)_?"
)
_RANGES: Mapping[str, tuple[float, float]] = {
    "max-model-len": (1, 1 << 30),
    "max-num-seqs": (1, 1 << 20),
    "max-num-batched-tokens": (1, 1 << 30),
    "gpu-memory-utilization": (0.01, 1.0),
    "tensor-parallel-size": (1, 1024),
}
_MOST_TOKENS = 64
_RESERVED: Mapping[str, str] = {
    "model": "set MODEL_PATH",
    "served-model-name": "set SERVED_MODEL_NAME",
    "host": "set HOST",
    "port": "set PORT",
    "api-key": "anyone on the host can read arguments: set API_KEY_FILE",
    "speculative-config": "set DRAFTER and SPEC_TOKENS, or name a recipe",
}
_NUMBER = re.compile(r"-?\d+")


@dataclass
class _Wrong:
    """The faults of a container's variables, collected."""

    found: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.found.append(text)


def recipe_of(environment: Mapping[str, str]) -> Recipe:
    """Return the recipe that the variables of a container describe.

    ``RECIPE`` is the base, and the other variables change it. Without it, ``MODEL_PATH`` is served with
    vLLM's defaults and the flags that are set. Empty variables count as unset.

    Raises:
        ConfigError: variables are unknown, wrong or contradict each other; all are named in one message.
        UnknownNameError: there is no such recipe.
    """
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    wrong = _Wrong()
    for name in sorted(given):
        if name not in KNOWN and _OURS.match(name):
            wrong.add(f"{name} is not known; {_closest(name)}")
    base = _base(given, wrong)
    flags = _flags(given, wrong)
    speculative, drafter = _speculation(given, base, wrong)
    _turboquant(given, wrong)
    if wrong.found:
        raise ConfigError(
            "the container's variables cannot be served as they are",
            because="\n".join(wrong.found),
            next_step="correct them; docs/service.md lists every variable",
        )
    model = given.get("MODEL_PATH") or given.get("MODEL") or base.model
    return msgspec.structs.replace(
        base,
        name=given.get("SERVED_MODEL_NAME") or base.name,
        model=model,
        drafter=drafter,
        speculative=speculative,
        flags={**base.flags, **flags},
    )


def _closest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(KNOWN), n=1)
    return f"did you mean {close[0]}?" if close else "leave it out"


def _base(given: Mapping[str, str], wrong: _Wrong) -> Recipe:
    if "MODEL_PATH" in given and "MODEL" in given and given["MODEL_PATH"] != given["MODEL"]:
        wrong.add("MODEL_PATH and MODEL name two models")
    model = given.get("MODEL_PATH") or given.get("MODEL") or ""
    if "RECIPE" in given:
        return served_recipe(given["RECIPE"], given.get("USE", ""))
    if not model:
        wrong.add("neither RECIPE nor MODEL_PATH is set")
    if "USE" in given:
        wrong.add("USE is of a recipe, and RECIPE is not set")
    name = PurePosixPath(model).name or "model"
    return Recipe(format=1, name=name, title=f"{model}, by the container's variables", model=model)


# Flags -----------------------------------------------------------------------------------------------------


def _flags(given: Mapping[str, str], wrong: _Wrong) -> dict[str, Any]:
    """Return the flags of all variables; two that set one flag differently are refused."""
    found: dict[str, Any] = {}
    source: dict[str, str] = {}

    def put(flag: str, value: Any, origin: str) -> None:
        if flag in found and found[flag] != value:
            wrong.add(f"{source[flag]} sets {flag} to {found[flag]}, and {origin} to {value}")
        found[flag], source[flag] = value, origin

    for name, flag in FLAGS.items():
        if name in given:
            put(flag, _ranged(flag, given[name], name, wrong), name)
    if "tool-call-parser" in found:
        put("enable-auto-tool-choice", True, "TOOL_CALL_PARSER")  # noqa: FBT003
    for flag, value in _settings(given, wrong):
        put(flag, value, "SETTINGS")
    for flag, value in parse_arguments(given.get("EXTRA_ARGS", ""), wrong.add):
        put(flag, value, "EXTRA_ARGS")
    return found


def _ranged(flag: str, text: str, name: str, wrong: _Wrong) -> Any:
    value = value_of(text)
    if flag in _RANGES:
        low, high = _RANGES[flag]
        whole = flag == "gpu-memory-utilization" or isinstance(value, int)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not whole or not low <= value <= high:
            wrong.add(
                f"{name}={text} is no {'whole number' if high > 1 else 'share'} from {low:g} to {high:g}"
            )
    return value


def _settings(given: Mapping[str, str], wrong: _Wrong) -> list[tuple[str, Any]]:
    """Return the flags in SETTINGS, the JSON list of ``FLAG=VALUE`` that generated compose files set."""
    try:
        words = json.loads(given.get("SETTINGS", "[]"))
        pairs = [word.split("=", 1) for word in words]
        return [(name.lstrip("-").replace("_", "-"), value_of(value)) for name, value in pairs]
    except (ValueError, AttributeError, TypeError):
        wrong.add("SETTINGS is no JSON list of FLAG=VALUE")
        return []


def parse_arguments(text: str, refuse: Callable[[str], None]) -> list[tuple[str, Any]]:
    """Return the flags in *text*, arguments of ``vllm serve`` as a shell has them.

    Args:
        text: such as ``--enable-prefix-caching --dtype bfloat16``.
        refuse: called with each fault.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        refuse(f"EXTRA_ARGS cannot be split into words: {error}")
        return []
    found: list[tuple[str, Any]] = []
    values: list[str] = []
    for word in [*words, "--"]:
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            if not found:
                refuse(f"EXTRA_ARGS begins with {word!r}, which is no flag")
                return []
            values.append(word)
            continue
        if found and values:
            found[-1] = (found[-1][0], value_of(values[0]) if len(values) == 1 else values)
            values = []
        if word == "--":
            break
        if not word.startswith("--"):
            refuse(f"EXTRA_ARGS has {word}: write the long form")
            return []
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if name.removeprefix("no-") in _RESERVED:
            refuse(f"EXTRA_ARGS has --{name}: {_RESERVED[name.removeprefix('no-')]}")
        off = name.startswith("no-") and not equals
        found.append((name.removeprefix("no-") if off else name, value_of(value) if equals else not off))
    return found


def value_of(text: str) -> Any:
    """Return a flag's value: a number, truth value or JSON object where the text is one, else the text."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


# Speculation -----------------------------------------------------------------------------------------------


def _speculation(given: Mapping[str, str], base: Recipe, wrong: _Wrong) -> tuple[dict[str, Any], str]:
    """Return the keys of speculation and the drafter."""
    drafter = _one(given, _DRAFTERS, wrong)
    tokens = _tokens(given, _TOKENS, wrong)
    mtp = _tokens(given, _MTP_TOKENS, wrong)
    method = given.get("SPEC_METHOD", "")
    if drafter.lower() in _OFF or (method.lower() in _OFF and method):
        if tokens or mtp or (drafter and drafter.lower() not in _OFF):
            wrong.add("speculation is off, and a drafter or a number of its tokens is set")
        return {}, ""
    if mtp and (drafter or tokens):
        wrong.add("the model's own MTP head and a drafter are both asked for")
        return {}, ""
    if mtp:
        return {"method": "mtp", "num_speculative_tokens": mtp}, ""
    keys, at = dict(base.speculative), drafter or base.drafter
    if drafter and not keys:
        keys = {"method": "dflash"}
    if method:
        keys["method"] = method
    if tokens:
        if not keys:
            wrong.add(
                "a number of speculative tokens is set, and no DRAFTER, SPEC_METHOD or RECIPE drafts them"
            )
        keys["num_speculative_tokens"] = tokens
    if keys and "num_speculative_tokens" not in keys:
        wrong.add("a drafter is set, and SPEC_TOKENS is not")
    return keys, at


def _tokens(given: Mapping[str, str], names: tuple[str, ...], wrong: _Wrong) -> int:
    text = _one(given, names, wrong)
    if not text:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_TOKENS:
        wrong.add(f"{text} is no number of speculative tokens from 1 to {_MOST_TOKENS}")
        return 0
    return int(text)


def _one(given: Mapping[str, str], names: tuple[str, ...], wrong: _Wrong) -> str:
    """Return the value of the variables *names*, which are one variable under several names."""
    found = {name: given[name] for name in names if name in given}
    if len(set(found.values())) > 1:
        wrong.add(f"{' and '.join(found)} are one variable under several names, and differ")
    return next(iter(found.values()), "")


def _turboquant(given: Mapping[str, str], wrong: _Wrong) -> None:
    enabled = given.get("ENABLE_TURBOQUANT", "").lower() in _ON
    if enabled or given.get("TQ_MODE", "off").lower() not in _OFF:
        wrong.add("the TurboQuant plug-in is not in this image; vLLM's own is KV_CACHE_DTYPE=turboquant_…")
