"""``sparkwright publish``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import PublishError
from sparkwright.cli.channel_place import make_publisher, promote_wheel, signing_options
from sparkwright.cli.channel_show import show_change
from sparkwright.cli.globals import Command
from sparkwright.cli.output import print_json
from sparkwright.cli.runtime import install_command
from sparkwright.cli.session import Session, run_in_session
from sparkwright.companion.package import is_companion
from sparkwright.publish import PublishedIndex, dist_folder, publish, wheels_in
from sparkwright.publish.evidence import FOLDER as EVIDENCE
from sparkwright.publish.runtimes import runtimes_in


@click.command("publish", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option(
    "--channel", default="", metavar="NAME", help="Promote the wheels in FOLDER to this channel too."
)
@signing_options
@run_in_session
def command(session: Session, *, folder: Path | None, channel: str, dry_run: bool, **options: Any) -> None:
    """Write a static package index over the wheels in FOLDER.

    FOLDER is SPARKWRIGHT_DIST, or dist/ in the checkout, by default.
    The index is plain files in FOLDER/simple: copy FOLDER to any web server, or use it in place. The options
    for keys and targets are those of 'sparkwright channel promote'. Companions are listed, and in no channel.
    """
    where = dist_folder(session.checkout.folder, folder).absolute()
    wheels = wheels_in(where) if where.is_dir() else ()
    if not wheels:
        raise PublishError(
            f"there is nothing to publish in {where}",
            because="it holds no wheel",
            next_step="sparkwright wheel",
        )
    runtimes = runtimes_in(session.checkout.patchsets)
    index = publish(wheels, where, runtimes=runtimes, dry_run=dry_run)
    if not channel or (dry_run and not session.as_json):
        _show(index, dry_run=dry_run, as_json=session.as_json)
    if channel:
        publisher = make_publisher(session.checkout.folder, dry_run=dry_run, **options)
        names = [file.filename for file in index.files if not is_companion(file.filename)]
        states = [
            promote_wheel(session, publisher, where / name, channel, where / EVIDENCE) for name in names
        ]
        show_change(publisher, states[-1], as_json=session.as_json)


def _show(index: PublishedIndex, *, dry_run: bool, as_json: bool) -> None:
    """Print the listed files of *index*, and of a dry run the files that would change."""
    if as_json:
        listed = [file.filename for file in index.files]
        planned = {"write": index.written, "remove": index.removed} if dry_run else {}
        print_json({"index": index.url, "files": listed, **planned})
        return
    for file in index.files:
        click.echo(f"wheel    {file.filename}")
    if dry_run:
        for change, names in (("write", index.written), ("remove", index.removed)):
            for name in names:
                click.echo(f"{change:8} {index.folder / name}")
        click.echo(
            f"planned  {len(index.written) + len(index.removed)} files; a dry run: nothing was written"
        )
        return
    click.echo(f"index    {index.url}")
    # A channel or index that is pip's only one would decide on every package that it is asked for.
    for file in [file for file in index.files if not is_companion(file.filename)][-1:]:
        click.echo(f"next     {install_command(index.folder / file.filename)}")
