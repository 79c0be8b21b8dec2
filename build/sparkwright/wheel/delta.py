"""Changes of the merge, as changes of the members of upstream's wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from sparkwright.base.errors import WheelError
from sparkwright.base.members import name_fault
from sparkwright.wheel.classify import of_kind
from sparkwright.wheel.record import entry_of
from sparkwright.wheel.source import StockWheel
from sparkwright.wheel.stamp import VERSION_FILE


@dataclass(frozen=True)
class WheelDelta:
    """Changes of members; see `delta`.

    Attributes:
        replaced: members with new content.
        added: new members with their content.
        removed: members that are deleted.
        not_shipped: changed paths that are no part of a wheel, such as tests and docs; sorted.
    """

    replaced: Mapping[str, bytes]
    added: Mapping[str, bytes]
    removed: frozenset[str]
    not_shipped: tuple[str, ...]


def delta(upstream: StockWheel, changes: Mapping[str, bytes | None]) -> WheelDelta:
    """Return *changes* as changes of the members of *upstream*'s wheel.

    A path whose new content equals the member's changes nothing.

    Raises:
        WheelError: a change cannot be shipped, and would be lost silently.
    """
    if metadata := of_kind(changes, "metadata"):
        raise WheelError(
            "the wheel's metadata would be wrong",
            because=f"it is taken from upstream's wheel, and the merge changed {', '.join(metadata)}",
            next_step="leave out the carries that change these files",
        )
    members = upstream.archive.members
    replaced: dict[str, bytes] = {}
    added: dict[str, bytes] = {}
    removed: set[str] = set()
    for path in of_kind(changes, "shipped"):
        content = changes[path]
        if path == VERSION_FILE or (path in members and upstream.is_binary(path)):
            raise WheelError(f"{path} cannot be changed", because="upstream's build makes it; git has none")
        if content is None:
            removed.update({path} & set(members))
        elif path not in members:
            added[path] = content
        elif entry_of(path, content).digest != upstream.listed[path].digest:
            replaced[path] = content
    _check_added(upstream, tuple(added))
    return WheelDelta(replaced, added, frozenset(removed), of_kind(changes, "not-shipped"))


def _check_added(upstream: StockWheel, added: tuple[str, ...]) -> None:
    """Refuse new files that upstream's ``package_data`` does not seem to include."""
    if unsafe := [fault for name in added if (fault := name_fault(name))]:
        raise WheelError("new files cannot be shipped", because=unsafe[0])
    others = [name for name in added if not name.endswith(".py")]
    folders = {name.rpartition("/")[0] + "/" for name in others}
    shipped = {_data_pattern(name) for name in upstream.archive.members if name.startswith(tuple(folders))}
    if unsure := [name for name in others if _data_pattern(name) not in shipped]:
        raise WheelError(
            "new files cannot be shipped",
            because=f"upstream's wheel holds nothing of their kind beside {', '.join(unsure)}",
            next_step="put them beside files of their kind, or write them as Python",
        )


def _data_pattern(name: str) -> tuple[str, str]:
    """Return the folder and the suffix of *name*, which ``package_data`` patterns match."""
    path = PurePosixPath(name)
    return str(path.parent), path.suffix
