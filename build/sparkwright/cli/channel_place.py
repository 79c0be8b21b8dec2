"""Places and signers of ``sparkwright channel``: options, the target, the publisher."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from sparkwright.cli.globals import takes
from sparkwright.cli.session import Session
from sparkwright.cli.terminal import showing_events
from sparkwright.publish import dist_folder
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.target import Target

R = TypeVar("R")

target_option = click.option(
    "--target",
    default="",
    envvar="SPARKWRIGHT_TARGET",
    metavar="ADDRESS",
    help="A folder, file:// or s3://; the folder published/ beside the wheels by default.",
)
_ADOPT = click.option(
    "--adopt",
    is_flag=True,
    help="Build on a channel that no trusted key signed, or of a date to come, once you looked at it.",
)


def signing_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--target`` and ``--adopt``; *function* gets a ``publisher`` in their place."""

    @functools.wraps(function)
    def wrapper(session: Session, *, target: str, adopt: bool, **arguments: Any) -> R:
        from sparkwright.publish.trust import default_trust

        publisher = ChannelPublisher(open_place(session.checkout.folder, target), default_trust(), adopt)
        return function(session, publisher=publisher, **arguments)

    for option in (_ADOPT, target_option):
        wrapper = option(wrapper)
    return wrapper


def reading_options(function: Callable[..., R]) -> Callable[..., R]:
    """Take the global options of commands without a checkout; *function* gets ``offline``."""

    @takes("offline", "quiet", "as_json")
    @functools.wraps(function)
    def wrapper(*, quiet: bool, as_json: bool, **arguments: Any) -> R:
        with showing_events(quiet=quiet or as_json):
            return function(**arguments)

    return wrapper


def open_place(root: Path, address: str) -> Target:
    """Return the target at *address*, by default the folder ``published/`` beside the wheels.

    Raises:
        ConfigError: it is no address of a target.
    """
    from sparkwright.publish.addresses import open_target

    return open_target(address or str(dist_folder(root).absolute() / "published"))


def policy_of(session: Session, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the checkout; see `load_policy`."""
    from sparkwright.publish.channel import require_channel_name
    from sparkwright.publish.policy import POLICY_FILE, load_policy

    return load_policy(session.checkout.patchsets / POLICY_FILE, require_channel_name(channel))


def now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
