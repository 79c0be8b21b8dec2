"""A repository of the store that a lost disk or a power cut damaged: told apart, and begun again.

Git writes an object once and believes in it from then on. What is damaged cannot be taken out alone: what
leads to it counts as whole. So the repository goes as a whole; what it held is fetched or made again.
"""

from __future__ import annotations

import os
from pathlib import Path

from sparkwright.base.events import emit
from sparkwright.git.repository import Repository
from sparkwright.store import hold, storing

_ANY = tuple(range(256))
# History that was cut off, and what upstream's authors wrote against git's own advice, is no damage.
_HARMLESS = ("notice: ", "warning", "error in ", "dangling ", "missing commit ", "broken link from  commit ")
_OF_A_LINK = "to  commit "


def unsoundness(repository: Repository) -> str:
    """Return what git finds damaged in *repository*, in its words; empty if nothing, or there is none."""
    if not repository.path.exists():
        return ""
    done = repository.command("fsck", "--full", "--no-dangling", "--no-progress", accept=_ANY)
    if done.status == 0:
        return ""
    lines = [line.rstrip() for line in (done.stderr + "\n" + done.text).splitlines()]
    found = [
        line
        for line in lines
        if line.strip() and not line.startswith(_HARMLESS) and not line.strip().startswith(_OF_A_LINK)
    ]
    if not found:
        return ""
    return found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more findings"


def discard(repository: Repository, trash: Path) -> None:
    """Move *repository* into the folder *trash* on the same disk; opening it again begins an empty one.

    Raises:
        StorageError: the disk cannot be written.
    """
    path = repository.path
    with hold(path.with_name(f"{path.name}.lock"), f"the repository {path}"), storing(f"removing {path}"):
        if path.exists():
            emit("store.removed", what="damaged", path=str(path))
            path.rename(trash / os.urandom(8).hex())
