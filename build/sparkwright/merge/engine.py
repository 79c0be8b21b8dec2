"""The merge of a patchset, carry by carry, in git's object store."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.events import emit
from sparkwright.git import FileEntry, merge_trees, patch_tree
from sparkwright.merge.absorb import History, history_signals, reverse_applies
from sparkwright.merge.hazards import Sides, examine
from sparkwright.merge.prepare import prepare
from sparkwright.merge.report import MergeReport, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.carry import Carry
    from sparkwright.git import MergeResult, Repository
    from sparkwright.merge.absorb import Change
    from sparkwright.merge.prepare import BaseFinder, Preparation

__all__ = ["MergeRequest", "is_text", "merge_patchset"]

# What never reaches a wheel and decides nothing in one: a conflict there is worth a note, no more.
_TEXTS = (
    "tests/*",
    "*/tests/*",
    "docs/*",
    "examples/*",
    "benchmarks/*",
    ".github/*",
    ".buildkite/*",
    "*.md",
    "*.rst",
)
_SHOWN = 3


@dataclass(frozen=True)
class MergeRequest:
    """What to merge onto what.

    Attributes:
        pristine: id of the pristine tree.
        version: the upstream version that it is.
        carries: in order.
        find_base: gives the pristine tree of a revision's own release.
        history: upstream's history, where the source has it.
        offline: use pull requests as the store has them, without asking for their heads.
    """

    pristine: str
    version: str
    carries: Sequence[Carry]
    find_base: BaseFinder
    history: History | None = None
    offline: bool = False


def is_text(path: str) -> bool:
    """Whether *path* is a test or a document, and so neither shipped nor compiled."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in _TEXTS)


def merge_patchset(repository: Repository, request: MergeRequest) -> MergeReport:
    """Merge every carry in order; one that fails is left out and the next ones are still tried.

    Raises:
        ProcessError: git itself failed; a conflict is an outcome, not an error.
    """
    tree = request.pristine
    commit = repository.commit(tree, message=f"pristine {request.version}")
    outcomes: list[Outcome] = []
    prepared = {
        preparation.carry.name: preparation
        for preparation in prepare(
            repository,
            [carry for carry in request.carries if carry.superseded_in(request.version) is None],
            version=request.version,
            find_base=request.find_base,
            offline=request.offline,
            below=request.carries,
        )
    }
    for carry in request.carries:
        outcome = _declared(carry, request, tree, outcomes) or _merge_one(
            repository, prepared[carry.name], request, tree
        )
        outcomes.append(outcome)
        emit("merge.outcome", carry=carry.name, outcome=str(outcome.kind), detail=outcome.detail)
        if outcome.tree != tree:
            tree = outcome.tree
            message = f"{carry.spec.title}\n\nCarry: {carry.name}"
            commit = repository.commit(tree, parents=[commit], message=message)
    return MergeReport(
        version=request.version, pristine=request.pristine, tree=tree, commit=commit, outcomes=tuple(outcomes)
    )


def _declared(carry: Carry, request: MergeRequest, tree: str, earlier: Sequence[Outcome]) -> Outcome | None:
    """The outcome that needs no merge: superseded by declaration, or without what it requires."""
    if entry := carry.superseded_in(request.version):
        detail = f"by {entry.by} in {entry.releases}: {entry.because}"
        return Outcome(carry=carry.name, kind=OutcomeKind.SUPERSEDED, tree=tree, detail=detail)
    for outcome in earlier:
        if outcome.carry in carry.spec.requires and not outcome.kind.harmless:
            detail = f"it requires {outcome.carry}, whose outcome is {outcome.kind}"
            return Outcome(carry=carry.name, kind=OutcomeKind.REFUSED, tree=tree, detail=detail)
    return None


def _merge_one(repository: Repository, preparation: Preparation, request: MergeRequest, ours: str) -> Outcome:
    carry, change = preparation.carry, preparation.change
    if change is None:
        return Outcome(carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail=preparation.refusal)
    if signals := _history(repository, request, carry, change):
        return _absorbed(carry, ours, signals)
    result = merge_trees(repository, base=change.base_commit, ours=ours, theirs=change.theirs)
    if result.clean and result.tree == ours:
        return _absorbed(carry, ours, ("equal-tree",))
    if not result.clean:
        return _conflicted(repository, carry, change, ours, result)
    return _applied(repository, carry, change, ours, result.tree)


def _history(repository: Repository, request: MergeRequest, carry: Carry, change: Change) -> tuple[str, ...]:
    """Signals from upstream's history, where there is any and it can hold the carry's change."""
    if request.history is None:
        return ()
    pulls = [entry.pull for entry in carry.spec.upstream if entry.absorbs]
    if carry.spec.pull is not None:
        history = History(request.history.target, since=carry.spec.pull.base)
        return history_signals(repository, history, change, [*pulls, carry.spec.pull.number])
    revision = carry.revision_for(request.version)
    if revision is not None and revision.release == request.version:
        return ()  # it was written against this very tree, and so against all of its history
    return history_signals(repository, request.history, change, pulls)


def _absorbed(
    carry: Carry, ours: str, signals: tuple[str, ...], *, conflicts: tuple[str, ...] = ()
) -> Outcome:
    detail = f"upstream has it ({', '.join(signals)})"
    if conflicts:
        detail += f", and its own form of {', '.join(conflicts)}"
    return Outcome(
        carry=carry.name,
        kind=OutcomeKind.ABSORBED,
        tree=ours,
        detail=detail,
        signals=signals,
        conflicts=conflicts,
    )


def _conflicted(
    repository: Repository, carry: Carry, change: Change, ours: str, result: MergeResult
) -> Outcome:
    if reverse_applies(repository, change, ours):
        return _absorbed(carry, ours, ("reverse-apply",))
    code = [path for path in result.conflicts if not is_text(path)]
    if code:
        detail = _shortened(code)
        return Outcome(
            carry=carry.name, kind=OutcomeKind.CONFLICT, tree=ours, detail=detail, conflicts=result.conflicts
        )
    tree = _with_ours(repository, result, ours)
    if tree == ours and not all(map(is_text, repository.changed(change.base, change.theirs))):
        # Its code changed nothing, so upstream has all of that; only its tests or documents differ.
        return _absorbed(carry, ours, ("equal-tree",), conflicts=result.conflicts)
    if tree == ours:
        detail = "nothing is left of it but conflicts in tests or documents"
        return Outcome(
            carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail=detail, conflicts=result.conflicts
        )
    return _applied(repository, carry, change, ours, tree, conflicts=result.conflicts)


def _shortened(paths: Sequence[str]) -> str:
    """The first few of *paths*, and how many there are."""
    shown = ", ".join(paths[:_SHOWN])
    return f"{shown} and {len(paths) - _SHOWN} more files" if len(paths) > _SHOWN else shown


def _with_ours(repository: Repository, result: MergeResult, ours: str) -> str:
    """The merged tree with our form of every conflicted file."""
    entries = repository.files(ours, result.conflicts)
    files = {
        path: FileEntry(entries[path].mode, repository.blob(entries[path].blob)) if path in entries else None
        for path in result.conflicts
    }
    return patch_tree(repository, result.tree, files)


def _applied(
    repository: Repository,
    carry: Carry,
    change: Change,
    ours: str,
    merged: str,
    *,
    conflicts: tuple[str, ...] = (),
) -> Outcome:
    flaws, hazards = examine(repository, Sides(change.base, ours, change.theirs, merged))
    if flaws:
        return Outcome(
            carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail="; ".join(flaws), hazards=hazards
        )
    kind = OutcomeKind.CONFLICT_IN_TEXTS if conflicts else OutcomeKind.APPLIED
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
