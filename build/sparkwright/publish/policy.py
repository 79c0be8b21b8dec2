"""The policy of channels: the evidence that a wheel needs, and when a channel expires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path

POLICY_FILE = "channels.toml"
_FORMAT = 1

EvidenceKind = Literal["audit", "proofs", "rehearsal", "verify"]


class ChannelPolicy(Model, frozen=True):
    """The policy of one channel.

    Attributes:
        requires: kinds of evidence, in the order in which they are made.
        expires_days: days after which a generation is trusted no longer.
        capability: compute capability that ``verify`` has to have run on, such as ``12.1``; empty for any.
    """

    requires: tuple[EvidenceKind, ...]
    expires_days: Annotated[int, msgspec.Meta(ge=1, le=3650)]
    capability: str = ""


class ChannelPolicies(Model, frozen=True):
    """The policies by channel, ``patchsets/channels.toml``."""

    format: Literal[1]
    channel: dict[str, ChannelPolicy]


def load_policy(path: Path, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the file at *path*.

    Raises:
        ConfigError: the file is missing or does not match its format.
        UnknownNameError: it has no such channel.
    """
    policies = load_toml(path, ChannelPolicies, newest_format=_FORMAT)
    if channel not in policies.channel:
        raise UnknownNameError(
            f"channel {channel} has no policy",
            because=f"{path} has {', '.join(policies.channel)}",
            next_step=f"name one of these, or add [channel.{channel}] with requires and expires-days there",
        )
    return policies.channel[channel]
