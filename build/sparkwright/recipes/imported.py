"""A recipe from a command, a compose file, or a recipe of another tool that runs ``vllm serve``.

Read `import_recipe` first. The text is a command line or a script with one (``vllm serve``, the server's
module, ``docker run`` of an image that runs either), a compose file, or YAML with a ``command`` and
``defaults``, as spark-vllm-docker and sparkrun have it; `commands` finds the command. What a recipe does not
hold is left out, and a `Remark` gives the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import structs

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ConfigError
from sparkwright.recipes.commands import (
    LONGEST,
    SECRET,
    SECRET_VALUE,
    UNKNOWN,
    Remark,
    ServeCommand,
    commands_of_script,
)
from sparkwright.recipes.recipe import Recipe, refused_variable
from sparkwright.recipes.release_options import Problem
from sparkwright.recipes.yaml_commands import commands_of_yaml, read_yaml

_ALIASES = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
    "-O": "optimization-level",
    "-cc": "compilation-config",
    "-ac": "attention-config",
    "-sc": "speculative-config",
    "-n": "nnodes",
    "-r": "node-rank",
}
# Flags that `serve` sets at each start, and the reason why a recipe has none of them.
_AT_START = {
    "host": "it is stated at each start: --host",
    "port": "it is stated at each start: --port",
    "api-key": "a recipe holds no secrets: VLLM_API_KEY or --api-key at each start",
    "nnodes": "serve adds it for a recipe of two machines",
    "node-rank": "serve adds it for a recipe of two machines",
    "master-addr": "serve adds it for a recipe of two machines",
    "master-port": "serve adds it for a recipe of two machines",
    "headless": "serve adds it for a recipe of two machines",
    "distributed-executor-backend": "vLLM chooses it; two machines need no Ray",
    "download-dir": "models are fetched into the user's own cache",
}
# Variables that are of the build, or that serve sets by the machine.
_OF_THE_MACHINE = {
    "MAX_JOBS": "serve sets it by the memory that is available",
    "TORCH_CUDA_ARCH_LIST": "it is of a build; the wheel is built",
    "FLASHINFER_CUDA_ARCH_LIST": "FlashInfer reads the card's own",
    "CUDA_HOME": "serve finds the toolkit",
    "HF_HOME": "it is the user's own, at each start",
    "HF_HUB_OFFLINE": "serve has --offline",
    "CUDA_VISIBLE_DEVICES": "a Spark has one card",
    "NVIDIA_VISIBLE_DEVICES": "it is of containers",
}
_DANGEROUS = {
    "trust-remote-code": "code of the model's repository runs here",
    "allowed-local-media-path": "clients can read files of that folder",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "what the server's processes send each other may run code",
    "VLLM_SERVER_DEV_MODE": "clients can stop the server, and call functions in it",
}
_GIVE = "give one 'vllm serve …', 'docker run …', compose file, or recipe of another tool"
_ELSEWHERE = "its value is set elsewhere"
# Flags without a value, behind which the model may stand.
_ALONE = re.compile(r"(?:no|enable|disable)-|enforce-eager$|trust-remote-code$|async-scheduling$")
_NO_PATHS = frozenset({"allowed-local-media-path", "disable-access-log-for-endpoints", "root-path"})
_HOME = re.compile(r"\$(?:HOME|\{HOME\})(?=/)")
_CLASH = "the option before its dot was given a value of its own"
_LONGEST_NAME = 64
_MOST_UTILIZATION = 0.9
_MOST_NODES = 2
_MOST_BRACKETS = 200  # of JSON that becomes a table


def import_recipe(text: str, name: str = "") -> tuple[Recipe, tuple[Remark, ...]]:
    """Return the recipe that *text* holds, and what was left out of it or deserves a warning.

    Raises:
        ConfigError: it holds no command that serves a model, or several.
    """
    if len(text) > LONGEST:
        raise ConfigError("this is no command", because=f"it has {len(text):,} characters", next_step=_GIVE)
    data = read_yaml(text)
    try:
        found = list(commands_of_script(text, {})) if data is None else commands_of_yaml(data)
    except ValueError as error:
        raise ConfigError(
            "this cannot be read as a command", because=f"{error} in it", next_step=_GIVE
        ) from error
    if len(found) != 1:
        raise ConfigError(
            "no recipe can be made of this" if not found else "it is not clear which server is meant",
            because=f"there are {len(found)} commands that serve a model",
            next_step=_GIVE,
        )
    return _recipe(found[0], name, data)


def without_dead(recipe: Recipe, problems: Iterable[Problem]) -> tuple[Recipe, tuple[Remark, ...]]:
    """Return *recipe* without options that a release lacks, and what is wrong with the others."""
    left = {
        "flag": dict(recipe.flags),
        "variable": dict(recipe.environment),
        "speculative key": dict(recipe.speculative),
    }
    remarks = []
    for one in problems:
        known, name = left.get(one.kind, {}), one.name.removeprefix("--")
        dead = known.pop(name if name in known else name.removeprefix("no-"), None) is not None
        if dead or one.kind not in {"deprecated", "shell variable"}:
            remarks.append(Remark("left out" if dead else "wrong", one.name, _because(one)))
    flags, environment, speculative = left.values()
    changed = structs.replace(recipe, flags=flags, environment=environment, speculative=speculative)
    return changed, tuple(remarks)


def _because(problem: Problem) -> str:
    return f"{problem.because}; use {problem.instead}" if problem.instead else problem.because


# The recipe ---------------------------------------------------------------------------------------------


def _recipe(
    command: ServeCommand, name: str, data: Mapping[str, Any] | None
) -> tuple[Recipe, tuple[Remark, ...]]:
    remarks = list(command.remarks)
    flags, positional = _flags(command.words, remarks)
    model = _HOME.sub("~", str(flags.pop("model", positional[0] if positional else "")))
    if SECRET_VALUE.search(model):
        raise ConfigError(
            "the model's address holds a secret",
            because="recipes are shown and passed on",
            next_step="write the address without it; give the key in the shell that starts the server",
        )
    if not re.match(r"[\w/.~]*\w", model) or UNKNOWN.search(model):
        raise ConfigError(
            "the command names no model",
            because=f"it is {model}, which stands for one" if model else "there is none behind 'serve'",
            next_step="write the model right behind 'serve'",
        )
    remarks += [
        Remark("left out", word, _ELSEWHERE if UNKNOWN.search(word) else "it is no option of vllm serve")
        for word in positional[1:]
    ]
    model = _on_host(model, command, remarks)
    speculative, drafter = _speculation(flags, command, remarks)
    exposed = str(flags.get("host", "")) in {"0.0.0.0", "::"} and "api-key" not in flags  # noqa: S104 - compared
    for flag in [flag for flag in _AT_START if flag in flags]:
        value = "" if flag == "api-key" else f" {flags[flag]}"
        del flags[flag]
        remarks.append(Remark("left out", f"--{flag}{value}", _AT_START[flag]))
    secrets = [*_without_secrets(flags, "--"), *_without_secrets(speculative, "")]
    remarks += [Remark("left out", secret, _AT_START["api-key"]) for secret in secrets]
    for flag in [flag for flag, value in flags.items() if UNKNOWN.search(str(value))]:
        remarks.append(Remark("left out", f"--{flag} {flags.pop(flag)}", _ELSEWHERE))
    flags = {flag: _paths(flag, value, command, remarks) for flag, value in flags.items()}
    nodes = _nodes(flags)
    environment = dict(_environment(command.environment, remarks))
    if exposed and "VLLM_API_KEY" not in command.environment:
        remarks.append(
            Remark("dangerous", "--host 0.0.0.0", "everyone in the network reaches it without a key")
        )
    for option, why in _DANGEROUS.items():
        if flags.get(option, False) or environment.get(option, "0") != "0":
            remarks.append(Remark("dangerous", f"--{option}" if option in flags else option, why))
    share = flags.get("gpu-memory-utilization")
    if isinstance(share, float | int) and share > _MOST_UTILIZATION:
        why = "host and card share the memory: the machine freezes where nothing is left for the host"
        remarks.append(Remark("dangerous", f"--gpu-memory-utilization {share}", why))
    served = flags.get("served-model-name")
    first = next(iter(served), "") if isinstance(served, list) else served
    stated = {key: SECRET_VALUE.sub("…", str((data or {}).get(key) or "")) for key in ("name", "description")}
    named = name or stated["name"] or str(first or model.rstrip("/").rpartition("/")[2])
    word = file_name(named) or "imported"
    recipe = Recipe(
        format=1,
        name=word,
        title=stated["description"] or named,
        model=model,
        drafter=drafter,
        flags=flags,
        environment=environment,
        speculative=speculative,
        nodes=nodes,
    )
    return recipe, tuple(remarks)


def file_name(text: str) -> str:
    """Return *text* as the name of a recipe, which is that of a file too."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:_LONGEST_NAME].rstrip("-.")


def _flags(words: Sequence[str], remarks: list[Remark]) -> tuple[dict[str, Any], list[str]]:
    """Return flags by name, dotted ones as tables, and words that are none, such as the model."""
    flags: dict[str, Any] = {}
    positional: list[str] = []
    for option, values in _options(words):
        own = values[:1] if option and UNKNOWN.search("".join(values[1:2])) else values
        positional += values[len(own) :] if option else values  # behind a value, an unknown is more options
        if not option:
            continue
        name, value = _flag(option, own, remarks)
        last = value[-1] if isinstance(value, list) and not value[2:] else value if _ALONE.match(name) else ""
        if not positional and "model" not in flags and "/" in str(last):
            positional.append(str(last))  # the model behind an option
            value = value[0] if isinstance(value, list) else True
        table, dot, key = name.partition(".")
        if not dot:
            flags[name] = value
        elif isinstance(inner := flags.setdefault(table, {}), dict):
            inner[key.replace("-", "_")] = value
        else:
            remarks.append(Remark("left out", f"--{name}", _CLASH))
    return flags, positional


def _options(words: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """Yield each option with the words behind it; those before the first, or behind an =, with none."""
    option, values = "", list[str]()
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            yield option, values
            option, equals, stated = word.partition("=")
            if equals:
                yield option, [stated]
                option = ""
            values = []
        else:
            values.append(word)
    yield option, values


def _flag(option: str, values: list[str], remarks: list[Remark]) -> tuple[str, Any]:
    """Return the name and value of an *option*."""
    head, dot, key = option.partition(".")
    name = _ALIASES.get(head) or head.lstrip("-").replace("_", "-")
    if re.fullmatch(r"-O\d", option):
        name, values = "optimization-level", [option[2:]]
    value: Any = True if not values else _value(values[0]) if len(values) == 1 else [*map(_value, values)]
    if head == "-O" and (dot or isinstance(value, dict)):
        name = "compilation-config"
        remarks.append(Remark("wrong", option, f"-O is the level alone by now: it is kept as --{name}"))
    if name.startswith("no-") and value is True:
        name, value = name.removeprefix("no-"), False
    return name + dot + key, value


def _without_secrets(values: dict[str, Any], before: str) -> list[str]:
    """Take secrets out of *values* and tables in them; return their names."""
    found = []
    for name, value in list(values.items()):
        # Several of a token's name are tokens of text.
        plain = isinstance(value, bool) or (isinstance(value, list) and name.endswith("token"))
        secret = SECRET.search(name) and not plain
        if secret or (not isinstance(value, dict) and SECRET_VALUE.search(str(value))):
            del values[name]
            found.append(f"{before}{name}")
        else:
            for one in _tables(value):
                found += _without_secrets(one, f"{before}{name}.")
    return found


def _tables(value: Any) -> Iterable[dict[str, Any]]:
    """Yield *value* if it is a table, or the tables that are in the lists that it is."""
    if isinstance(value, dict):
        yield value
    for one in value if isinstance(value, list) else ():
        yield from _tables(one)


def _value(word: str) -> Any:
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    if re.fullmatch(r"-?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"-?\d*\.\d+(?:e-?\d+)?", word) and math.isfinite(number := float(word)):
        return number
    if word[:1] in {"{", "["} and len(re.findall(r"[{\[]", word)) <= _MOST_BRACKETS:
        try:
            found = decode_json(word, Any)  # knows no infinite numbers
        except msgspec.MsgspecError:
            return word
        # A list of JSON is one word to vLLM, and a list of a recipe is several.
        plain = isinstance(found, list) and not any(isinstance(one, dict) for one in found)
        return word if plain else found
    return word


def _on_host(path: str, command: ServeCommand, remarks: list[Remark]) -> str:
    """Return a folder of the container as the host's, where a volume says which."""
    for place, source in sorted(command.mounts.items(), key=lambda one: -len(one[0])):
        if place and (path == place or path.startswith(f"{place}/")):
            path = _HOME.sub("~", source + path[len(place) :])
            if UNKNOWN.search(path):
                remarks.append(Remark("wrong", path, "the folder of the host is set elsewhere: write it"))
            return path
    if path.startswith("/") and command.contained:
        remarks.append(Remark("wrong", path, "it is a place in the container, and no volume holds it"))
    return path


def _paths(flag: str, value: Any, command: ServeCommand, remarks: list[Remark]) -> Any:
    """Return the *value* of a flag with paths of the host; a relative file is said to be wrong."""
    if isinstance(value, list):
        return [_paths(flag, one, command, remarks) for one in value]
    if not isinstance(value, str) or flag in _NO_PATHS:
        return value
    name, equals, path = value.rpartition("=")  # of a LoRA module
    path = _on_host(path, command, remarks) if path.startswith("/") else path
    if re.fullmatch(r"[^/\s]\S*\.(?:jinja2?|py)", path):
        why = "the server starts in a folder of its own: give the whole path"
        remarks.append(Remark("wrong", f"--{flag} {path}", why))
    return name + equals + path


def _speculation(
    flags: dict[str, Any], command: ServeCommand, remarks: list[Remark]
) -> tuple[dict[str, Any], str]:
    """Take the speculative configuration out of *flags*; return it and the drafter."""
    speculative = flags.pop("speculative-config", {})
    unknown = UNKNOWN.search(str(speculative))
    if unknown or not isinstance(speculative, dict):
        why = _ELSEWHERE if unknown else "it is no JSON"
        remarks.append(Remark("left out", "--speculative-config", why))
        speculative = {}
    drafter = str(speculative.pop("model", ""))
    return speculative, _on_host(drafter, command, remarks) if drafter else ""


def _nodes(flags: dict[str, Any]) -> Literal[1, 2]:
    """Return the machines that the parallel sizes in *flags* need, one card each.

    Raises:
        ConfigError: they are more than two.
    """
    names = [f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data")]
    cards = math.prod(size for name in names if isinstance(size := flags.get(name), int))
    if cards > _MOST_NODES:
        raise ConfigError(
            f"it needs {cards} machines",
            because="a Spark has one card, and recipes are for one or two machines",
            next_step="take a smaller checkpoint or quantization",
        )
    for name in names:
        if flags.get(name) == 1:
            del flags[name]
    return 2 if cards == _MOST_NODES else 1


def _environment(variables: Mapping[str, str], remarks: list[Remark]) -> Iterable[tuple[str, str]]:
    """Yield the variables that a recipe may hold."""
    for name, value in variables.items():
        if SECRET.search(name) or SECRET_VALUE.search(value):
            why = "a recipe holds no secrets: set it in the shell that starts the server"
            remarks.append(Remark("left out", name, why))
        elif refused_variable(name):
            remarks.append(Remark("dangerous", name, "it has every program load code, and is left out"))
        elif name in _OF_THE_MACHINE:
            remarks.append(Remark("left out", f"{name}={value}", _OF_THE_MACHINE[name]))
        elif UNKNOWN.search(value):
            remarks.append(Remark("left out", f"{name}={value}", _ELSEWHERE))
        else:
            yield name, value
