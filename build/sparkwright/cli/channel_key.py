"""``sparkwright channel key``: the keys of this machine's channels, and the roots that a reader pins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import UnknownNameError
from sparkwright.cli.globals import Group
from sparkwright.cli.options import reading_options
from sparkwright.cli.result import Result, Table
from sparkwright.publish.keys import ChannelKeys
from sparkwright.publish.roots import ChannelRoot

_NAME = click.argument("channel", metavar="NAME")


@click.group("key", cls=Group)
def key() -> None:
    """Show and replace the keys of this machine's channels, and pin the roots of others."""


@key.command("show")
@_NAME
def show(channel: str) -> Result:
    """Show this machine's key for channel NAME, and its root; both are made on first use."""
    from sparkwright.publish.keys import load_publisher

    return _shown(load_publisher(_home(channel, new=True)))


@key.command("rotate")
@_NAME
@click.option("--revoke", default="", metavar="REASON", help="It may have been stolen; readers see it.")
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Move the present key to FILE, to be kept offline: it signs roots only, the new one generations.",
)
@click.option(
    "--roots-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The key that --split moved away, where this machine's may not sign roots, or is lost.",
)
def rotate(channel: str, *, split: Path | None, **options: Any) -> Result:
    """Replace this machine's key for channel NAME by a new one, which the present one signs."""
    from sparkwright.publish.keys import rotate_key

    if split is not None and any(options.values()):
        raise click.UsageError("--split excludes --revoke and --roots-key.")
    keys = rotate_key(_home(channel), split=split, **options)
    return _shown(keys, ("next", f"sparkwright channel renew {channel}: readers get the new root with it"))


@key.command("pin")
@click.argument("place", metavar="URL|FOLDER")
@click.option(
    "--digest",
    required=True,
    metavar="SHA256",
    help="Of the newest root, from another source: its publisher's 'key show' tells it.",
)
@reading_options
def pin(*, place: str, digest: str, offline: bool) -> Result:
    """Trust the root with that SHA256 for the channel at URL or in FOLDER, such as …/channels/stable.

    It counts at that address alone. What was pinned and seen there before is forgotten.
    """
    if not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise click.BadParameter("a SHA-256 has 64 hexadecimal digits", param_hint="--digest")
    from sparkwright.publish.places import open_mirror
    from sparkwright.publish.trust import default_trust
    from sparkwright.upstream.settings import read_settings

    mirror, channel = open_mirror(place, read_settings(offline=offline))
    root = default_trust().pin(mirror, channel, digest)
    told = f"channel {channel}, version {root.version} of {root.written}, for {place}"
    return Result(_described(root), [("pinned", told)])


def _home(channel: str, *, new: bool = False) -> Path:
    """Return the folder of this machine's key for *channel*, which has to exist unless it may be *new*."""
    from sparkwright.publish.channel import require_channel_name
    from sparkwright.publish.keys import published_root
    from sparkwright.publish.trust import default_trust

    home = default_trust().publisher / require_channel_name(channel)
    if not new and published_root(home) is None:
        raise UnknownNameError(
            f"this machine has no key for channel {channel}",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes one",
        )
    return home


def _described(root: ChannelRoot) -> dict[str, Any]:
    return {"channel": root.channel, "version": root.version, "written": root.written}


def _shown(keys: ChannelKeys, *more: tuple[str, str]) -> Result:
    from sparkwright.base.digests import sha256_bytes

    root, digest = keys.root, sha256_bytes(keys.root.data)
    signs = {
        one: [role for role, of in root.root.roles.items() if one in of.keyids] for one in root.root.keys
    }
    rows = [
        (one, " ".join(roles), "this machine's" if one == keys.id else "") for one, roles in signs.items()
    ]
    rows += [(one[:16], "nothing", told) for one, told in root.former.items()]
    return Result(
        {**_described(root), "key": keys.id, "keys": signs, "former": root.former, "digest": digest},
        [
            ("channel", root.channel),
            ("root", f"version {root.version} of {root.written}, {keys.files[-1]}"),
            ("readers", f"sparkwright channel key pin ADDRESS --digest {digest}"),
            Table(("key", "signs", ""), rows),
            *more,
        ],
    )
