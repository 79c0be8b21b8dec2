"""The merge of a patchset, carry by carry, in git's object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from sparkwright.base.errors import PatchError
from sparkwright.base.events import emit
from sparkwright.carries.model import Carry
from sparkwright.git.repository import Repository, TreeEntry
from sparkwright.merge.absorb import CarryChange, History, history_signals
from sparkwright.merge.landing import Landing, idle
from sparkwright.merge.prepare import BaseFinder, attempt, patched, prepare
from sparkwright.merge.report import MergedSource, MergeReport, Outcome, OutcomeKind
from sparkwright.store.paths import Store

_OWN = ""  # stands for vLLM's own tree among the names of sources


@dataclass(frozen=True)
class MergeRequest:
    """Carries, and the tree to merge them onto.

    Attributes:
        history: upstream's history, where the source has it.
        offline: use pull requests as the store has them, without asking for their heads.
        left_out: carries that are not to be merged, by name, and why.
        sources: ids of the pinned trees of dependencies' sources in the store, by the lock's names.
        store: remembers findings on clean merges; without it each is examined every time.
    """

    pristine: str
    version: str
    carries: Sequence[Carry]
    find_base: BaseFinder
    history: History | None = None
    offline: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    store: Store | None = None


def merge_patchset(repository: Repository, request: MergeRequest) -> MergeReport:
    """Merge every carry in order; one that fails is left out and the next ones are still tried.

    A carry of a dependency's source goes into that source's tree, all others into vLLM's.

    Raises:
        ProcessError: git itself failed; a conflict is an outcome, not an error.
    """
    trees = {_OWN: request.pristine, **request.sources}
    commit = repository.commit(request.pristine, message=f"pristine {request.version}")
    outcomes: list[Outcome] = []
    for carry in request.carries:
        place = carry.spec.source or _OWN
        outcome = _declared(carry, request, trees, outcomes)
        if outcome is None:
            outcome = replace(_merge_one(repository, carry, request, trees[place]), source=place)
        outcomes.append(outcome)
        emit("merge.outcome", carry=carry.name, outcome=str(outcome.kind), detail=outcome.detail)
        if place == _OWN and outcome.tree != trees[_OWN]:
            message = f"{carry.spec.title}\n\nCarry: {carry.name}"
            commit = repository.commit(outcome.tree, parents=[commit], message=message)
        if place in trees:
            trees[place] = outcome.tree
    wanted = {carry.spec.source for carry in request.carries}
    return MergeReport(
        version=request.version,
        pristine=request.pristine,
        tree=trees[_OWN],
        commit=commit,
        outcomes=tuple(outcomes),
        sources=tuple(
            MergedSource(name=name, pristine=pristine, tree=trees[name])
            for name, pristine in sorted(request.sources.items())
            if name in wanted
        ),
    )


def _declared(
    carry: Carry, request: MergeRequest, trees: Mapping[str, str], earlier: Sequence[Outcome]
) -> Outcome | None:
    """Return an outcome that needs no merge: left out, superseded, or without a carry that it requires."""
    place = carry.spec.source or _OWN
    found: tuple[OutcomeKind, str] | None = None
    if why := request.left_out.get(carry.name):
        found = OutcomeKind.LEFT_OUT, why
    elif entry := carry.superseded_in(request.version):
        found = OutcomeKind.SUPERSEDED, f"by {entry.by} in {entry.releases}: {entry.because}"
    elif place not in trees:
        found = OutcomeKind.LEFT_OUT, f"the source of {place} is not in the store"
    else:
        found = next(filter(None, (_without(carry, outcome) for outcome in earlier)), None)
    if found is None:
        return None
    kind, detail = found
    return Outcome(carry=carry.name, kind=kind, tree=trees.get(place, ""), detail=detail, source=place)


def _without(carry: Carry, earlier: Outcome) -> tuple[OutcomeKind, str] | None:
    """Return what becomes of *carry* when it requires one that is not in any tree, if it does."""
    if earlier.carry not in carry.spec.requires:
        return None
    if earlier.kind is OutcomeKind.LEFT_OUT:
        return OutcomeKind.LEFT_OUT, f"it requires {earlier.carry}, which is left out"
    if earlier.kind.blocks_build:
        return OutcomeKind.REFUSED, f"it requires {earlier.carry}, whose outcome is {earlier.kind}"
    return None


def _merge_one(repository: Repository, carry: Carry, request: MergeRequest, ours: str) -> Outcome:
    version, offline = request.version, request.offline
    if carry.spec.source is None:
        change = prepare(repository, carry, version=version, find_base=request.find_base, offline=offline)
    else:
        change = attempt(partial(_source_change, repository, carry, ours, version=version))
    refusal = change if isinstance(change, str) else idle(repository, change.base, change.theirs)
    if refusal or isinstance(change, str):
        return Outcome(carry=carry.name, kind=OutcomeKind.REFUSED, tree=ours, detail=refusal)
    landing = Landing(repository, carry.name, change, ours, request.store)
    signals = _history(repository, request, carry, change)
    return landing.absorbed(signals) if signals else landing.land()


def _history(
    repository: Repository, request: MergeRequest, carry: Carry, change: CarryChange
) -> tuple[str, ...]:
    """Return signals from upstream's history, where there is any and it can hold the carry's change."""
    if request.history is None or carry.spec.source is not None:
        return ()
    pulls = [entry.pull for entry in carry.spec.upstream if entry.absorbs]
    if carry.spec.pull is not None:
        history = History(request.history.target, since=carry.spec.pull.base)
        return history_signals(repository, history, change, [*pulls, carry.spec.pull.number])
    revision = carry.revision_for(request.version)
    if revision is not None and revision.release == request.version:
        return ()  # it was written against this very tree, and so against all of its history
    return history_signals(repository, request.history, change, pulls)


# Sources of dependencies --------------------------------------------------------------------------

# Sources come from archives, wheels and git remotes alike, and old ones are not kept. So a revision's
# base is not a tree of its own here: it is the pinned tree with the very blobs that the patch names,
# which most often are the pinned ones.


def _source_change(repository: Repository, carry: Carry, tree: str, *, version: str) -> CarryChange:
    """Return the change of *carry*, on the base that its revision for *version* was written against."""
    revision = carry.revision_for(version)
    if revision is None:
        raise PatchError(f"carry {carry.name} has no revision")
    patch = carry.patch(revision)
    present = repository.files(tree, patch.paths)
    base: dict[str, TreeEntry | None] = {}
    for file in patch.files:
        entry = present.get(file.path)
        if file.old is None:
            base[file.path] = None
        elif entry is None or entry.blob != file.old:
            if not repository.has(file.old):
                raise PatchError(
                    f"the base of {carry.name} is not in the store",
                    because=f"it was written against {carry.spec.source} at {revision.source_ref}, "
                    f"and {file.path} is another one in the pinned tree",
                    next_step="write a revision of it against the pinned source",
                )
            base[file.path] = TreeEntry(file.mode, file.old)
    if base:
        tree = repository.objects.edit(tree, base) or repository.objects.write("tree", b"")
    return patched(repository, tree, patch)
