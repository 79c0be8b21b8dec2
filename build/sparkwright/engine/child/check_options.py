r"""Report which options of recipes a release of vLLM does not have, or its own parser refuses.

    python check_options.py [--tree TREE --metadata FOLDER] --request request.json --report report.json

Runs inside the environment for probes on a TREE, or inside an environment that has vLLM on that one.
sparkwright itself is in neither: standard library only, apart from what vLLM imports. Compiled modules, which
a tree lacks and the parser does not need, are replaced by empty ones. The platform is CUDA's without a card,
since options differ between platforms, unless the release is one for the CPU.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import importlib.metadata
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_COMPILED = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch")
_PARSERS = tuple(f"vllm.entrypoints.{place}.cli_args" for place in ("openai", "launchers", "common"))
_READ = re.compile(
    r"""(?:environ(?:\.get|\.pop|\.setdefault)?\s*[\[(]|getenv\(|environ\s*,)\s*["']([A-Z][A-Z0-9_]{3,})["']"""
    r"""|["'](VLLM_[A-Z0-9_]+)["']\s+(?:not\s+)?in\s+os\.environ"""
)


# What registers more names that an option takes.
_PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}


class RefusedError(Exception):
    """The parser does not accept a command line."""


def prepare(tree: Path | None, metadata: Path | None) -> None:
    """Make the tree importable as vLLM on CUDA; without one, the installed vLLM on its own platform."""
    sys.path[:0] = [str(path) for path in (tree, metadata) if path is not None]
    for name in _COMPILED:
        sys.modules.setdefault(f"vllm.{name}", types.ModuleType(f"vllm.{name}"))
    if tree is None and "cpu" in importlib.metadata.version("vllm"):  # vLLM chooses by the same word
        return
    platforms = importlib.import_module("vllm.platforms")
    cuda = importlib.import_module("vllm.platforms.cuda")
    platforms._current_platform = cuda.NonNvmlCudaPlatform()  # noqa: SLF001 - upstream has no public setter


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``vllm serve``, which raises where it would end the process."""
    module = None
    for name in _PARSERS:
        try:
            module = importlib.import_module(name)
            break
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    if module is None:
        raise SystemExit(f"none of {', '.join(_PARSERS)} exists")
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser

    def refuse(message: str) -> typing.NoReturn:
        raise RefusedError(message)

    parser = module.make_arg_parser(flexible(prog="vllm serve"))
    parser.error = refuse
    parser.validate = module.validate_parsed_serve_args
    return parser


@dataclass
class Release:
    """The options, variables and registries of a vLLM release.

    Attributes:
        flags: choices of each option and what the release says of its end, by every spelling, without dashes.
        speculative: keys of ``--speculative-config``, each with the values it is limited to.
        registries: names that options take, by the option.
        variables: those that have an effect.
    """

    flags: dict[str, tuple[list[str], str]]
    variables: set[str]
    speculative: dict[str, list[str]]
    registries: dict[str, list[str]] = field(default_factory=dict)

    def flag(self, name: str) -> tuple[list[str], str] | None:
        """Return the option *name*; of ``config.key`` the option ``config``."""
        return self.flags.get(name) or self.flags.get(name.partition(".")[0])

    def values(self, name: str) -> list[str]:
        """Return the values that the option *name* takes, a flag or a speculative key; none for any."""
        if registered := self.registries.get(name.replace("_", "-")):
            return registered
        choices, _ = ([], "") if "." in name else self.flag(name) or ([], "")
        return self.speculative.get(name) or choices


def describe(parser: argparse.ArgumentParser, tree: Path) -> Release:
    """Return what the release in *tree* has, whose *parser* that is."""
    dropped = getattr(parser, "_deprecated", set())
    # Spellings that help leaves out are still accepted.
    options = parser._option_string_actions.items()  # noqa: SLF001 - argparse has no public list
    found = {}
    for name, action in options:
        text = action.help or ""
        old = (
            action in dropped
            or getattr(action, "deprecated", False)
            or re.match(r"\W*deprecated", text, re.IGNORECASE)
            or re.search(r"is deprecated|will be removed", text.split("\n\n")[0][:200])
        )
        said = " ".join(text.split())[:300] if old else ""
        found[name.removeprefix("--")] = [str(choice) for choice in action.choices or ()], said
    return Release(found, variables(tree), speculative(), registries())


# Problems --------------------------------------------------------------------------------------------------


def problems(
    release: Release, question: dict[str, typing.Any], refusal: Callable[[list[str]], str]
) -> list[dict[str, str]]:
    """Return what a recipe asks that *release* does not have.

    *refusal* returns the parser's error on a command line, empty if it accepts it. A parser tells its first
    alone, and is asked of the line without the options that are refused already.
    """
    flags = question["flags"]
    found = [*of_flags(release, flags), *of_speculative(release, question["speculative"])]
    for name in question["variables"]:
        if name not in release.variables:
            because = "no code of this release reads it: it would change nothing"
            found.append(problem("variable", name, because, nearest(name, sorted(release.variables))))
    if error := refusal(without(question["line"], found)):
        found.append(problem("parser", "vllm serve", error))
    dead = [name for name in question["shell"] if name not in release.variables]
    return [*found, *(problem("shell variable", name, "no code of this release reads it") for name in dead)]


def without(line: list[str], found: list[dict[str, str]]) -> list[str]:
    """Return a command *line* without the options that are *found* to be refused."""
    refused = {one["name"].split()[0] for one in found if one["kind"] in {"flag", "value"}}
    if any(one["kind"] == "speculative key" or one["name"].startswith("speculative ") for one in found):
        refused.add("--speculative-config")
    if "--tool-call-parser" in refused:
        refused.add("--enable-auto-tool-choice")  # which needs it
    left, skipped = [], False
    for word in line:
        skipped = word in refused if word.startswith("--") else skipped
        if not skipped:
            left.append(word)
    return left


def of_flags(release: Release, flags: dict[str, typing.Any]) -> Iterator[dict[str, str]]:
    """Yield flags that the release has not, and values that they do not take."""
    for name, value in flags.items():
        spelled = f"no-{name}" if value is False else name
        if (flag := release.flag(spelled)) is None:
            yield unknown("flag", f"--{spelled}", spelled, release.flags)
            continue
        if flag[1]:
            yield problem("deprecated", f"--{name}", flag[1])
        if _PLUGINS.get(name, "") not in flags:
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, (bool, dict)):
                    yield from of_value(f"--{name}", str(one), release.values(name))


def of_speculative(release: Release, config: dict[str, typing.Any]) -> Iterator[dict[str, str]]:
    """Yield speculative keys that the release has not, and values that they do not take."""
    for key, value in config.items():
        if key not in release.speculative:
            yield unknown("speculative key", key, key, release.speculative)
        elif isinstance(value, str):
            yield from of_value(f"speculative {key}", value, release.values(key))


def of_value(shown: str, value: str, known: list[str]) -> Iterator[dict[str, str]]:
    """Yield a problem where *value* is not among those *known*, if there are any."""
    # Names of backends are read in any case, and `auto` names none.
    backend = "attention" in shown and "backend" in shown
    if known and not (value.upper() in {*known, "AUTO"} if backend else value in known):
        because = "this release does not take that value"
        yield problem("value", f"{shown} {value}", because, nearest(value, known))


def unknown(kind: str, shown: str, name: str, known: Iterable[str]) -> dict[str, str]:
    """Return the problem of a name that is not among those *known*."""
    return problem(kind, shown, "this release has none of that name", nearest(name, known))


def problem(kind: str, name: str, because: str, near: str = "") -> dict[str, str]:
    """Return a problem as `sparkwright.recipes.release_options.Problem` has it."""
    return {"kind": kind, "name": name, "because": because, "nearest": near}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the nearest name; empty where none is near."""
    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""


# What the release has --------------------------------------------------------------------------------------


def literals(annotation: object) -> list[str]:
    """Return the strings that *annotation* lists, or none if it takes anything else too."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(value) for value in typing.get_args(annotation)]
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    if not inner or typing.get_origin(annotation) in {list, dict, tuple, set}:
        return []
    nested = [literals(one) for one in inner]
    return [value for values in nested for value in values] if all(nested) else []


def speculative() -> dict[str, list[str]]:
    """Return the keys of the speculative configuration, each with the values it is limited to."""
    config = importlib.import_module("vllm.config.speculative").SpeculativeConfig
    fields = config.__pydantic_fields__
    return {name: literals(field.annotation) for name, field in fields.items() if field.init is not False}


def registries() -> dict[str, list[str]]:
    """Return names of attention backends, quantizations, KV types, loaders, and parsers of answers."""
    cache = importlib.import_module("vllm.config.cache")
    backends = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    layers = importlib.import_module("vllm.model_executor.layers.quantization")
    tools = importlib.import_module("vllm.tool_parsers").ToolParserManager
    reasoning = importlib.import_module("vllm.reasoning").ReasoningParserManager
    return {
        "attention-backend": sorted(backends.__members__),
        "kv-cache-dtype": list(getattr(cache, "KV_CACHE_DTYPES", typing.get_args(cache.CacheDType))),
        "quantization": list(layers.QUANTIZATION_METHODS),
        "load-format": load_formats(),
        "tool-call-parser": tools.list_registered(),
        "reasoning-parser": reasoning.list_registered(),
    }


def load_formats() -> list[str]:
    """Return the formats of weights that the loaders' source lists; its import needs a card."""
    package = Path(importlib.import_module("vllm").__file__ or "").parent
    source = (package / "model_executor/model_loader/__init__.py").read_text(encoding="utf-8")
    listed = re.search(r"^LoadFormats = Literal\[(.*?)\]", source, re.MULTILINE | re.DOTALL)
    return re.findall(r'"(\w+)"', listed[1]) if listed else []


def variables(tree: Path) -> set[str]:
    """Return the variables that ``vllm.envs`` declares, and those that the code reads by name."""
    found = set(importlib.import_module("vllm.envs").environment_variables)
    for path in tree.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "env" in text:
            found.update(name for pair in _READ.findall(text) for name in pair if name)
    return found


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    """Return the parser's error on *arguments*; empty if it accepts them."""
    error = ""
    try:
        parsed = parser.parse_args(arguments)
        parser.validate(parsed)
        error = refused_values(parsed)
    except RefusedError as refused:
        error = str(refused)
    except (Exception, SystemExit) as wrong:  # noqa: BLE001 - whatever it raises, vLLM would not start
        error = f"{type(wrong).__name__}: {wrong}"
    return error[:1500]


def refused_values(parsed: argparse.Namespace) -> str:
    """Return pydantic's errors on values of all configurations, and those on `unopened` files."""
    from pydantic import ValidationError

    config = importlib.import_module("vllm.config.speculative").SpeculativeConfig
    wrong = unopened(parsed)
    given = getattr(parsed, "speculative_config", None) or {}
    for name, value in given.items():
        if name != "attention_backend":  # backends are compared by name
            wrong += [f"speculative-config: {name}: {one}" for one in misfits(config, name, value)]
    # Each engine argument is a field of one of these, which limits what it may be once vLLM starts.
    for kind in ("cache", "model", "parallel", "scheduler"):
        module = importlib.import_module(f"vllm.config.{kind}")
        config = getattr(module, f"{kind.capitalize()}Config")
        for name, value in vars(parsed).items():
            if isinstance(value, (int, float)):
                wrong += [f"--{name.replace('_', '-')}: {one}" for one in misfits(config, name, value)]
    try:
        importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(parsed)
    except (ValidationError, ValueError, TypeError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    return "; ".join(wrong)


def unopened(parsed: argparse.Namespace) -> list[str]:
    """Return an error on each file that the parser takes, and vLLM cannot open once the model is loaded."""
    wrong = []
    for name in ("chat_template", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = getattr(parsed, name, None) or ""
        # The parser itself looks for a template, which may also be written out or be one of vLLM's own.
        there = os.path.exists(path)  # noqa: PTH110 - pathlib raises where a template is too long for a name
        if (path and name != "chat_template" and not there) or (there and Path(path).is_dir()):
            wrong.append(f"--{name.replace('_', '-')}: {path} is no file")
    return wrong


def misfits(config: type, name: str, value: object) -> list[str]:
    """Return pydantic's errors on *value* as the field *name* of *config*; none where it has none."""
    from pydantic import TypeAdapter, ValidationError

    field = config.__pydantic_fields__.get(name)
    if field is None:
        return []
    try:
        TypeAdapter(typing.Annotated[field.annotation, field]).validate_python(value)
    except ValidationError as error:
        return [str(one["msg"]) for one in error.errors()]
    return []


def main() -> int:
    """Answer the request."""
    arguments = argparse.ArgumentParser(description=__doc__)
    for name in ("--tree", "--metadata", "--request", "--report"):
        arguments.add_argument(name, type=Path, required=name in {"--request", "--report"})
    given = arguments.parse_args()
    request = json.loads(given.request.read_text(encoding="utf-8"))
    prepare(given.tree, given.metadata)
    parser = make_parser()
    tree = given.tree or Path(importlib.import_module("vllm").__file__).parent
    release = describe(parser, tree)
    report = [problems(release, one, functools.partial(parse, parser)) for one in request]
    given.report.write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
