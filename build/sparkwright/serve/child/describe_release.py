r"""Report which options a release of vLLM has, and parse command lines with its own parser.

    python describe_release.py [--tree TREE --metadata FOLDER] --request request.json --report report.json

Runs inside the environment for probes on a TREE, or inside an environment that has vLLM on that one.
sparkwright itself is in neither: standard library only, apart from what vLLM imports. Compiled modules, which
a tree lacks and the parser does not need, are replaced by empty ones. The platform is CUDA's without a card,
since options differ between platforms, unless the release is one for the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import re
import sys
import types
import typing
import warnings
from pathlib import Path

_COMPILED = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch")
_PARSERS = tuple(f"vllm.entrypoints.{place}.cli_args" for place in ("openai", "launchers", "common"))
_READ = re.compile(
    r"""(?:environ(?:\.get|\.pop|\.setdefault)?\s*[\[(]|getenv\(|environ\s*,)\s*["']([A-Z][A-Z0-9_]{3,})["']"""
    r"""|["'](VLLM_[A-Z0-9_]+)["']\s+(?:not\s+)?in\s+os\.environ"""
)


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


def flags(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    """Return every option with its names, its choices and its deprecation."""
    dropped = getattr(parser, "_deprecated", set())
    # Spellings that help leaves out are still accepted.
    spelled: dict[int, list[str]] = {}
    for name, action in parser._option_string_actions.items():  # noqa: SLF001 - the same
        spelled.setdefault(id(action), []).append(name)
    found = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if not (names := spelled.get(id(action))):
            continue
        text = action.help or ""
        old = (
            action in dropped
            or getattr(action, "deprecated", False)
            or bool(re.match(r"\W*deprecated", text, re.IGNORECASE))
        )
        old = old or bool(re.search(r"is deprecated|will be removed", text.split("\n\n")[0][:200]))
        found.append(
            {
                "names": names,
                "choices": [str(choice) for choice in action.choices or ()],
                "deprecated": " ".join(text.split())[:300] if old else "",
            }
        )
    return found


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
    """Return names of attention backends and quantizations, KV types, and parsers of tools and reasoning."""
    cache = importlib.import_module("vllm.config.cache")
    backends = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    return {
        "attention-backends": sorted(backends.__members__),
        "kv-types": list(getattr(cache, "KV_CACHE_DTYPES", typing.get_args(cache.CacheDType))),
        "quantizations": list(
            importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
        ),
        "tool-parsers": importlib.import_module("vllm.tool_parsers").ToolParserManager.list_registered(),
        "reasoning-parsers": importlib.import_module(
            "vllm.reasoning"
        ).ReasoningParserManager.list_registered(),
    }


def variables(tree: Path) -> dict[str, list[str]]:
    """Return the variables that ``vllm.envs`` declares, and those that the code reads by name."""
    declared = sorted(importlib.import_module("vllm.envs").environment_variables)
    read = set()
    for path in tree.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "env" in text:
            read.update(name for pair in _READ.findall(text) for name in pair if name)
    return {"declared": declared, "read": sorted(read - set(declared))}


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, object]:
    """Return the parser's error on *arguments*, if any, and its warnings."""
    error, said = "", []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            parsed = parser.parse_args(arguments)
            parser.validate(parsed)
            error = refused_values(parsed)
        except RefusedError as refused:
            error = str(refused)
        except (Exception, SystemExit) as wrong:  # noqa: BLE001 - whatever it raises, vLLM would not start
            error = f"{type(wrong).__name__}: {wrong}"
        said = [str(one.message) for one in caught if "deprecat" in str(one.message).lower()]
    return {"error": error[:1500], "warnings": said}


def refused_values(parsed: argparse.Namespace) -> str:
    """Return pydantic's errors on values of the speculative and of the other configurations."""
    from pydantic import ValidationError

    config = importlib.import_module("vllm.config.speculative").SpeculativeConfig
    wrong = []
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
    report: dict[str, object] = {"parsed": [parse(parser, line) for line in request["commands"]]}
    if request["describe"]:
        tree = given.tree or Path(importlib.import_module("vllm").__file__).parent
        report["options"] = {
            "flags": flags(parser),
            "speculative": speculative(),
            "variables": variables(tree),
            **registries(),
        }
    given.report.write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
