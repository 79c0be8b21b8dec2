"""Reasons and titles that most recipes share: ``shared.toml`` states each once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from msgspec import field

from sparkwright.base.config import Model, parse_toml

_FORMAT = 1


class _SharedUse(Model, frozen=True):
    title: str
    why: dict[str, str]


class _Shared(Model, frozen=True):
    format: Literal[1]
    why: dict[str, str]
    notes: dict[str, str]
    instead: dict[str, str]
    uses: dict[str, _SharedUse] = field(default_factory=dict)


@functools.cache
def _shared() -> _Shared:
    data = (resources.files("sparkwright.recipes") / "shared.toml").read_bytes()
    return parse_toml(data, _Shared, newest_format=_FORMAT, name="shared.toml")


def reasons(options: Mapping[str, Any], own: Mapping[str, str], use: str = "") -> dict[str, str]:
    """Return the reason of each of *options* that has one: its own, else the shared one.

    *options* are named as reasons spell them, such as ``speculative.method``.
    """
    shared = _shared()
    known = shared.uses[use].why if use in shared.uses else {}
    found = {
        name: known.get(name) or shared.why.get(f"{name}={value}") or shared_reason(name)
        for name, value in options.items()
    }
    return {**{name: why for name, why in found.items() if why}, **own}


def shared_reason(name: str) -> str:
    """Return the reason of an option or variable that most recipes would state alike; empty for another."""
    return _shared().why.get(name, "")


def use_title(name: str) -> str:
    """Return the title of the use *name*; empty for a use that is not shared."""
    return _shared().uses[name].title if name in _shared().uses else ""


def shared_note(name: str) -> str:
    """Return a known failure or limit of several recipes."""
    return _shared().notes[name]


def shared_instead(option: str) -> str:
    """Return the replacement of an *option* that releases dropped; empty for another."""
    return _shared().instead.get(option, "")
