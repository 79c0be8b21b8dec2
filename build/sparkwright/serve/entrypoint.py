"""``python -m sparkwright.serve.entrypoint``: the entry point of the image.

Without arguments it writes the recipe that the container's variables describe, and is replaced by
`sparkwright serve`, so that signals reach that. Arguments that begin with ``--`` are added to EXTRA_ARGS;
others are a command to run.

The variables are those that users of existing images know; ``variables.toml`` has each. All faults are
collected and reported in one message. Unknown variables that begin like known ones, such as a misspelt
``DFLASH_DRAFTR``, are refused: ignored, they would leave something else served than was asked for.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import ConfigError, SparkwrightError
from sparkwright.recipes import PORT, Recipe, served_recipe
from sparkwright.recipes.write import recipe_text
from sparkwright.serve.settings import value_of

RUNTIME = Path("/run/sparkwright")
FOLDER = "SPARKWRIGHT_RUN"
_KEYS = ("VLLM_API_KEY", "API_KEY")
_KEY_FILES = ("API_KEY_FILE", "VLLM_API_KEY_FILE")
_MOST_PORT = 65_535
_OFF = frozenset({"off", "none", "no", "false", "0", "disabled"})
_ON = frozenset({"1", "on", "true", "yes"})
_OURS = re.compile(
    r"(?:DFLASH|SPEC|MTP|DRAFTER|DRAFT|TQ|MAX_NUM|MAX_MODEL|GPU_MEMORY|KV_CACHE|TENSOR_PARALLEL)_?"
)
_MOST_TOKENS = 64
_NUMBER = re.compile(r"-?\d+")


# The program -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EntryPlan:
    """The program that replaces the entry point, and the recipe and key from variables to write first."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    recipe: Recipe | None = None
    key: str = field(default="", repr=False)


def plan_entry(
    environment: Mapping[str, str], arguments: Sequence[str] = (), *, runtime: Path = RUNTIME
) -> EntryPlan:
    """Return the program for a container; recipe, key and state are kept in the folder *runtime*.

    Raises:
        ConfigError: variables are unknown, wrong or contradict each other.
        UnknownNameError: there is no such recipe.
    """
    # The variables of the image are not those of the programs in it; vLLM reads its own by other names.
    rest = {name: value for name, value in environment.items() if name not in known_names()}
    if arguments and not arguments[0].startswith("-"):
        return EntryPlan(tuple(arguments), dict(environment))
    extra = " ".join((environment.get("EXTRA_ARGS", ""), shlex.join(arguments)))
    recipe = recipe_of({**environment, "EXTRA_ARGS": extra})
    key, key_file = _key(environment, runtime)
    state = environment.get("SPARKWRIGHT_STATE") or str(runtime / "state.json")
    argv = ["sparkwright", "serve", str(runtime / "recipe.toml"), "--watch", "--state", state]
    argv += ["--host", environment.get("HOST") or "0.0.0.0"]  # noqa: S104 - the container's own network
    argv += ["--port", _port(environment.get("PORT") or str(PORT))]
    argv += ["--python", environment.get("VLLM_PYTHON") or sys.executable]
    if key_file:
        argv += ["--api-key-file", key_file]
    return EntryPlan(tuple(argv), rest, recipe, key)


def write_entry(plan: EntryPlan, runtime: Path = RUNTIME) -> None:
    """Write the recipe and the key of *plan* into *runtime*; the key with mode 600."""
    if plan.recipe is None:
        return
    runtime.mkdir(parents=True, exist_ok=True)
    # With its use applied; its reasons are of what the variables may have changed.
    served = msgspec.structs.replace(plan.recipe, uses={}, why={})
    (runtime / "recipe.toml").write_text(recipe_text(served), encoding="utf-8")
    if plan.key:
        path = runtime / "api-key"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(plan.key + "\n")


def _key(environment: Mapping[str, str], runtime: Path) -> tuple[str, str]:
    """Return the key to write, and the path of the file that holds it; both empty without a key.

    Raises:
        ConfigError: several keys are given.
    """
    named = [name for name in (*_KEY_FILES, *_KEYS) if environment.get(name)]
    if len({environment[name] for name in named}) > 1:
        raise ConfigError(
            "it is not clear which API key to take",
            because=f"{' and '.join(named)} are set",
            next_step="keep API_KEY_FILE, the path of a file of mode 600",
        )
    if not named:
        return "", ""
    if named[0] in _KEYS:
        return environment[named[0]], str(runtime / "api-key")
    return "", environment[named[0]]


def _port(text: str) -> str:
    if text.isdecimal() and 1 <= int(text) <= _MOST_PORT:
        return text
    raise ConfigError(f"PORT={text} is no port", next_step=f"give a number from 1 to {_MOST_PORT}")


# The recipe of a container ---------------------------------------------------------------------------------


class Variable(Model, frozen=True):
    """A variable; see the head of ``variables.toml``."""

    names: tuple[str, ...] = ()
    flag: str = ""
    least: float = 0
    most: float = 0
    means: str = ""


class _Table(Model, frozen=True):
    format: Literal[1]
    reserved: dict[str, str]
    variables: dict[str, Variable]


@functools.cache
def _table() -> _Table:
    data = (resources.files("sparkwright.serve") / "variables.toml").read_bytes()
    return parse_toml(data, _Table, newest_format=1, name="variables.toml")


def variables() -> Mapping[str, Variable]:
    """Return every variable by its first name."""
    return _table().variables


@functools.cache
def known_names() -> frozenset[str]:
    """Return every name of every variable."""
    return frozenset(name for first, one in variables().items() for name in (first, *one.names))


def recipe_of(environment: Mapping[str, str]) -> Recipe:
    """Return the recipe that the variables of a container describe.

    ``RECIPE`` is the base, and the other variables change it. Without it, ``MODEL_PATH`` is served with
    vLLM's defaults and the flags that are set. Empty variables count as unset.

    Raises:
        ConfigError: variables are unknown, wrong or contradict each other; all are named in one message.
        UnknownNameError: there is no such recipe.
    """
    return _Container(environment).recipe()


class _Container:
    """A container's variables, by their first names, and what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        stated = {name: value.strip() for name, value in environment.items() if value.strip()}
        self.wrong = [
            f"{name} is not known; {_closest(name)}"
            for name in sorted(stated)
            if name not in known_names() and _OURS.match(name)
        ]
        self.given: dict[str, str] = {}
        for first, one in variables().items():
            found = {name: stated[name] for name in (first, *one.names) if name in stated}
            if len(set(found.values())) > 1:
                self.wrong.append(f"{' and '.join(found)} are one variable under several names, and differ")
            if found:
                self.given[first] = next(iter(found.values()))

    def get(self, name: str) -> str:
        return self.given.get(name, "")

    def recipe(self) -> Recipe:
        base, flags = self.base(), self.flags()
        speculative, drafter = self.speculation(base)
        if self.get("ENABLE_TURBOQUANT").lower() in _ON or self.get("TQ_MODE").lower() not in {"", *_OFF}:
            self.wrong.append(
                "the TurboQuant plug-in is not in this image; vLLM's own is KV_CACHE_DTYPE=turboquant_…"
            )
        if self.wrong:
            raise ConfigError(
                "the container's variables cannot be served as they are",
                because="\n".join(self.wrong),
                next_step="correct them; docs/service.md lists every variable",
            )
        return msgspec.structs.replace(
            base,
            model=self.get("MODEL_PATH") or base.model,
            drafter=drafter,
            speculative=speculative,
            flags={**base.flags, **flags},
        )

    def base(self) -> Recipe:
        if "RECIPE" in self.given:
            return served_recipe(self.get("RECIPE"), self.get("USE"))
        model = self.get("MODEL_PATH")
        if not model:
            self.wrong.append("neither RECIPE nor MODEL_PATH is set")
        if "USE" in self.given:
            self.wrong.append("USE is of a recipe, and RECIPE is not set")
        name = PurePosixPath(model).name or "model"
        return Recipe(format=1, name=name, title=f"{model}, by the container's variables", model=model)

    def flags(self) -> dict[str, Any]:
        """Return the flags of all variables; two that set one flag differently are refused."""
        found: dict[str, Any] = {}
        source: dict[str, str] = {}
        for flag, value, origin in self.stated_flags():
            if flag in found and found[flag] != value:
                self.wrong.append(f"{source[flag]} sets {flag} to {found[flag]}, and {origin} to {value}")
            found[flag], source[flag] = value, origin
        return found

    def stated_flags(self) -> Iterator[tuple[str, Any, str]]:
        """Yield flag, value and variable."""
        for name, one in variables().items():
            if one.flag and name in self.given:
                yield one.flag, self.ranged(name, one), name
        if "TOOL_CALL_PARSER" in self.given:
            yield "enable-auto-tool-choice", True, "TOOL_CALL_PARSER"
        try:
            pairs = [word.split("=", 1) for word in json.loads(self.given.get("SETTINGS", "[]"))]
            for name, value in pairs:
                yield name.lstrip("-").replace("_", "-"), value_of(value), "SETTINGS"
        except (ValueError, AttributeError, TypeError):
            self.wrong.append("SETTINGS is no JSON list of FLAG=VALUE")
        for flag, value in self.extra_arguments():
            yield flag, value, "EXTRA_ARGS"

    def ranged(self, name: str, variable: Variable) -> Any:
        value = value_of(self.get(name))
        whole = variable.most > 1
        fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if variable.most and not (fits and variable.least <= value <= variable.most):
            kind, limits = "whole number" if whole else "share", f"{variable.least:g} to {variable.most:g}"
            self.wrong.append(f"{name}={self.get(name)} is no {kind} from {limits}")
        return value

    def extra_arguments(self) -> list[tuple[str, Any]]:
        """Return the flags in EXTRA_ARGS, arguments of ``vllm serve`` as a shell has them."""
        try:
            words = shlex.split(self.get("EXTRA_ARGS"))
        except ValueError as error:
            self.wrong.append(f"EXTRA_ARGS cannot be split into words: {error}")
            return []
        found: list[tuple[str, Any]] = []
        values: list[str] = []
        for word in [*words, "--"]:
            if not word.startswith("-") or _NUMBER.fullmatch(word):
                if not found:
                    self.wrong.append(f"EXTRA_ARGS begins with {word!r}, which is no flag")
                    return []
                values.append(word)
                continue
            if found and values:
                found[-1] = (found[-1][0], value_of(values[0]) if len(values) == 1 else values)
                values = []
            if word == "--":
                break
            if not word.startswith("--"):
                self.wrong.append(f"EXTRA_ARGS has {word}: write the long form")
                return []
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            plain = name.removeprefix("no-")
            if instead := _table().reserved.get(plain):
                self.wrong.append(f"EXTRA_ARGS has --{name}: {instead}")
            off = name.startswith("no-") and not equals
            found.append((plain if off else name, value_of(value) if equals else not off))
        return found

    def speculation(self, base: Recipe) -> tuple[dict[str, Any], str]:
        """Return the keys of speculation and the drafter."""
        drafter, method = self.get("DRAFTER"), self.get("SPEC_METHOD")
        tokens, mtp = self.tokens("SPEC_TOKENS"), self.tokens("MTP_SPEC_TOKENS")
        if drafter.lower() in _OFF or method.lower() in _OFF:
            if tokens or mtp or (drafter and drafter.lower() not in _OFF):
                self.wrong.append("speculation is off, and a drafter or a number of its tokens is set")
            return {}, ""
        if mtp:
            if drafter or tokens:
                self.wrong.append("the model's own MTP head and a drafter are both asked for")
            return {"method": "mtp", "num_speculative_tokens": mtp}, ""
        keys = dict(base.speculative) or ({"method": "dflash"} if drafter else {})
        if method:
            keys["method"] = method
        if tokens and not keys:
            self.wrong.append(
                "a number of speculative tokens is set, and no DRAFTER, SPEC_METHOD or RECIPE drafts them"
            )
        if tokens:
            keys["num_speculative_tokens"] = tokens
        if keys and "num_speculative_tokens" not in keys:
            self.wrong.append("a drafter is set, and SPEC_TOKENS is not")
        return keys, drafter or base.drafter

    def tokens(self, name: str) -> int:
        text = self.get(name)
        if text and not (text.isdecimal() and 1 <= int(text) <= _MOST_TOKENS):
            self.wrong.append(f"{text} is no number of speculative tokens from 1 to {_MOST_TOKENS}")
            return 0
        return int(text or 0)


def _closest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(known_names()), n=1)
    return f"did you mean {close[0]}?" if close else "leave it out"


def main(arguments: Sequence[str]) -> int:
    """Run the program that is asked for in place of this one; return a status only for an error."""
    from sparkwright.base.process import replace_process

    try:
        runtime = Path(os.environ.get(FOLDER) or RUNTIME)
        plan = plan_entry(os.environ, arguments, runtime=runtime)
        write_entry(plan, runtime)
        replace_process(plan.argv, plan.environment)
    except SparkwrightError as error:
        lines = [f"error: {error.what}", *(f"  {line}" for line in error.because.splitlines())]
        lines += [f"  next: {error.next_step}"] if error.next_step else []
        os.write(2, ("\n".join(lines) + "\n").encode())
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
