"""The user's settings of a server: flags on top of a recipe, and the key in a file."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ConfigError
from sparkwright.base.text import plural
from sparkwright.recipes.recipe import RESERVED, Recipe

SET_BY_USER = "set on the command line"
"""The reason of a flag that the user set."""
_WORDS = {"true": True, "false": False}
_MOST_BYTES = 4096
KEY_VARIABLE = "VLLM_API_KEY"
"""The variable of a shell or a recipe out of which vLLM takes the key that clients must send."""


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return *recipe* with flags of the command line, each as ``NAME=VALUE``, or ``NAME`` for a switch.

    A value is read as JSON where it is JSON, and as text otherwise.

    Raises:
        ConfigError: a setting has no name, or names a flag that is decided otherwise.
    """
    flags, why = dict(recipe.flags), dict(recipe.why)
    for setting in settings:
        name, given, text = setting.partition("=")
        name = name.strip().lstrip("-").replace("_", "-")
        if not name or name in RESERVED:
            raise ConfigError(
                f"--set {setting} cannot be used",
                because=f"{name} is decided when the server is started" if name else "it names no flag",
                next_step="use --host, --port and --api-key-file; a model and a drafter belong into a recipe",
            )
        flags[name] = value_of(text) if given else True
        why[name] = SET_BY_USER
    return msgspec.structs.replace(recipe, flags=flags, why=why)


def as_head(recipe: Recipe, address: str) -> Recipe:
    """Return *recipe* as the first of the machines that serve it together, at *address*.

    Raises:
        ConfigError: a recipe for two machines has no address, or one for a single machine has.
    """
    if recipe.nodes == 1 and not address:
        return recipe
    if recipe.nodes == 1 or not address:
        raise ConfigError(
            f"the recipe {recipe.name} is for {plural(recipe.nodes, 'machine')}",
            because="--peer or --head was given" if address else "neither --peer nor --head was given",
            next_step="leave out --peer and --head" if address
            else "give --peer HOST, which starts both; without ssh between them, --head ADDRESS of this one, "
            f"and on the other what `sparkwright recipe show {recipe.name}` prints",
        )  # fmt: skip
    together = {"nnodes": recipe.nodes, "node-rank": 0, "master-addr": address}
    why = dict.fromkeys(together, "two machines serve together, and this one answers")
    return msgspec.structs.replace(recipe, flags={**recipe.flags, **together}, why={**recipe.why, **why})


def value_of(text: str) -> Any:
    """Return a flag's value: a truth value, a number, or what *text* is as JSON, else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return number if math.isfinite(number := float(text)) else text
    with contextlib.suppress(msgspec.MsgspecError):
        value: Any = decode_json(text, Any)  # knows no infinite numbers
        return text if value is None else value
    return text


def read_key(path: Path) -> str:
    """Return the key in the file *path*, which only its owner may read.

    Raises:
        ConfigError: it is no plain file, others may read it, or it holds anything but one word.
    """
    try:
        state = path.stat()
        data = path.read_bytes()[: _MOST_BYTES + 1] if stat.S_ISREG(state.st_mode) else b""
    except OSError as error:
        raise _refused(path, str(error), "name a file that you may read") from error
    if not stat.S_ISREG(state.st_mode):
        raise _refused(path, "it is no plain file", "write the key into a file of mode 600")
    # systemd lets a service's user read credentials by an access list, whose mask stands in the group's bits.
    allowed = 0o440 if str(path.parent) == os.environ.get("CREDENTIALS_DIRECTORY") else 0
    if others := stat.S_IMODE(state.st_mode) & 0o077 & ~allowed:
        raise _refused(
            path, f"its mode lets others in (0{stat.S_IMODE(state.st_mode):o}, of which 0{others:o})",
            f"chmod 600 {path}",
        )  # fmt: skip
    key = data.decode("ascii", errors="replace").strip()
    if not _is_word(key):
        raise _refused(path, "it does not hold one word of plain ASCII", "write the key alone into it")
    return key


def shell_key(environment: Mapping[str, str]) -> str:
    """Return the key that vLLM would take out of *environment*; empty without one.

    Raises:
        ConfigError: it is anything but one word.
    """
    key = environment.get(KEY_VARIABLE, "")
    if key and not _is_word(key):
        raise _refused(
            KEY_VARIABLE,
            "it is not one word of plain ASCII",
            "set it to the key alone, or use --api-key-file",
        )
    return key


def _is_word(key: str) -> bool:
    return 0 < len(key) <= _MOST_BYTES and key.isascii() and key.isprintable() and " " not in key


def _refused(place: Path | str, because: str, next_step: str) -> ConfigError:
    return ConfigError(f"the key in {place} cannot be used", because=because, next_step=next_step)
