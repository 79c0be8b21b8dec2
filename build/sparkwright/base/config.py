"""Reading this project's TOML and JSON into typed models, with errors that name the key.

The models are frozen `msgspec.Struct` classes with kebab-case keys: unknown keys, missing
keys and wrong types are refused, and the message carries the path inside the file.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sparkwright.base.errors import ConfigError, NewerFormatError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Base of every model that is read from a file."""


def load_toml(path: Path, model: type[T], *, newest_format: int) -> T:
    """Read the TOML file at *path* into a *model*; see `parse_toml`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path} could not be read", because="it does not exist") from error
    return parse_toml(data, model, newest_format=newest_format, name=str(path))


def parse_toml(data: bytes, model: type[T], *, newest_format: int, name: str) -> T:
    """Read TOML text into a *model*.

    Args:
        data: the text, UTF-8.
        model: the class to make.
        newest_format: the newest supported ``format`` number.
        name: name of the text in errors.

    Raises:
        NewerFormatError: its ``format`` is newer than that.
        ConfigError: it is not TOML, or does not match the model.
    """
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is not valid TOML", because=str(error)) from error
    number = tables.get("format")
    if isinstance(number, int) and number > newest_format:
        raise NewerFormatError(
            f"{name} cannot be read",
            because=f"it has format {number}, and this sparkwright reads up to {newest_format}",
            next_step="update sparkwright",
        )
    try:
        return msgspec.convert(tables, model)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name} does not match its format",
            because=str(error),
            next_step="docs/formats.md lists every key",
        ) from error


def to_builtins(value: Any) -> Any:
    """Return a model as JSON-ready dictionaries and lists, keys as in the files."""
    return msgspec.to_builtins(value)
