"""Commands that serve a model, in a compose file or in another tool's recipe, both of which are YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.commands import (
    SECRET_VALUE,
    UNREAD,
    Remark,
    ServeCommand,
    assigned,
    commands_of_image,
    commands_of_script,
    expanded,
    mount_of,
    written,
)

_MOST_ALIASES = 32  # of YAML; each may double what it stands for
_DEEPEST = 64  # of YAML; reading takes the square of it


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
        stated = dict(map(assigned, map(str, stated)))
    if not isinstance(stated, dict):
        raise ConfigError(f"{key} cannot be read", because="it is neither a mapping nor a list of NAME=VALUE")
    return {str(name): written(value) for name, value in stated.items()}


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
    mounts = dict(map(mount_of, map(_interpolated, _listed(service, "volumes"))))
    unread = [Remark("left out", f"env_file {name}", UNREAD) for name in _listed(service, "env_file")]
    for one in commands_of_image(
        _interpolated(str(service.get("image", ""))), entry, words, variables, mounts
    ):
        one.remarks += unread
        yield one


def _interpolated(text: str) -> str:
    """Return *text* with the defaults of variables, which are those of the shell; ``$$`` is a dollar sign."""
    return "$".join(expanded(part, {}) for part in text.split("$$"))


def _words_of(command: Any) -> list[str]:
    return [written(one) for one in command] if isinstance(command, list) else shlex.split(str(command or ""))
