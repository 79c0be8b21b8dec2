"""``sparkwright publish``."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.base.errors import PublishError
from sparkwright.cli.globals import Command
from sparkwright.cli.result import Result
from sparkwright.cli.session import Session, run_in_session
from sparkwright.companion.wheel import is_companion
from sparkwright.publish.evidence import install_command
from sparkwright.publish.index import dist_folder, publish, runtimes_in, wheels_in


@click.command("publish", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@run_in_session
def command(session: Session, *, folder: Path | None) -> Result:
    """Write a static package index over the wheels in FOLDER.

    FOLDER is SPARKWRIGHT_DIST, or dist/ in the checkout, by default.
    The index is plain files in FOLDER/simple: copy FOLDER to any web server, or use it in place.
    """
    where = dist_folder(session.checkout.folder, folder).absolute()
    wheels = wheels_in(where) if where.is_dir() else ()
    if not wheels:
        raise PublishError(
            f"there is nothing to publish in {where}",
            because="it holds no wheel",
            next_step="sparkwright wheel",
        )
    index = publish(where, runtimes=runtimes_in(session.checkout.patchsets))
    # An index that is pip's only one would decide on every package that it is asked for.
    newest = [file for file in index.files if not is_companion(file.filename)][-1:]
    return Result(
        {"index": index.url, "files": [file.filename for file in index.files]},
        [
            *(("wheel", file.filename) for file in index.files),
            ("index", index.url),
            *(("next", install_command(index.folder / file.filename)) for file in newest),
        ],
    )
