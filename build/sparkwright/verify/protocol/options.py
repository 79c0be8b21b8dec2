"""Protocols by name, and their sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from sparkwright.base.config import Model
from sparkwright.base.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK = "protocol"
"""Name of the check that the protocol is, in journals and in reports."""
Latency = Literal["api", "generation", "none"]


class ProtocolOptions(Model, frozen=True):
    """Sizes of a run by llama-benchy's protocol.

    Attributes:
        name: of the protocol.
        pp: prompt lengths in tokens.
        tg: longest outputs in tokens.
        depths: tokens of a conversation before the prompt, sent as a system message; 0 for none.
        levels: requests at a time.
        runs: batches of each test, after one that is not counted.
        latency: time that is taken off the time to the first response for the prompt's processing: ``api``
            that of a request for the model list, ``generation`` that of one token after a word, or ``none``.
        exact: outputs of exactly the longest length; otherwise answers may end by themselves.
        cached: send each context once before, so that it comes from the prefix cache.
    """

    name: str
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32,)
    depths: tuple[int, ...] = (0,)
    levels: tuple[int, ...] = (1,)
    runs: int = 3
    latency: Latency = "api"
    exact: bool = False
    cached: bool = False


PROTOCOLS: Mapping[str, ProtocolOptions] = {
    "llama-benchy": ProtocolOptions(name="llama-benchy"),
    # As published for fleets of GB10: three runs and a warm-up, thinking off.
    "t1": ProtocolOptions(
        name="t1", pp=(128, 4096), tg=(256, 1024), depths=(0, 32_768, 131_072), levels=(1, 4, 8)
    ),
}
"""Protocols by name: ``llama-benchy`` has the defaults of that program."""

_LISTS = {"pp": "pp", "tg": "tg", "depth": "depths", "c": "levels"}
_FLAGS = ("exact", "cached")
_LEAST = {"pp": 32, "tg": 2, "depth": 0, "c": 1}
_SHORTEST_DEPTH = 64


def parse_protocol(text: str) -> ProtocolOptions:
    """Return the protocol that *text* names, with the changes that follow the name.

    Args:
        text: such as ``t1`` or ``t1 depth=0,32768 c=1 runs=2 latency=generation exact cached``.

    Raises:
        UnknownNameError: there is no such protocol.
        ConfigError: a change cannot be read.
    """
    name, *changes = text.split() or [""]
    if name not in PROTOCOLS:
        raise UnknownNameError(
            f"there is no protocol {name!r}", next_step=f"take one of {', '.join(PROTOCOLS)}"
        )
    given: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        given |= _change(text, key, value)
    return msgspec.structs.replace(PROTOCOLS[name], **given)


def _change(text: str, key: str, value: str) -> dict[str, Any]:
    """Return the field that one change sets."""
    if key in _FLAGS and not value:
        return {key: True}
    if key == "latency" and value in get_args(Latency):
        return {key: value}
    if key == "runs" and value.isdecimal() and int(value) > 0:
        return {key: int(value)}
    if key in _LISTS and all(part.isdecimal() for part in value.split(",")):
        sizes = tuple(dict.fromkeys(int(part) for part in value.split(",")))
        if all(_possible(key, size) for size in sizes):
            return {_LISTS[key]: sizes}
    raise ConfigError(
        f"the protocol {text!r} cannot be read",
        because=f"{key}={value} is not understood" if value else f"{key!r} is not understood",
        next_step="give a name and changes such as pp=128,4096 tg=256 depth=0,32768 c=1,4,8 runs=3"
        f" latency=generation exact cached; prompts have at least {_LEAST['pp']} tokens, depths"
        f" {_SHORTEST_DEPTH}",
    )


def _possible(key: str, size: int) -> bool:
    return size >= _LEAST[key] and (key != "depth" or size == 0 or size >= _SHORTEST_DEPTH)
