"""``sparkwright channel key``: the publisher's key, and the roots that a reader pins."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.cli.output import print_json
from sparkwright.cli.tables import show_table
from sparkwright.publish.keys import PublisherKeys

_ROOTS_KEY = click.option(
    "--roots-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The key that 'rotate --split' moved away, where this machine's may not sign roots.",
)
_NEXT = "next      sparkwright channel renew NAME, for each channel: readers get the new root with it"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group("key")
def key() -> None:
    """Show, rotate and revoke this machine's key, and pin the roots of others."""


@key.command("show")
@_JSON
def show(*, as_json: bool) -> None:
    """Show this machine's key and root; both are made on first use."""
    from sparkwright.publish.keys import open_publisher

    _show(open_publisher(), as_json=as_json)


@key.command("rotate")
@click.option("--revoke", metavar="REASON", help="Revoke the present key: it may have been stolen.")
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Move the present key to FILE, to be kept offline: it signs roots only, the new one channels.",
)
@_ROOTS_KEY
@_JSON
def rotate(*, revoke: str | None, split: Path | None, roots_key: Path | None, as_json: bool) -> None:
    """Replace this machine's key by a new one, which the present one signs."""
    from sparkwright.publish.keys import publisher_home, rotate_key

    if split is not None and (revoke is not None or roots_key is not None):
        raise click.UsageError("--split excludes --revoke and --roots-key.")
    keys = rotate_key(publisher_home(), revoke=revoke, split=split, roots_key=roots_key)
    _show(keys, as_json=as_json)
    if not as_json:
        click.echo(_NEXT)


@key.command("revoke")
@click.argument("key_id", metavar="ID")
@click.option("--reason", required=True, help="Shown to readers.")
@_ROOTS_KEY
@_JSON
def revoke(*, key_id: str, reason: str, roots_key: Path | None, as_json: bool) -> None:
    """Revoke the key whose id begins with ID: nothing that it ever signed is trusted any more."""
    from sparkwright.publish.keys import publisher_home, revoke_key

    _show(revoke_key(publisher_home(), key_id, reason, roots_key=roots_key), as_json=as_json)
    if not as_json:
        click.echo(_NEXT)


@key.command("allow")
@click.argument("identity")
@click.option("--issuer", required=True, help="The issuer of its tokens.")
@_JSON
def allow(*, identity: str, issuer: str, as_json: bool) -> None:
    """Trust channels that sigstore signed for IDENTITY, such as one workflow of one repository."""
    from sparkwright.publish.keys import allow_identity, publisher_home

    _show(allow_identity(publisher_home(), identity, issuer), as_json=as_json)


@key.command("pin")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--publisher",
    default="",
    metavar="ID",
    help="The publisher's id, from another source than FILE, which is the first version of the root, or has "
    "all versions before it beside it (1.json and so on).",
)
@click.option(
    "--digest",
    default="",
    metavar="SHA256",
    help="SHA-256 of FILE, from another source: 'key show' gives the publisher that of the newest version.",
)
@_JSON
def pin(*, file: Path, publisher: str, digest: str, as_json: bool) -> None:
    """Trust the root in FILE, such as a copy of trust/1.json, to verify channels by.

    What was remembered of its publisher is replaced; another root of theirs that is pinned, with --publisher.
    """
    from sparkwright.publish.keys import pin_root, pinned_folder
    from sparkwright.publish.seen import default_memory

    if not (publisher or digest):
        raise click.UsageError("give --digest or --publisher: FILE alone says nothing about who made it.")
    pinned = pin_root(file, pinned_folder(), publisher=publisher, digest=digest)
    default_memory().begin_again(pinned)
    root = pinned.root
    if as_json:
        print_json({"publisher": root.publisher, "version": root.version, "written": root.written})
    else:
        click.echo(f"pinned   version {root.version} of {root.written}, publisher {root.publisher}")


def _show(keys: PublisherKeys, *, as_json: bool) -> None:
    from sparkwright.base.config import to_builtins
    from sparkwright.base.digests import sha256_file

    file = keys.root_files()[-1]
    digest = sha256_file(file)
    if as_json:
        print_json({**to_builtins(keys.root), "key": keys.signer.name, "file": str(file), "digest": digest})
        return
    click.echo(f"publisher {keys.root.publisher}")
    click.echo(f"root      version {keys.root.version}, {file}")
    pin = f"sparkwright channel key pin FILE --publisher {keys.root.publisher} --digest {digest}"
    click.echo(f"readers   {pin}")
    rows = [
        (
            one.id[:16], " ".join(one.roles), one.start, one.end,
            f"{one.revoked} {one.reason}".strip(), "this machine's" if one.id == keys.signer.name else "",
        )
        for one in keys.root.keys
    ]  # fmt: skip
    show_table(("key", "signs", "from", "until", "revoked", ""), rows)
    for one in keys.root.identities:
        click.echo(f"identity  {one.identity} by {one.issuer}")
