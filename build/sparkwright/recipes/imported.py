"""A recipe from a command, a compose file, or a recipe of another tool that runs ``vllm serve``.

Read `import_recipe` first. The text is a command line or a script with one (``vllm serve``, the server's
module, ``docker run`` of an image that runs either), a compose file, or YAML with a ``command`` and
``defaults``, as spark-vllm-docker and sparkrun have it. Nothing of it is run. What a recipe does not hold is
left out and said, each with the reason.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import structs

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import Recipe, refused_variable
from sparkwright.recipes.release_options import Problem

Level = Literal["left out", "wrong", "dangerous"]

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
# Flags that decide where a server runs and how it is reached, which each start states anew.
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
# Of images whose entry point is the server itself: what stands behind is a model or an option.
_SERVER_IMAGE = re.compile(r"vllm", re.IGNORECASE)
_ARGUMENT = re.compile(r"--?[a-zA-Z]|[\w.-]+/[\w.-]+$|/")
# Redirections, pipes and what runs in the background end a command's arguments.
_SHELL = re.compile(r"\d?(?:>|<)|\||&$")
_SERVER = re.compile(r"vllm\.entrypoints\.(?:openai\.api_server|cli\.main)$")
_SECRET = re.compile(r"(?:TOKEN|API_KEY|PASSWORD|SECRET)$")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_INSTALLS = re.compile(r"(?:sudo )?(?:uv )?(?:pip3?|apt|apt-get)(?: -\S+)* install\b")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_UNSET = re.compile(r"\$\{?([A-Za-z_]\w*)(?:(:?-)([^}]*))?\}?")
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
}
_MOST_UTILIZATION = 0.9
_MOST_NODES = 2
# Of ``docker run``: options without a value; all others have one.
_ALONE = {
    *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P"),
    *("--publish-all", "--read-only", "-q", "--quiet", "--no-healthcheck", "--oom-kill-disable"),
}


@dataclass(frozen=True)
class Remark:
    """What was left out, or what is wrong or dangerous, with the reason."""

    level: Level
    what: str
    because: str


@dataclass
class ServeCommand:
    """A ``vllm serve`` line with its surroundings.

    Attributes:
        words: arguments behind ``serve``.
        environment: variables by name.
        mounts: folders of the host by their place in the container.
        contained: it runs in a container, so that its folders are not the host's.
    """

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    contained: bool = False
    remarks: list[Remark] = field(default_factory=list)


def import_recipe(text: str, name: str = "") -> tuple[Recipe, tuple[Remark, ...]]:
    """Return the recipe that *text* holds, and what was left out of it or deserves a warning.

    Args:
        text: a command, a script, or YAML.
        name: of the recipe; by default that which is served, or the model's.

    Raises:
        ConfigError: it holds no command that serves a model, or several.
    """
    data = _yaml(text)
    try:
        found = _commands_of_yaml(data) if data is not None else list(_commands_of_script(text, {}))
    except ValueError as error:
        raise ConfigError("this cannot be read as a command", because=f"{error} in it") from error
    if len(found) != 1:
        raise ConfigError(
            "no recipe can be made of this" if not found else "it is not clear which server is meant",
            because=f"there are {len(found)} commands that serve a model",
            next_step="give one 'vllm serve …', 'docker run …', compose file, or recipe of another tool",
        )
    return _recipe(found[0], name, data)


def without_dead(recipe: Recipe, problems: Iterable[Problem]) -> tuple[Recipe, tuple[Remark, ...]]:
    """Return *recipe* without flags and variables that a release lacks, and what is wrong with the others."""
    flags, environment = dict(recipe.flags), dict(recipe.environment)
    remarks = []
    for one in problems:
        known = flags if one.kind == "flag" else environment if one.kind == "variable" else {}
        dead = known.pop(one.name.removeprefix("--"), None) is not None
        if dead or one.kind not in {"deprecated", "shell variable"}:
            remarks.append(Remark("left out" if dead else "wrong", one.name, _because(one)))
    return structs.replace(recipe, flags=flags, environment=environment), tuple(remarks)


def _because(problem: Problem) -> str:
    return f"{problem.because}; use {problem.instead}" if problem.instead else problem.because


# Commands -----------------------------------------------------------------------------------------------


def _yaml(text: str) -> dict[str, Any] | None:
    """Return the mapping that *text* is as YAML; `None` for a command or script."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) and {"services", "command", "model"} & data.keys() else None


def _commands_of_yaml(data: Mapping[str, Any]) -> list[ServeCommand]:
    services = data.get("services")
    if isinstance(services, dict):
        return [
            one for service in services.values() if isinstance(service, dict) for one in _service(service)
        ]
    remarks = [
        Remark("left out", f"{key}: {', '.join(map(str, data[key]))}", why)
        for key, why in (
            ("mods", "patches of another image are not applied"),
            ("build_args", "the wheel is built by its own patchset"),
        )
        if data.get(key)
    ]
    defaults = {str(name): _written(value) for name, value in (data.get("defaults") or {}).items()}
    defaults["model"] = str(data.get("model", ""))
    environment = {str(name): _written(value) for name, value in (data.get("env") or {}).items()}
    if not data.get("command"):
        flags = {name: value for name, value in defaults.items() if name != "model"}
        words = [defaults["model"], *(word for name, value in flags.items() for word in _long(name, value))]
        return [ServeCommand(words, environment, remarks=remarks)]
    command = _filled(str(data["command"]), defaults)
    found = list(_commands_of_script(command, environment))
    for one in found:
        one.contained = one.contained or bool(data.get("container"))
        one.remarks[:0] = remarks
    return found


def _long(name: str, value: str) -> list[str]:
    """Return the words of a default that a tool passes on as a flag."""
    flag = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size"}
    option = f"--{flag.get(name, name.replace('_', '-'))}"
    return [option] if value == "true" else [] if value == "false" else [option, value]


def _filled(command: str, values: Mapping[str, str]) -> str:
    """Return *command* with ``{name}`` replaced, and ``{{`` and ``}}`` as braces.

    Raises:
        ConfigError: a name has no value.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] in {"{{", "}}"}:
            return found[0][0]
        if found[1] not in values:
            raise ConfigError(
                f"{{{found[1]}}} in the command has no value",
                because=f"known are {', '.join(sorted(values))}",
                next_step="add it to defaults",
            )
        return values[found[1]]

    return re.sub(r"\{\{|\}\}|\{(\w+)\}", value, command)


def _service(service: Mapping[str, Any]) -> Iterator[ServeCommand]:
    """Yield the server that a compose *service* runs."""
    environment = service.get("environment") or {}
    if isinstance(environment, list):
        environment = dict(str(one).partition("=")[::2] for one in environment)
    variables = {str(name): _written(value) for name, value in environment.items()}
    words = [word for key in ("entrypoint", "command") for word in _words_of(service.get(key))]
    mounts = dict(_mount(str(one)) for one in service.get("volumes") or () if isinstance(one, str))
    yield from _of_image(str(service.get("image", "")), words, variables, mounts)


def _words_of(command: Any) -> list[str]:
    return (
        [_written(one) for one in command] if isinstance(command, list) else shlex.split(str(command or ""))
    )


def _commands_of_script(text: str, environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the servers that a script starts, with the variables that it exports before."""
    known, own = dict(environment), dict[str, str]()
    lines = list(_logical_lines(text))
    installs = [Remark("left out", one, "the runtime is locked") for one in lines if _INSTALLS.match(one)]
    for line in lines:
        words = shlex.split(line, comments=True)
        before: dict[str, str] = {}
        while words and (found := _VARIABLE.fullmatch(words[0])):
            before[found[1]] = _expanded(found[2], {**known, **own})
            words = words[1:]
        if not words:
            own |= before
        elif words[0] == "export":
            for found in filter(None, map(_VARIABLE.fullmatch, words[1:])):
                known[found[1]] = _expanded(found[2], {**known, **own})
        else:
            words = words[: next((at for at, word in enumerate(words) if _SHELL.match(word)), len(words))]
            expanded = [_expanded(word, {**known, **own, **before}) for word in words]
            for one in _of_words(expanded, {**known, **before}):
                one.remarks += installs
                yield one


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the commands of a script: continued lines as one, and those behind ``&&`` on their own."""
    whole, quoted = re.sub(r"\\[ \t]*\r?\n", " ", text), ""
    line = ""
    for at, sign in enumerate(whole):
        if quoted:
            quoted = "" if sign == quoted else quoted
        elif sign in "\"'":
            quoted = sign
        elif sign in ";\n" or whole[at : at + 2] == "&&" or (sign == "&" and whole[at - 1] == "&"):
            if line.strip():
                yield line.strip()
            line = ""
            continue
        line += sign
    if line.strip():
        yield line.strip()


def _expanded(word: str, values: Mapping[str, str]) -> str:
    """Return *word* with shell variables that are known, or have a default, replaced."""

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1])
        return known or (found[3] if found[2] else found[0])

    return _UNSET.sub(value, word)


def _of_words(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the server that one command starts; nothing for another command."""
    while words and words[0] in {"sudo", "exec", "nohup"}:
        words = words[1:]
    if not words:
        return
    names = [word.rpartition("/")[2] for word in words]
    if names[0] in {"docker", "podman"} and "run" in words:
        yield from _of_container(words[words.index("run") + 1 :])
        return
    if names[0] in {"bash", "sh"} and (script := next((w for w in words[1:] if not w.startswith("-")), "")):
        yield from _commands_of_script(script, environment)
        return
    for at, (word, name) in enumerate(zip(words, names, strict=True)):
        if name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            yield ServeCommand(list(words[at + 2 :]), dict(environment))
            return
        if _SERVER.fullmatch(word):
            rest = list(words[at + 1 :])
            yield ServeCommand(rest[1:] if rest[:1] == ["serve"] else rest, dict(environment))
            return


def _of_container(words: Sequence[str]) -> Iterator[ServeCommand]:
    """Yield the server of a ``docker run`` line, from behind ``run`` on."""
    environment, mounts, unused = dict[str, str](), dict[str, str](), list[str]()
    entry: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        alone = option in _ALONE or re.fullmatch(r"-[dit]+", option)
        if not equals and not alone:
            value = rest.pop(0) if rest else ""
        match option:
            case "-e" | "--env":
                name, _, stated = value.partition("=")
                environment[name] = stated
            case "-v" | "--volume":
                mounts |= dict([_mount(value)])
            case "--entrypoint":
                entry = shlex.split(value)
            case _:
                unused.append(f"{option} {value}".strip())
    if not rest:
        return
    for one in _of_image(rest[0], [*entry, *rest[1:]], environment, mounts):
        if "--privileged" in unused:
            one.remarks.append(Remark("dangerous", "--privileged", "the container owns the machine"))
        if unused:
            why = "a recipe is served without a container, or by the image of 'service install --container'"
            one.remarks.append(Remark("left out", ", ".join(unused), why))
        yield one


def _of_image(
    image: str, words: Sequence[str], environment: Mapping[str, str], mounts: Mapping[str, str]
) -> Iterator[ServeCommand]:
    """Yield the server that *image* runs with the command *words*."""
    found = list(_of_words(words, environment)) if words else []
    if not found and words and _SERVER_IMAGE.search(image) and _ARGUMENT.match(words[0]):
        found = [ServeCommand(list(words), dict(environment))]
    for one in found:
        one.mounts, one.contained = dict(mounts), True
        one.remarks += [
            Remark("left out", source, "a patched file of vLLM: write a carry")
            for place, source in mounts.items()
            if _PACKAGES.search(place)
        ]
        one.remarks.append(Remark("left out", image, "the wheel is served, not the vLLM of an image"))
        yield one


def _mount(text: str) -> tuple[str, str]:
    """Return the place in the container and the host's folder of a volume."""
    source, _, place = text.partition(":")
    return place.partition(":")[0], source


# The recipe ---------------------------------------------------------------------------------------------


def _recipe(
    command: ServeCommand, name: str, data: Mapping[str, Any] | None
) -> tuple[Recipe, tuple[Remark, ...]]:
    flags, positional = _flags(command.words)
    remarks = list(command.remarks)
    model = str(flags.pop("model", positional[0] if positional else ""))
    if not re.match(r"[\w/.~]*\w", model):
        raise ConfigError(
            "the command names no model",
            because=f"it is {model}, which stands for one" if model else "there is none behind 'serve'",
            next_step="write the model into it",
        )
    remarks += [Remark("left out", word, "it is no option of vllm serve") for word in positional[1:]]
    model = _on_host(model, command, remarks)
    speculative, drafter = _speculation(flags, command, remarks)
    exposed = str(flags.get("host", "")) in {"0.0.0.0", "::"} and "api-key" not in flags  # noqa: S104 - compared
    for flag in [flag for flag in _AT_START if flag in flags]:
        value = "" if flag == "api-key" else f" {flags[flag]}"
        del flags[flag]
        remarks.append(Remark("left out", f"--{flag}{value}", _AT_START[flag]))
    nodes = _nodes(flags)
    environment = dict(_environment(command.environment, remarks))
    if exposed and "VLLM_API_KEY" not in command.environment:
        remarks.append(
            Remark("dangerous", "--host 0.0.0.0", "everyone in the network reaches it without a key")
        )
    remarks += [
        Remark("dangerous", f"--{flag}", why) for flag, why in _DANGEROUS.items() if flags.get(flag, False)
    ]
    share = flags.get("gpu-memory-utilization")
    if isinstance(share, float | int) and share > _MOST_UTILIZATION:
        why = "host and card share the memory: the machine freezes where nothing is left for the host"
        remarks.append(Remark("dangerous", f"--gpu-memory-utilization {share}", why))
    served = flags.get("served-model-name")
    first = served[0] if isinstance(served, list) else served
    named = name or str((data or {}).get("name") or first or model.rstrip("/").rpartition("/")[2])
    word = re.sub(r"[^a-z0-9.]+", "-", named.lower()).strip("-.") or "imported"
    recipe = Recipe(
        format=1,
        name=word,
        title=str((data or {}).get("description") or named),
        model=model,
        drafter=drafter,
        flags=flags,
        environment=environment,
        speculative=speculative,
        nodes=nodes,
    )
    return recipe, tuple(remarks)


def _flags(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return flags by name, dotted ones as tables, and words that are none."""
    flags: dict[str, Any] = {}
    positional: list[str] = []
    at = 0
    while at < len(words) and not words[at].startswith("-"):
        positional.append(words[at])
        at += 1
    while at < len(words):
        option, equals, stated = words[at].partition("=")
        at += 1
        values = [stated] if equals else []
        while not equals and at < len(words) and not _is_option(words[at]):
            values.append(words[at])
            at += 1
        name = _ALIASES.get(option) or option.lstrip("-").replace("_", "-")
        if re.fullmatch(r"-O\d", option):
            name, values = "optimization-level", [option[2:]]
        value: Any = True if not values else _value(values[0]) if len(values) == 1 else [*map(_value, values)]
        if name.startswith("no-") and value is True:
            name, value = name.removeprefix("no-"), False
        table, dot, key = name.partition(".")
        if dot:
            inner = flags.setdefault(table, {})
            if isinstance(inner, dict):
                inner[key.replace("-", "_")] = value
        else:
            flags[name] = value
    return flags, positional


def _is_option(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def _value(word: str) -> Any:
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    if re.fullmatch(r"-?\d*\.\d+(?:e-?\d+)?", word):
        return float(word)
    if word[:1] in {"{", "["}:
        try:
            return json.loads(word)
        except ValueError:
            return word
    return word


def _written(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _on_host(path: str, command: ServeCommand, remarks: list[Remark]) -> str:
    """Return a folder of the container as the host's, where a volume says which."""
    for place, source in sorted(command.mounts.items(), key=lambda one: -len(one[0])):
        if place and (path == place or path.startswith(f"{place}/")):
            return source + path[len(place) :]
    if path.startswith("/") and command.contained:
        remarks.append(Remark("wrong", path, "it is a folder of the container, and no volume holds it"))
    return path


def _speculation(
    flags: dict[str, Any], command: ServeCommand, remarks: list[Remark]
) -> tuple[dict[str, Any], str]:
    """Take the speculative configuration out of *flags*; return it and the drafter."""
    speculative = flags.pop("speculative-config", {})
    if not isinstance(speculative, dict):
        remarks.append(Remark("wrong", "--speculative-config", f"it is no JSON: {speculative}"))
        speculative = {}
    drafter = str(speculative.pop("model", ""))
    return speculative, _on_host(drafter, command, remarks) if drafter else ""


def _nodes(flags: dict[str, Any]) -> Literal[1, 2]:
    """Return the machines that the parallel sizes in *flags* need, one card each.

    Raises:
        ConfigError: they are more than two.
    """
    sizes = [flags.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data")]
    cards = 1
    for size in sizes:
        cards *= size if isinstance(size, int) and not isinstance(size, bool) else 1
    if cards > _MOST_NODES:
        raise ConfigError(
            f"it needs {cards} machines",
            because="a Spark has one card, and recipes are for one or two machines",
            next_step="take a smaller checkpoint or quantization",
        )
    for kind, size in zip(("tensor", "pipeline", "data"), sizes, strict=True):
        if size == 1:
            flags.pop(f"{kind}-parallel-size", None)
    return 2 if cards == _MOST_NODES else 1


def _environment(variables: Mapping[str, str], remarks: list[Remark]) -> Iterable[tuple[str, str]]:
    """Yield the variables that a recipe may hold."""
    for name, value in variables.items():
        if _SECRET.search(name):
            why = "a recipe holds no secrets: set it in the shell that starts the server"
            remarks.append(Remark("left out", name, why))
        elif refused_variable(name):
            remarks.append(Remark("dangerous", name, "it has every program load code, and is left out"))
        elif name in _OF_THE_MACHINE:
            remarks.append(Remark("left out", f"{name}={value}", _OF_THE_MACHINE[name]))
        elif value.startswith("$"):
            remarks.append(Remark("left out", f"{name}={value}", "its value is set elsewhere"))
        else:
            yield name, value
