"""``sparkwright patchset``: give a patchset its next revision."""

from __future__ import annotations

import click

from sparkwright.carries.patchset import BuildSpec, with_next_revision
from sparkwright.cli.globals import Group, takes, taking
from sparkwright.cli.result import Result
from sparkwright.cli.session import Session, run_in_clone
from sparkwright.store.disk import write_atomically

BUMP = "sparkwright patchset bump"


@click.group("patchset", cls=Group)
def command() -> None:
    """Count a patchset's revisions, which order the wheels of one release."""


@command.command("bump")
@taking("series")
@takes("patchset")
@run_in_clone
def bump(session: Session, *, patchset: str) -> Result:
    """Give the patchset its next revision, if the pin or a carry changed; comments stay."""
    path, name = session.checkout.patchset_path(patchset), patchset or session.checkout.patchset_path().stem
    old = session.checkout.build_spec(name)
    text = path.read_text(encoding="utf-8")
    written = with_next_revision(text, old)
    if written != text:
        write_atomically(path, written.encode())
    new = session.checkout.build_spec(name)
    described = {"patchset": name, "revision": new.revision, "digest": new.content, "was": old.revision}
    if old.revision:
        return Result(described, [f"nothing changed since revision {old.revision} of {name}"])
    own = f" --patchset {patchset}" if new.file != session.checkout.series else ""
    told = f"revision {new.revision} of {name}, written to {path}"
    return Result(described, [told, session.hint(f"sparkwright wheel{own}")])


def told_revision(spec: BuildSpec) -> str:
    """Return the revision as text, with the next step if there is none."""
    if spec.revision:
        return str(spec.revision)
    changed = (
        f"the pin or a carry changed since {spec.released.revision}" if spec.released else "there was none"
    )
    return f"none yet ({changed}): '{BUMP} --patchset {spec.file}' gives it the next, until then it is 0"
