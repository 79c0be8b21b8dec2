"""One carry's change merged into one tree, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.base.text import few, human_size, line_ends
from sparkwright.base.wheel_members import most_bytes, name_fault
from sparkwright.carries.model import Carry
from sparkwright.git.repository import LINK, SUBMODULE, Repository, TreeEntry
from sparkwright.git.trees import FileEntry, MergeResult, merge_trees, patch_tree
from sparkwright.merge.absorb import CarryChange, reverse_applies
from sparkwright.merge.hazards import examine
from sparkwright.merge.report import Hazard, Outcome, OutcomeKind
from sparkwright.merge.sides import Side, Sides, is_text
from sparkwright.store.paths import Store

_SHOWN = 3


def land(
    repository: Repository, carry: Carry, change: CarryChange, ours: str, *, store: Store | None = None
) -> Outcome:
    """Merge the *change* of *carry* into the tree *ours*; *store* remembers findings on clean merges."""
    result = merge_trees(repository, base=change.base_commit, ours=ours, theirs=change.theirs)
    if result.clean and result.tree == ours:
        return absorbed(repository, carry, change, ours, ("equal-tree",))
    if not result.clean:
        return _conflicted(repository, carry, change, ours, result, store=store)
    return _applied(repository, carry, change, ours, result.tree, store=store)


def absorbed(
    repository: Repository,
    carry: Carry,
    change: CarryChange,
    ours: str,
    signals: tuple[str, ...],
    *,
    conflicts: tuple[str, ...] = (),
) -> Outcome:
    """Return the outcome of a carry that upstream has by its *signals*; its probe has yet to agree."""
    detail = f"upstream seems to have it ({', '.join(signals)})"
    if conflicts:
        detail += f", and its own form of {', '.join(conflicts)}"
    return Outcome(
        carry=carry.name,
        kind=OutcomeKind.ABSORBED,
        tree=ours,
        detail=detail,
        concerns=tuple(sorted(repository.changed(change.base, change.theirs))),
        signals=signals,
        conflicts=conflicts,
    )


def _conflicted(
    repository: Repository,
    carry: Carry,
    change: CarryChange,
    ours: str,
    result: MergeResult,
    *,
    store: Store | None,
) -> Outcome:
    if reverse_applies(repository, change, ours):
        return absorbed(repository, carry, change, ours, ("reverse-apply",))
    code = [path for path in result.conflicts if not is_text(path)]
    if code:
        detail = few(code, _SHOWN, more=" and {} more files") + _told_ends(repository, change, ours, code)
        return Outcome(
            carry=carry.name, kind=OutcomeKind.CONFLICT, tree=ours, detail=detail, conflicts=result.conflicts
        )
    tree = _with_ours(repository, result, ours)
    if tree == ours and not all(map(is_text, repository.changed(change.base, change.theirs))):
        # Its code changed nothing, so upstream has all of that; only its tests or documents differ.
        return absorbed(repository, carry, change, ours, ("equal-tree",), conflicts=result.conflicts)
    if tree == ours:
        detail = "nothing is left of it but conflicts in tests or documents"
        return Outcome(
            carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail=detail, conflicts=result.conflicts
        )
    return _applied(repository, carry, change, ours, tree, store=store, conflicts=result.conflicts)


def _told_ends(repository: Repository, change: CarryChange, ours: str, paths: Sequence[str]) -> str:
    """Return a remark on the first of *paths* whose line ends one side changed; each line conflicts then."""
    trees = {"the carry was written for": change.base, "the carry has": change.theirs, "it meets": ours}
    for path in paths:
        styles = {what: line_ends(Side(repository, tree).text(path)) for what, tree in trees.items()}
        if len(set(styles.values()) - {""}) > 1:
            told = ", ".join(f"{what} {style}" for what, style in styles.items() if style)
            return f"; the line ends of {path} differ: {told}"
    return ""


def _with_ours(repository: Repository, result: MergeResult, ours: str) -> str:
    """Return the merged tree with the form in *ours* of every conflicted file."""
    entries = repository.files(ours, result.conflicts)
    files = {
        path: FileEntry(entries[path].mode, repository.blob(entries[path].blob)) if path in entries else None
        for path in result.conflicts
    }
    return patch_tree(repository, result.tree, files)


def _applied(
    repository: Repository,
    carry: Carry,
    change: CarryChange,
    ours: str,
    merged: str,
    *,
    store: Store | None,
    conflicts: tuple[str, ...] = (),
) -> Outcome:
    if faults := unshippable(repository, ours, merged):
        detail = f"no wheel can hold it: {'; '.join(faults)}. The carry has to change"
        return Outcome(carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail=detail)
    found = examine(repository, Sides(change.base, ours, change.theirs, merged), store)
    hazards = (*found.hazards, *lost_modes(repository, ours, merged))
    if found.flaws:
        return Outcome(
            carry=carry.name,
            kind=OutcomeKind.REFUSED,
            tree=ours,
            detail="; ".join(found.flaws),
            hazards=hazards,
        )
    kind = OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS if conflicts else OutcomeKind.APPLIED
    detail = f"upstream's form was kept of {', '.join(conflicts)}" if conflicts else ""
    return Outcome(
        carry=carry.name,
        kind=kind,
        tree=merged,
        detail=detail,
        hazards=hazards,
        conflicts=conflicts,
        paths=tuple(sorted(repository.changed(ours, merged))),
    )


# What a wheel cannot have -------------------------------------------------------------------------

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
