"""Reading this project's TOML and JSON into typed models, with errors that name the key.

The models are frozen `msgspec.Struct` classes with kebab-case keys: unknown keys, missing
keys and wrong types are refused, and the message carries the path inside the file.

All decoding goes through `convert`, `decode_json` and `json_decoder`. msgspec 0.22 reads a model's fields
when it is first used, and crashes the process where two threads are the first ones at once.
"""

from __future__ import annotations

import copy
import functools
import threading
import tomllib
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

from sparkwright.base.errors import ConfigError, NewerFormatError

T = TypeVar("T")
_read: set[Any] = set()
"""The models whose fields msgspec has read."""
_reading = threading.RLock()


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Base of every model that is read from a file."""


def load_toml(path: Path, model: type[T], *, newest_format: int) -> T:
    """Read the TOML file at *path* into a *model*; see `parse_toml`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise ConfigError(
            f"{path} could not be read",
            because="it does not exist" if missing else str(error.strerror).lower(),
            next_step="name a file of TOML that you may read",
        ) from error
    return parse_toml(data, model, newest_format=newest_format, name=str(path))


def parse_toml(data: bytes, model: type[T], *, newest_format: int, name: str) -> T:
    """Read TOML text into a *model*.

    *name* is the text's in errors.

    Raises:
        NewerFormatError: its ``format`` is newer than that.
        ConfigError: it is not TOML, or does not match the model.
    """
    try:
        tables = copy.deepcopy(_tables(data))  # models keep what is nested
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, and deep nesting, too
        raise ConfigError(
            f"{name} is not valid TOML",
            because=str(error),
            next_step="correct it; docs/formats.md lists every key",
        ) from error
    number = tables.get("format")
    if isinstance(number, int) and number > newest_format:
        raise NewerFormatError(
            f"{name} cannot be read",
            because=f"it has format {number}, and this sparkwright reads up to {newest_format}",
            next_step="update sparkwright",
        )
    try:
        return convert(tables, model)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name} does not match its format",
            because=str(error),
            next_step="docs/formats.md lists every key",
        ) from error


@functools.lru_cache(maxsize=512)
def _tables(data: bytes) -> dict[str, Any]:
    """Return the tables of TOML text, which a command reads several times: the carries of each build spec."""
    return tomllib.loads(data.decode())


def to_builtins(value: Any) -> Any:
    """Return a model as JSON-ready dictionaries and lists, keys as in the files."""
    return msgspec.to_builtins(value)


def convert(value: object, model: type[T]) -> T:
    """Make a *model* of dictionaries and lists, as `to_builtins` returns them; safe in every thread.

    Raises:
        msgspec.ValidationError: they do not match it.
    """
    _have_read(model)
    return msgspec.convert(value, model)


@overload
def decode_json(data: bytes | str, model: type[T]) -> T: ...
@overload
def decode_json(data: bytes | str, model: UnionType) -> Any: ...
def decode_json(data: bytes | str, model: Any) -> Any:
    """Read JSON text into a *model*; safe in every thread.

    Raises:
        msgspec.ValidationError: it does not match the model.
        msgspec.DecodeError: it is not JSON, is not UTF-8, or is nested too deeply.
    """
    _have_read(model)
    try:
        return msgspec.json.decode(data, type=model)
    except (UnicodeError, RecursionError) as error:  # also of a text that is not of Unicode alone
        raise msgspec.DecodeError(str(error)) from error


@overload
def json_decoder(model: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(model: UnionType) -> msgspec.json.Decoder[Any]: ...
def json_decoder(model: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON text into a *model*, for many texts."""
    with _reading:
        return msgspec.json.Decoder(model)


def _have_read(model: Any) -> None:
    """Let msgspec read the fields of *model* and of what it contains, one thread at a time."""
    if model not in _read:
        with _reading:
            msgspec.json.Decoder(model)
        _read.add(model)
