"""The policy of channels: the evidence that a wheel needs, when a channel expires, and what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError

POLICY_FILE = "channels.toml"
_FORMAT = 1

EvidenceKind = Literal["audit", "proofs", "rehearsal", "rehearsal-older", "verify"]
"""``rehearsal-older`` is one over an older release's wheel for the CPU; a ``rehearsal`` counts as it, too."""


class ChannelPolicy(Model, frozen=True):
    """The policy of one channel.

    Attributes:
        requires: kinds of evidence, in the order in which they are made; of a companion, whose kernels no
            carry changes and no model verifies, only the audit is asked for.
        expires_days: days after which a generation is trusted no longer.
        capability: compute capability that ``verify`` has to have run on, such as ``12.1``; empty for any.
        keep_days: days for which ``channel prune`` keeps wheels and generations; for ever if `None`.
    """

    requires: tuple[EvidenceKind, ...]
    expires_days: Annotated[int, msgspec.Meta(ge=1, le=3650)]
    capability: str = ""
    keep_days: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ChannelPolicies(Model, frozen=True):
    """The policies by channel, ``patchsets/channels.toml``."""

    format: Literal[1]
    channel: dict[str, ChannelPolicy]


def load_policies(path: Path) -> dict[str, ChannelPolicy]:
    """Return the policies by channel in the file at *path*.

    Raises:
        ConfigError: the file is missing or does not match its format.
    """
    return load_toml(path, ChannelPolicies, newest_format=_FORMAT).channel


def load_policy(path: Path, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the file at *path*; see `load_policies`.

    Raises:
        UnknownNameError: it has no such channel.
    """
    policies = load_policies(path)
    if channel not in policies:
        raise UnknownNameError(
            f"channel {channel} has no policy",
            because=f"{path} has {', '.join(policies)}",
            next_step=f"name one of these, or add [channel.{channel}] with requires and expires-days there",
        )
    return policies[channel]
