"""One carry's change merged into one tree, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.base.text import few, human_size, line_ends
from sparkwright.base.wheel_members import most_bytes, name_fault
from sparkwright.git.repository import LINK, SUBMODULE, Repository, TreeEntry
from sparkwright.git.trees import FileEntry, MergeResult, merge_trees, patch_tree
from sparkwright.merge.absorb import CarryChange, reverse_applies
from sparkwright.merge.hazards import examine
from sparkwright.merge.report import Hazard, Outcome, OutcomeKind
from sparkwright.merge.sides import Side, Sides, is_text
from sparkwright.store.paths import Store

_SHOWN = 3


@dataclass(frozen=True)
class Landing:
    """The merge of a carry's *change* into the tree *ours*; *store* remembers findings on clean merges."""

    repository: Repository
    carry: str
    change: CarryChange
    ours: str
    store: Store | None = None

    def land(self) -> Outcome:
        """Merge the change."""
        change, ours = self.change, self.ours
        result = merge_trees(self.repository, base=change.base_commit, ours=ours, theirs=change.theirs)
        if not result.clean:
            return self._conflicted(result)
        return self.absorbed(("equal-tree",)) if result.tree == ours else self._applied(result.tree)

    def absorbed(self, signals: tuple[str, ...], conflicts: tuple[str, ...] = ()) -> Outcome:
        """Return the outcome of a carry that upstream has by its *signals*; its probe has yet to agree."""
        detail = f"upstream seems to have it ({', '.join(signals)})"
        if conflicts:
            detail += f", and its own form of {', '.join(conflicts)}"
        return Outcome(
            carry=self.carry,
            kind=OutcomeKind.ABSORBED,
            tree=self.ours,
            detail=detail,
            concerns=tuple(sorted(self.repository.changed(self.change.base, self.change.theirs))),
            signals=signals,
            conflicts=conflicts,
        )

    def _left_out(
        self,
        detail: str,
        kind: OutcomeKind = OutcomeKind.REFUSED,
        *,
        conflicts: tuple[str, ...] = (),
        hazards: tuple[Hazard, ...] = (),
    ) -> Outcome:
        return Outcome(
            carry=self.carry, kind=kind, tree=self.ours, detail=detail, conflicts=conflicts, hazards=hazards
        )

    def _conflicted(self, result: MergeResult) -> Outcome:
        repository, change, conflicts = self.repository, self.change, result.conflicts
        if reverse_applies(repository, change, self.ours):
            return self.absorbed(("reverse-apply",))
        if code := [path for path in conflicts if not is_text(path)]:
            detail = few(code, _SHOWN, more=" and {} more files") + self._told_ends(code)
            return self._left_out(detail, OutcomeKind.CONFLICT, conflicts=conflicts)
        tree = self._with_ours(result)
        if tree != self.ours:
            return self._applied(tree, conflicts)
        if all(map(is_text, repository.changed(change.base, change.theirs))):
            detail = "nothing is left of it but conflicts in tests or documents"
            return self._left_out(detail, conflicts=conflicts)
        # Its code changed nothing, so upstream has all of that; only its tests or documents differ.
        return self.absorbed(("equal-tree",), conflicts)

    def _told_ends(self, paths: Sequence[str]) -> str:
        """Return a remark on the first of *paths* whose line ends one side changed: each line conflicts."""
        change = self.change
        trees = {
            "the carry was written for": change.base, "the carry has": change.theirs, "it meets": self.ours,
        }  # fmt: skip
        for path in paths:
            styles = {what: line_ends(Side(self.repository, tree).text(path)) for what, tree in trees.items()}
            if len(set(styles.values()) - {""}) > 1:
                told = ", ".join(f"{what} {style}" for what, style in styles.items() if style)
                return f"; the line ends of {path} differ: {told}"
        return ""

    def _with_ours(self, result: MergeResult) -> str:
        """Return the merged tree with our form of every conflicted file."""
        entries = self.repository.files(self.ours, result.conflicts)
        files = {
            path: FileEntry(entries[path].mode, self.repository.blob(entries[path].blob))
            if path in entries
            else None
            for path in result.conflicts
        }
        return patch_tree(self.repository, result.tree, files)

    def _applied(self, merged: str, conflicts: tuple[str, ...] = ()) -> Outcome:
        repository, ours = self.repository, self.ours
        if faults := unshippable(repository, ours, merged):
            return self._left_out(f"no wheel can hold it: {'; '.join(faults)}. The carry has to change")
        sides = Sides(self.change.base, ours, self.change.theirs, merged)
        found = examine(repository, sides, self.store)
        hazards = (*found.hazards, *lost_modes(repository, ours, merged))
        if found.flaws:
            return self._left_out("; ".join(found.flaws), hazards=hazards)
        return Outcome(
            carry=self.carry,
            kind=OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS if conflicts else OutcomeKind.APPLIED,
            tree=merged,
            detail=f"upstream's form was kept of {', '.join(conflicts)}" if conflicts else "",
            hazards=hazards,
            conflicts=conflicts,
            paths=tuple(sorted(repository.changed(ours, merged))),
        )


# What a wheel cannot have -------------------------------------------------------------------------

_PACKAGE = "vllm/"
_COMPILED = (".so", ".pyc")
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
    built = path.endswith(_COMPILED) and f"{path} is compiled, and wheels have such files of builds alone"
    if old is None and (fault := name_fault(path) or built):
        return fault
    data = repository.blob(new.blob)
    most = most_bytes(path)
    if len(data) > most:
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
