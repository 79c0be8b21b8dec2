"""Find what a wheel cannot have of a git tree: links, submodules, modes, names, files that no audit reads."""

from __future__ import annotations

from sparkwright.base.members import most_bytes, name_fault
from sparkwright.base.text import human_size
from sparkwright.git import LINK, SUBMODULE, Repository, TreeEntry
from sparkwright.merge.report import Hazard
from sparkwright.merge.texts import is_text

_PACKAGE = "vllm/"
_EXECUTABLE = "100755"


def idle(repository: Repository, base: str, theirs: str) -> str:
    """Return why a carry that turns tree *base* into *theirs* changes no wheel; nothing where it may."""
    changed = repository.changed(base, theirs)
    if not changed:
        return "it changes nothing: its head has the files of its base"
    if all(old and new and old.blob == new.blob for old, new in changed.values()):
        return f"it changes nothing but the modes of {', '.join(sorted(changed))}, which no wheel here has"
    return ""


def unshippable(repository: Repository, before: str, after: str) -> tuple[str, ...]:
    """Return a reason for each file that tree *after* has, *before* has not, and no wheel can hold."""
    faults = (
        _fault(repository, path, old, new)
        for path, (old, new) in sorted(repository.changed(before, after).items())
        if new is not None and (path.startswith(_PACKAGE) or not is_text(path))
    )
    return tuple(fault for fault in faults if fault)


def lost_modes(repository: Repository, before: str, after: str) -> tuple[Hazard, ...]:
    """Return a hazard for each shipped file whose mode tree *after* sets: wheels keep upstream's modes."""
    return tuple(
        Hazard(kind="mode", path=path, name="executable" if new.mode == _EXECUTABLE else "not executable")
        for path, (old, new) in sorted(repository.changed(before, after).items())
        if new is not None
        and path.startswith(_PACKAGE)
        and _EXECUTABLE in {new.mode, old.mode if old else ""}
        and (old is None or old.mode != new.mode)
    )


def _fault(repository: Repository, path: str, old: TreeEntry | None, new: TreeEntry) -> str:
    if new.mode == LINK:
        return f"{path} is a symbolic link, and a wheel would hold the name of its target as text"
    if new.mode == SUBMODULE:
        return f"{path} is a submodule, whose files are not in upstream's tree"
    if not path.startswith(_PACKAGE):
        return ""
    if old is None and (fault := name_fault(path)):
        return fault
    data = repository.blob(new.blob)
    most = most_bytes(path)
    if len(data) > most and not data.startswith(b"\x7fELF"):
        return f"{path} has {human_size(len(data))}, and an audit reads {human_size(most)} at most"
    was = repository.blob(old.blob) if old is not None and old.mode != SUBMODULE else b""
    fault = _encoding_fault(data) if path.endswith(".py") and not _encoding_fault(was) else ""
    return f"{path} {fault}" if fault else ""


def _encoding_fault(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"is not UTF-8: line {line} has the byte 0x{data[error.start]:02x}"
    return ""
