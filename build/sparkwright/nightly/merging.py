"""Every carry merged onto a target: with the whole patchset, alone where that fails, and what changed it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from msgspec.structs import replace as with_fields

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.events import emit
from sparkwright.carries import Carry
from sparkwright.carries.patchset import closure
from sparkwright.merge import MergeReport, Outcome, OutcomeKind, merge_patchset
from sparkwright.merge.absorb import CarryChange
from sparkwright.merge.prepare import Preparation, prepare
from sparkwright.merge.trial import Trial
from sparkwright.nightly.culprit import (
    HistoryPoint,
    OutcomeChange,
    culprit_by_commit,
    culprit_by_release,
    describe,
)
from sparkwright.nightly.model import UpstreamCommit, UpstreamTarget
from sparkwright.pipeline import Job
from sparkwright.upstream import Pristine

_RECORD = "culprit"
_RULES = 1  # part of the record's key: raised when a search gives another result for the same inputs
_SIGNAL = re.compile(r"^(?:subject|patch-id) ([0-9a-f]{12})\b")
_DECIDED = {OutcomeKind.SUPERSEDED, OutcomeKind.LEFT_OUT}


@dataclass
class ExactTrial:
    """The outcome of one carry on upstream trees by the engine itself, flaws of clean merges included."""

    merging: Merging
    part: Sequence[Carry]
    paths: Sequence[str]
    merges: int = 0
    _known: dict[str, OutcomeKind] = field(default_factory=dict)

    def outcome(self, tree: str) -> OutcomeKind:
        """Return the outcome on *tree*."""
        if tree not in self._known:
            self.merges += len(self.part)
            self._known[tree] = self.merging.engine(tree, self.part).outcomes[-1].kind
        return self._known[tree]


@dataclass
class Merging:
    """The patchset on one target.

    Attributes:
        job: the job, whose lock is the pin.
        target: what to merge onto.
    """

    job: Job
    target: UpstreamTarget

    @cached_property
    def report(self) -> MergeReport:
        """The merge of the whole patchset, in order."""
        return self.engine(self.target.tree, self.job.spec.carries, commit=self.target.commit)

    def engine(self, tree: str, carries: Sequence[Carry], *, commit: str = "") -> MergeReport:
        """Return the engine's report on *carries* merged onto *tree*, with history up to *commit* if any."""
        history = bool(commit) and self.target.history
        known = commit if history else None
        pristine = Pristine(tree, known, self.target.origin, verified=True, history=history)
        request = self.job.merge_request(pristine, self.target.version)
        return merge_patchset(self.job.repository, replace(request, carries=tuple(carries)))

    @cached_property
    def _ready(self) -> dict[str, Preparation]:
        """Carries that are merged into upstream's own tree, with their changes, by name."""
        left_out = self.job.spec.left_out
        wanted = [
            carry
            for carry in self.job.spec.carries
            if carry.spec.source is None
            and carry.name not in left_out
            and carry.superseded_in(self.target.version) is None
        ]
        ready = prepare(
            self.job.repository,
            wanted,
            version=self.target.version,
            find_base=self.job.find_base,
            offline=self.job.options.offline,
            below=self.job.spec.carries,
        )
        return {one.carry.name: one for one in ready}

    def touched(self, carry: Carry) -> tuple[str, ...]:
        """Return the files that the change of *carry* is about; none where it cannot be made."""
        change = self._change(carry)
        return (
            () if change is None else tuple(sorted(self.job.repository.changed(change.base, change.theirs)))
        )

    def _change(self, carry: Carry) -> CarryChange | None:
        ready = self._ready.get(carry.name)
        return None if ready is None else ready.change

    def alone(self, carry: Carry) -> OutcomeKind:
        """Return the outcome of *carry* with nothing but what it requires."""
        part = closure([carry.name], self.job.spec.carries)
        if len(part) == len(self.job.spec.carries):
            return self.report.outcome(carry.name).kind
        return self.engine(self.target.tree, part, commit=self.target.commit).outcome(carry.name).kind

    def culprit(
        self,
        carry: Carry,
        old: UpstreamTarget,
        *,
        alone: OutcomeKind | None,
        releases: Callable[[], Sequence[HistoryPoint]],
    ) -> UpstreamCommit | None:
        """Return what upstream changed between *old* and the target that gave *carry* its outcome.

        Args:
            carry: the carry.
            old: a target on which it had another outcome, as the present form of the carry shows.
            alone: its outcome alone, where that was tried.
            releases: gives the releases after *old* up to the target; asked only if no history is known.
        """
        outcome = self.report.outcome(carry.name)
        part = self._part(carry, outcome, alone)
        if outcome.kind in _DECIDED or part is None:
            return None
        by_commit = self.target.history and old.history
        key = digest_of(
            {
                "rules": _RULES,
                "carries": [one.content_id(self.target.version) for one in part],
                "outcome": str(outcome.kind),
                "ends": [old.commit, self.target.commit] if by_commit else [old.tree, self.target.tree],
            }
        )
        known = self.job.store.find_record_as(UpstreamCommit, _RECORD, key)
        if known is not None:
            return known
        found = self._signalled(outcome)
        if found is None:
            found = self._searched(carry, part, old, None if by_commit else releases())
        if found is not None:
            self.job.store.put_record(_RECORD, key, to_builtins(found))
            emit(
                "night.culprit", carry=carry.name, commit=found.commit, release=found.release,
                merges=found.merges, seconds=found.seconds,
            )  # fmt: skip
        return found

    def _part(self, carry: Carry, outcome: Outcome, alone: OutcomeKind | None) -> tuple[Carry, ...] | None:
        """Return the fewest carries that show the *outcome* of *carry*, which is the last of them."""
        mergeable = [one for one in self.job.spec.carries if self._change(one) is not None]
        if carry not in mergeable:
            return None
        upto = mergeable[: mergeable.index(carry) + 1]
        return closure([carry.name], upto) if alone in {None, outcome.kind} else tuple(upto)

    def _signalled(self, outcome: Outcome) -> UpstreamCommit | None:
        """Return the commit that a signal of an absorbed carry names."""
        for signal in outcome.signals:
            if named := _SIGNAL.match(signal):
                return describe(self.job.repository, named[1], outcome)
        return None

    def _searched(
        self,
        carry: Carry,
        part: Sequence[Carry],
        old: UpstreamTarget,
        releases: Sequence[HistoryPoint] | None,
    ) -> UpstreamCommit | None:
        started, repository = time.monotonic(), self.job.repository
        after = self.report.outcome(carry.name).kind
        exact = ExactTrial(self, part, self.touched(carry))
        before = exact.outcome(old.tree)
        if before is after or exact.outcome(self.target.tree) is not after:
            return None  # the carry itself changed, or history's signals decided
        changes = [change for change in map(self._change, part) if change is not None]
        quick = Trial(repository, changes, absorbing=OutcomeKind.ABSORBED in {before, after})
        found: UpstreamCommit | None = None
        for trial in (quick, exact):
            change = OutcomeChange(trial.outcome(old.tree), trial.outcome(self.target.tree))
            if change.before is change.after:
                continue  # a clean merge that is refused for its flaws looks clean to the quick one
            if releases is None:
                found = culprit_by_commit(repository, trial, change, old.commit, self.target.commit)
            else:
                found = culprit_by_release(repository, trial, change, old.tree, releases)
            if found is not None and self._confirmed(exact, found, after, old, releases):
                break
            found = None
        if found is None:
            return None
        return with_fields(found, after=after, seconds=round(time.monotonic() - started, 3))

    def _confirmed(
        self,
        exact: ExactTrial,
        found: UpstreamCommit,
        after: OutcomeKind,
        old: UpstreamTarget,
        releases: Sequence[HistoryPoint] | None,
    ) -> bool:
        """Tell if the engine's outcome on what was *found* is *after*, and another one just before it."""
        if releases is None:
            repository = self.job.repository
            pair = repository.tree_of(f"{found.commit}^"), repository.tree_of(found.commit)
        else:
            names = [point.release for point in releases]
            index = names.index(found.release)
            pair = (releases[index - 1].tree if index else old.tree), releases[index].tree
        return exact.outcome(pair[0]) is not after and exact.outcome(pair[1]) is after
