"""``sparkwright channel key``: the keys of this machine's channels, and the roots that a reader pins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import UnknownNameError
from sparkwright.cli.globals import Group, takes
from sparkwright.cli.output import print_json
from sparkwright.cli.tables import show_table
from sparkwright.publish.keys import ChannelKeys
from sparkwright.publish.roots import PinnedRoot

_ROOTS_KEY = click.option(
    "--roots-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The key that 'rotate --split' moved away, where this machine's may not sign roots.",
)
_NAME = click.argument("channel", metavar="NAME")


@click.group("key", cls=Group)
def key() -> None:
    """Show, rotate and revoke the keys of this machine's channels, and pin the roots of others."""


@key.command("show")
@_NAME
@takes("as_json")
def show(channel: str, *, as_json: bool) -> None:
    """Show this machine's key for channel NAME, and its root; both are made on first use."""
    from sparkwright.publish.keys import open_publisher

    _show(open_publisher(_home(channel, new=True)), as_json=as_json)


@key.command("rotate")
@_NAME
@click.option("--revoke", metavar="REASON", help="Of a key that may have been stolen; readers see it.")
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Move the present key to FILE, to be kept offline: it signs roots only, the new one generations.",
)
@_ROOTS_KEY
@takes("as_json")
def rotate(channel: str, *, split: Path | None, as_json: bool, **options: Any) -> None:
    """Replace this machine's key for channel NAME by a new one, which the present one signs."""
    from sparkwright.publish.keys import rotate_key

    if split is not None and any(options.values()):
        raise click.UsageError("--split excludes --revoke and --roots-key.")
    _show_next(rotate_key(_home(channel), split=split, **options), as_json=as_json)


@key.command("revoke")
@_NAME
@click.argument("key_id", metavar="ID")
@click.option("--reason", required=True, help="Shown to readers.")
@_ROOTS_KEY
@takes("as_json")
def revoke(channel: str, key_id: str, *, reason: str, roots_key: Path | None, as_json: bool) -> None:
    """Trust the key or identity of channel NAME whose id begins with ID no more."""
    from sparkwright.publish.keys import revoke_key

    _show_next(revoke_key(_home(channel), key_id, reason, roots_key=roots_key), as_json=as_json)


@key.command("allow")
@_NAME
@click.argument("identity")
@click.option("--issuer", required=True, help="The issuer of its tokens.")
@_ROOTS_KEY
@takes("as_json")
def allow(channel: str, identity: str, *, issuer: str, roots_key: Path | None, as_json: bool) -> None:
    """Trust generations of channel NAME that sigstore signed for IDENTITY, such as one CI workflow."""
    from sparkwright.publish.keys import allow_identity

    keys = allow_identity(_home(channel, new=True), identity, issuer, roots_key=roots_key)
    _show_next(keys, as_json=as_json)


@key.command("pin")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--publisher",
    default="",
    metavar="ID",
    help="The publisher's id, from another source than FILE, which is the first version of the root, or has "
    "all versions before it beside it (1.root.json and so on).",
)
@click.option(
    "--digest",
    default="",
    metavar="SHA256",
    help="SHA-256 of FILE, from another source: 'key show' gives the publisher that of the newest version.",
)
@takes("as_json")
def pin(*, file: Path, publisher: str, digest: str, as_json: bool) -> None:
    """Trust the root in FILE, such as a copy of channels/NAME/1.root.json, to verify that channel by.

    What was remembered of its publisher is replaced; another root of theirs that is pinned, with --publisher.
    """
    from sparkwright.publish.keys import pin_root, pinned_folder
    from sparkwright.publish.seen import default_memory

    if not (publisher or digest):
        raise click.UsageError("give --digest or --publisher: FILE alone says nothing about who made it.")
    pinned = pin_root(file, pinned_folder(), publisher=publisher, digest=digest)
    default_memory().begin_again(pinned)
    if as_json:
        print_json(_described(pinned))
    else:
        told = f"version {pinned.version} of {pinned.written}, publisher {pinned.publisher}"
        click.echo(f"pinned   channel {pinned.channel}, {told}")


def _home(channel: str, *, new: bool = False) -> Path:
    """Return the folder of this machine's key for *channel*, which has to exist unless it may be *new*."""
    from sparkwright.publish.channel import require_channel_name
    from sparkwright.publish.keys import own_root_file, publisher_home

    home = publisher_home() / require_channel_name(channel)
    if not new and own_root_file(home) is None:
        raise UnknownNameError(
            f"this machine has no key for channel {channel}",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes one",
        )
    return home


def _described(root: PinnedRoot) -> dict[str, Any]:
    return {
        "channel": root.channel, "publisher": root.publisher, "version": root.version, "written": root.written
    }  # fmt: skip


def _show_next(keys: ChannelKeys, *, as_json: bool) -> None:
    _show(keys, as_json=as_json)
    if not as_json:
        click.echo(
            f"next      sparkwright channel renew {keys.root.channel}: readers get the new root with it"
        )


def _show(keys: ChannelKeys, *, as_json: bool) -> None:
    from sparkwright.base.digests import sha256_file
    from sparkwright.publish.roots import ONLINE, name_of

    root, file = keys.root, keys.files[-1]
    digest, own = sha256_file(file), keys.signer.public_key.keyid
    trusted = {
        key_id: [role for role in ("root", *ONLINE) if key_id in root.keys(role)] for key_id in root.root.keys
    }
    if as_json:
        listed = [
            {"id": key_id, "name": name_of(root.root.keys[key_id]), "signs": roles}
            for key_id, roles in trusted.items()
        ]
        told = {"key": own, "keys": listed, "former": root.former, "file": str(file), "digest": digest}
        print_json({**_described(root), **told})
        return
    click.echo(f"channel   {root.channel}")
    click.echo(f"publisher {root.publisher}")
    click.echo(f"root      version {root.version}, {file}")
    pin = f"sparkwright channel key pin FILE --publisher {root.publisher} --digest {digest}"
    click.echo(f"readers   {pin}")
    rows = [
        (name_of(key)[:80], " ".join(trusted[key_id]), "this machine's" if key_id == own else "")
        for key_id, key in root.root.keys.items()
    ]
    rows += [(key_id[:16], "nothing", told) for key_id, told in root.former.items()]
    show_table(("key", "signs", ""), rows)
