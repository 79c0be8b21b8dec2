"""Commands that serve a model, in a script, a container's, a systemd unit, or another tool's recipe.

Nothing is run. Read `read_yaml`, `commands_of_yaml` and `commands_of_script` first.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.shell import (
    SECRET,
    SECRET_VALUE,
    conditional,
    expanded,
    expanded_words,
    logical_lines,
    split_words,
    used_names,
)

Level = Literal["left out", "wrong", "dangerous"]

# Of images whose entry point is the server itself: what stands behind is a model or an option.
_SERVER_IMAGE = re.compile(r"vllm", re.IGNORECASE)
_ARGUMENT = re.compile(r"--?[a-zA-Z]|[\w.-]+/[\w.-]+$|/")
# Redirections and pipes end a command's arguments.
_SHELL = re.compile(r"\d?(?:>|<)|&>|\|")
_SERVER = re.compile(r"vllm\.entrypoints\.(?:openai\.api_server|cli\.main)$")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_INSTALLS = re.compile(r"(?:sudo )?(?:uv )?(?:pip3?|apt|apt-get)(?: -\S+)* install\b")
_SOURCED = re.compile(r"(?:source|\.)\s+(?!\S*/activate\b)\S+$")
_UNREAD = "the variables in it are not read"
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?:(?:local|readonly|declare -a) )?([A-Za-z_]\w*)(\+?)=\((.*)\)", re.DOTALL)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
# Options that no other server has, where an image's name does not say which it is.
_OF_VLLM = re.compile(r"--(?:max[-_]model[-_]len|gpu[-_]memory[-_]utilization)(?:=|$)")
# Commands that serve nothing, whatever their words are.
_SHOWS = frozenset(
    {"#", "alias", "cat", "echo", "grep", "ls", "man", "pgrep", "pkill", "printf", "test", "[", "which"}
)
_MOST_ALIASES = 32  # of YAML; each may double what it stands for
_DEEPEST = 64  # of YAML; reading takes the square of it
# Of ``docker run``: options without a value; all others have one.
_ALONE = {
    *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P"),
    *("--publish-all", "--read-only", "-q", "--quiet", "--no-healthcheck", "--oom-kill-disable"),
}
_ASSIGNED = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class Remark:
    """A word of the command that was left out of the recipe, or is wrong or dangerous, with the reason."""

    level: Level
    what: str
    because: str

    def __post_init__(self) -> None:
        """Take secrets out, whatever the word is."""
        what = _ASSIGNED.sub(lambda one: f"{one[1]}=…" if SECRET.search(one[1]) else one[0], self.what)
        object.__setattr__(self, "what", SECRET_VALUE.sub("…", what))


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


def read_yaml(text: str) -> dict[str, Any] | None:
    """Return the mapping that *text* is as YAML; `None` for a command or script."""
    import yaml

    aliases = depth = 0
    try:
        for one in yaml.parse(text):
            aliases += isinstance(one, yaml.AliasEvent)
            depth += isinstance(one, yaml.CollectionStartEvent) - isinstance(one, yaml.CollectionEndEvent)
            if aliases > _MOST_ALIASES or depth > _DEEPEST:
                return None
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError, RecursionError):  # a date that is none, tags, nesting
        return None
    return data if isinstance(data, dict) and {"services", "command", "model"} & data.keys() else None


def commands_of_yaml(data: Mapping[str, Any]) -> list[ServeCommand]:
    """Return the servers of a compose file, or of another tool's recipe.

    Raises:
        ConfigError: a name in the recipe's command has no value, or a part is of another kind.
    """
    services = data.get("services")
    if isinstance(services, dict):
        return [
            one for service in services.values() if isinstance(service, dict) for one in _service(service)
        ]
    remarks = [
        Remark("left out", f"{key}: {', '.join(_listed(data, key))}", why)
        for key, why in (
            ("mods", "patches of another image are not applied"),
            ("build_args", "the wheel is built by its own patchset"),
            ("pre_exec", "nothing is run before the server"),
        )
        if data.get(key)
    ]
    if "vllm" not in (runtime := str(data.get("runtime") or "vllm")):
        shown = SECRET_VALUE.sub("…", runtime)
        raise ConfigError("this is no recipe of vLLM", because=f"its runtime is {shown}")
    defaults = {**_variables(data, "defaults"), "model": str(data.get("model") or "")}
    environment = _variables(data, "env")
    if not data.get("command"):
        flags = {name: value for name, value in defaults.items() if name != "model"}
        words = [defaults["model"], *(word for name, value in flags.items() for word in _long(name, value))]
        return [ServeCommand(words, environment, remarks=remarks)]
    command = data["command"]
    command = _filled(shlex.join(map(str, command)) if isinstance(command, list) else str(command), defaults)
    found = list(commands_of_script(command, environment))
    for one in found:
        one.contained = one.contained or bool(data.get("container"))
        one.remarks[:0] = remarks
    return found


def _variables(data: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return a mapping, or a list of NAME=VALUE, as texts by name."""
    stated = data.get(key) or {}
    if isinstance(stated, list):
        stated = dict(map(_assigned, map(str, stated)))
    if not isinstance(stated, dict):
        raise ConfigError(f"{key} cannot be read", because="it is neither a mapping nor a list of NAME=VALUE")
    return {str(name): _written(value) for name, value in stated.items()}


def _assigned(text: str) -> tuple[str, str]:
    """Return the name and value of NAME=VALUE; a NAME alone has the shell's, as Docker takes it."""
    name, equals, value = text.partition("=")
    return name, value if equals else f"${name}"


def _listed(data: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts of a list, or a single one."""
    stated = data.get(key) or []
    return [str(one) for one in (stated if isinstance(stated, list) else [stated])]


def _long(name: str, value: str) -> list[str]:
    """Return the words of a default that a tool passes on as a flag."""
    flag = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size"}
    option = f"--{flag.get(name, name.replace('_', '-'))}"
    return [option] if value == "true" else [] if value == "false" else [option, value]


def _filled(command: str, values: Mapping[str, str]) -> str:
    """Return *command* with ``{name}`` replaced, and where braces are doubled, ``{{`` and ``}}`` as braces.

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

    doubled = r"\{\{|\}\}|" if "{{" in command else ""
    return re.sub(doubled + r"(?<!\$)\{(\w+)\}", value, command)


def _service(service: Mapping[str, Any]) -> Iterator[ServeCommand]:
    """Yield the server that a compose *service* runs."""
    variables = _variables(service, "environment")
    entry, words = ([*map(_interpolated, _words_of(service.get(key)))] for key in ("entrypoint", "command"))
    variables = {name: _interpolated(value) for name, value in variables.items()}
    stated = service.get("volumes") or []
    volumes = [
        f"{one.get('source')}:{one.get('target')}" if isinstance(one, dict) else str(one)
        for one in (stated if isinstance(stated, list) else [stated])
    ]
    mounts = dict(_mount(one) for one in map(_interpolated, volumes) if ":" in one)
    unread = [Remark("left out", f"env_file {name}", _UNREAD) for name in _listed(service, "env_file")]
    for one in _of_image(_interpolated(str(service.get("image", ""))), entry, words, variables, mounts):
        one.remarks += unread
        yield one


def _interpolated(text: str) -> str:
    """Return *text* with the defaults of variables, which are those of the shell; ``$$`` is a dollar sign."""
    return "$".join(expanded(part, {}) for part in text.split("$$"))


def _words_of(command: Any) -> list[str]:
    return (
        [_written(one) for one in command] if isinstance(command, list) else shlex.split(str(command or ""))
    )


def commands_of_script(text: str, environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the servers that a script starts, with the variables that it exports before.

    Variables that only the script itself uses are not the server's. What a condition decides sets only what
    has no value yet.
    """
    known, own, used = dict(environment), dict[str, str](), set[str]()
    lines = list(logical_lines(text))
    remarks = [Remark("left out", one, "the runtime is locked") for one in lines if _INSTALLS.match(one)]
    remarks += [Remark("left out", one, _UNREAD) for one in lines if _SOURCED.match(one)]
    for line, sure in conditional(lines):
        values = {**known, **own}
        if array := _ARRAY.fullmatch(line):
            declares, words = "", list[str]()
            more = shlex.join(expanded_words(split_words(array[3]), values))
            before = {array[1]: f"{own.get(array[1], '')} {more}" if array[2] else more}
        else:
            words = split_words(line)
            declares = words[0] if words and words[0] in _DECLARES else ""
            words, before = _assignments(words[bool(declares) :], values, everything=bool(declares))
        if words:
            words = words[: next((at for at, word in enumerate(words) if _SHELL.match(word)), len(words))]
            here = used | used_names(" ".join(words))
            exported = {
                name: value for name, value in known.items() if name not in here or name.startswith("VLLM_")
            }
            for one in _of_words(expanded_words(words, {**values, **before}), {**exported, **before}):
                one.remarks += remarks
                yield one
            continue
        if not declares:
            used |= used_names(line)
        if not sure and (again := sorted(before.keys() & values.keys())):
            options = re.findall(r"(?<![\w-])--?[A-Za-z][\w.-]*", line)
            remarks += [
                Remark("left out", one, "a condition of the script decides it")
                for one in options or [_shown(name, before[name]) for name in again]
            ]
            before = {name: value for name, value in before.items() if name not in values}
        (known if declares == "export" else own).update(before)


def _shown(name: str, value: str) -> str:
    return name if SECRET.search(name) or SECRET_VALUE.search(value) else f"{name}={value}"


def _assignments(
    words: list[str], values: Mapping[str, str], *, everything: bool
) -> tuple[list[str], dict[str, str]]:
    """Return *words* behind the variables that are set before them, and these; of *everything* no words."""
    before: dict[str, str] = {}
    while words and ((found := _VARIABLE.fullmatch(words[0])) or everything):
        if found:
            old = values.get(found[1], "") if found[2] else ""
            before[found[1]] = old + expanded(found[3], values)
        words = words[1:]
    return words, before


def _of_words(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the server that one command starts; nothing for another command."""
    environment = dict(environment)
    while words and (
        (found := _VARIABLE.fullmatch(words[0])) or words[0] in {"sudo", "exec", "nohup", "env", "-E", "-i"}
    ):
        if found:
            environment[found[1]] = found[3]
        words = words[1:]
    if not words or words[0] in _SHOWS:
        return
    names = [word.rpartition("/")[2] for word in words]
    if names[0] in {"docker", "podman"} and "run" in words:
        yield from _of_container(words[words.index("run") + 1 :])
        return
    if names[0] in {"docker", "podman"} and "exec" in words:
        shell = next((at for at, name in enumerate(names) if name in {"bash", "sh"}), len(words))
        words, names = words[shell:], names[shell:]
    if (
        words
        and names[0] in {"bash", "sh"}
        and (script := next((w for w in words[1:] if not w.startswith("-")), ""))
    ):
        yield from commands_of_script(script, environment)
        return
    for at, (word, name) in enumerate(zip(words, names, strict=True)):
        if name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            yield ServeCommand(list(words[at + 2 :]), environment)
            return
        if _SERVER.fullmatch(word):
            rest = list(words[at + 1 :])
            yield ServeCommand(rest[1:] if rest[:1] == ["serve"] else rest, environment)
            return


def _of_container(words: Sequence[str]) -> Iterator[ServeCommand]:
    """Yield the server of a ``docker run`` line, from behind ``run`` on."""
    environment, mounts, unused = dict[str, str](), dict[str, str](), list[str]()
    remarks: list[Remark] = []
    entry: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, value = _docker_option(rest)
        match option:
            case "-e" | "--env":
                environment |= dict([_assigned(value)])
            case "-v" | "--volume":
                mounts |= dict([_mount(value)])
            case "--mount":
                parts = dict(part.partition("=")[::2] for part in value.split(","))
                target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
                mounts[target] = parts.get("source") or parts.get("src") or ""
            case "--entrypoint":
                entry = shlex.split(value)
            case "--env-file":
                remarks.append(Remark("left out", f"--env-file {value}", _UNREAD))
            case _:
                unused.append(option)  # its value may be a secret
    if "--privileged" in unused:
        remarks.append(Remark("dangerous", "--privileged", "the container owns the machine"))
    if unused:
        why = "a recipe is served without a container, or by the image that ci/image.sh builds"
        remarks.append(Remark("left out", ", ".join(dict.fromkeys(unused)), why))
    for one in _of_image(rest[0], entry, rest[1:], environment, mounts) if rest else ():
        one.remarks += remarks
        yield one


def _docker_option(rest: list[str]) -> tuple[str, str]:
    """Take an option of ``docker run`` and its value, if it has one, from the front of *rest*."""
    option, equals, value = rest.pop(0).partition("=")
    if re.match(r"-[evpu].", option):  # a short option with its value
        return option[:2], f"{option[2:]}{equals}{value}"
    alone = option in _ALONE or re.fullmatch(r"-[dit]+", option)
    if not equals and not alone and rest:
        value = rest.pop(0)
    return option, value


def _of_image(
    image: str,
    entry: Sequence[str],
    words: Sequence[str],
    environment: Mapping[str, str],
    mounts: Mapping[str, str],
) -> Iterator[ServeCommand]:
    """Yield the server that *image* runs with the command *words*, behind *entry* in place of its own."""
    found = list(_of_words([*entry, *words], environment))
    server = _SERVER_IMAGE.search(image) or any(map(_OF_VLLM.match, words))
    if not found and not entry and words and server and _ARGUMENT.match(words[0]):
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


def _written(value: Any) -> str:
    """Return a value of YAML as a command line has it; nothing for null."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
