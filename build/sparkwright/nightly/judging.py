"""Every carry merged onto one target, what of upstream's changed its outcome, and its judgement there.

A carry is judged by its probe on both trees, never by the text of a merge.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError
from sparkwright.carries.model import Carry
from sparkwright.carries.patchset import closure
from sparkwright.git.repository import Repository
from sparkwright.merge.absorb import CarryChange
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.prepare import prepare
from sparkwright.merge.report import MergeReport, Outcome, OutcomeKind
from sparkwright.nightly.model import Judgement, UpstreamCommit, UpstreamTarget
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.proofs import Trial, reason_of, trial_of
from sparkwright.pipeline.state import require
from sparkwright.probe.proof import ProbeVerdict, Proof
from sparkwright.search.changes import UpstreamStep, commit_steps, upstream_changes, weigh
from sparkwright.search.model import Evaluation, SearchProblem, StepVerdict
from sparkwright.search.strategy import Question, solve
from sparkwright.upstream.releases import Pristine

_RECORD = "culprit"
_RULES = 3  # part of the record's key: raised when a search gives another result for the same inputs
_SIGNAL = re.compile(r"^(?:subject|patch-id) ([0-9a-f]{12})\b")
_DECIDED = {OutcomeKind.SUPERSEDED, OutcomeKind.LEFT_OUT}


@dataclass
class Merging:
    """The patchset on one target."""

    job: Job
    target: UpstreamTarget
    _listed: dict[str, Sequence[UpstreamStep]] = field(default_factory=dict)
    _changes: dict[str, CarryChange | None] = field(default_factory=dict)

    @functools.cached_property
    def report(self) -> MergeReport:
        """The merge of the whole patchset, in order."""
        return self.engine(self.target.tree, self.job.spec.carries, commit=self.target.commit)

    def engine(self, tree: str, carries: Sequence[Carry], *, commit: str = "") -> MergeReport:
        """Return the engine's report on *carries* merged onto *tree*, with history up to *commit* if any."""
        history = bool(commit) and self.target.history
        known = commit if history else None
        pristine = Pristine(tree, known, self.target.origin, history=history)
        request = self.job.merge_request(pristine, self.target.version)
        return merge_patchset(self.job.repository, replace(request, carries=tuple(carries)))

    def touched(self, carry: Carry) -> tuple[str, ...]:
        """Return the files that the change of *carry* is about; none where it cannot be made."""
        change = self._change(carry)
        return (
            () if change is None else tuple(sorted(self.job.repository.changed(change.base, change.theirs)))
        )

    def _change(self, carry: Carry) -> CarryChange | None:
        """Return the change of *carry* where it is merged into upstream's own tree and can be made."""
        if carry.name not in self._changes:
            job, version = self.job, self.target.version
            change: CarryChange | str = ""
            if not (carry.spec.source or carry.name in job.spec.left_out or carry.superseded_in(version)):
                change = prepare(
                    job.repository,
                    carry,
                    version=version,
                    find_base=job.find_base,
                    offline=job.options.offline,
                )
            self._changes[carry.name] = None if isinstance(change, str) else change
        return self._changes[carry.name]

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
        releases: Callable[[], Sequence[UpstreamStep]],
    ) -> UpstreamCommit | None:
        """Return what upstream changed between *old* and the target that gave *carry* its outcome.

        *alone* is its outcome alone, where that was tried; *releases* are asked only if no history is known.
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
        store = self.job.store
        if (known := store.find_record_as(UpstreamCommit, _RECORD, key)) is not None:
            return known
        found = self._signalled(outcome) or self._searched(carry, part, old, None if by_commit else releases)
        if found is not None:
            store.put_record(_RECORD, key, to_builtins(found))
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
                kinds = OutcomeKind.APPLIED, OutcomeKind.ABSORBED
                return describe_commit(self.job.repository, named[1], outcome.concerns, *kinds)
        return None

    def _searched(
        self,
        carry: Carry,
        part: Sequence[Carry],
        old: UpstreamTarget,
        releases: Callable[[], Sequence[UpstreamStep]] | None,
    ) -> UpstreamCommit | None:
        repository, after = self.job.repository, self.report.outcome(carry.name).kind
        outcome = functools.cache(lambda tree: self.engine(tree, part).outcomes[-1].kind)
        if outcome(old.tree) is after:
            return None  # the carry itself changed, or history's signals decided
        paths, start = self.touched(carry), old.tree
        if releases is not None:
            steps = releases()
        else:
            left = fork(repository, old.commit, self.target.commit)
            if left is None:
                return None
            start, steps = repository.tree_of(left), self._commits(left)
        index = step_to(start, steps, after, outcome, paths)
        if index is None:
            return None  # no merge can tell, or the older target's own branch made the difference
        found, tree = steps[index], steps[index - 1].point.tree if index else start
        if found.point.commit:
            return describe_commit(repository, found.point.commit, paths, outcome(tree), after)
        return UpstreamCommit(
            commit="",
            release=found.point.version,
            subject=found.title,
            author="",
            date="",
            files=changed_files(repository, tree, found.point.tree, paths),
            before=outcome(tree),
            after=after,
        )

    def _commits(self, left: str) -> Sequence[UpstreamStep]:
        """Return upstream's commits from where a branch *left* it up to the target, listed once."""
        if left not in self._listed:
            target = self.target
            self._listed[left] = commit_steps(self.job.repository, left, target.commit, target.version)
        return self._listed[left]


# The upstream commit or release that changed an outcome -------------------------------------------

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_SUSPECTED = 100.0
_FIELDS = "%H%x00%s%x00%an%x00%aI"


def fork(repository: Repository, old: str, new: str) -> str | None:
    """Return the commit from which both lines come; releases lie on branches beside upstream's main one."""
    done = repository.command("merge-base", old, new, accept=(0, 1, 128))
    return done.text or None if done.status == 0 else None


def step_to(
    start: str,
    steps: Sequence[UpstreamStep],
    after: OutcomeKind,
    outcome: Callable[[str], OutcomeKind],
    paths: Collection[str],
) -> int | None:
    """Return the index of a step with the outcome *after* whose predecessor has another.

    Steps that change one of *paths* are suspected first. `None` if the start has that outcome too, or the end
    another.

    *outcome* merges the carry onto a tree; *paths* are the files that it changes.
    """
    if not steps:
        return None
    changes = tuple(upstream_changes(steps))

    def merged(question: Question) -> Evaluation:
        applied = len(question.applied)
        kind = outcome(steps[applied - 1].point.tree if applied else start)
        return Evaluation(verdict=StepVerdict.BAD if kind is after else StepVerdict.GOOD)

    problem = SearchProblem(
        start=start,
        end=steps[-1].point.tree,
        judge=f"a merge that is {after}",
        changes=changes,
        deterministic=True,
        weights=weigh(changes, paths, _SUSPECTED),
    )
    try:
        result = solve(problem, merged)
    except BisectionError:  # an end is not what it is taken for
        return None
    return [change.id for change in changes].index(result.changes[0])


def describe_commit(
    repository: Repository, commit: str, paths: Collection[str], before: OutcomeKind, after: OutcomeKind
) -> UpstreamCommit:
    """Return what is known of an upstream *commit* that changed an outcome."""
    shown = repository.command("show", "-s", f"--format={_FIELDS}", commit).stdout.decode(errors="replace")
    full, subject, author, date = shown.rstrip("\n").split("\0")
    trees = repository.tree_of(f"{commit}^"), repository.tree_of(commit)
    pull = _PULL.search(subject)
    return UpstreamCommit(
        commit=full,
        subject=subject,
        author=author,
        date=date,
        files=changed_files(repository, *trees, paths),
        before=before,
        after=after,
        pull=int(pull[1]) if pull else None,
    )


def changed_files(repository: Repository, old: str, new: str, paths: Collection[str]) -> tuple[str, ...]:
    """Return those of *paths* that differ between two trees, or every file that does if none of these is."""
    changed = repository.changed(old, new).keys()
    return tuple(sorted(changed & set(paths)) or sorted(changed))


# The judgement -----------------------------------------------------------------------------------

_MERGED = {
    ProbeVerdict.PROVED: Judgement.NEEDED,
    ProbeVerdict.NOT_NEEDED: Judgement.NOT_NEEDED,
    ProbeVerdict.REFUTED: Judgement.WRONG,
    ProbeVerdict.BROKEN: Judgement.BROKEN_PROBE,
}
_ABSORBED = {
    ProbeVerdict.NOT_NEEDED: Judgement.NOT_NEEDED,
    ProbeVerdict.NOT_ABSORBED: Judgement.NOT_ABSORBED,
    ProbeVerdict.BROKEN: Judgement.BROKEN_PROBE,
}
_GONE = re.compile(r"cannot import name '(\w+)' from 'vllm\.")
_CHOICE = ("vllm/config/vllm.py", b"def use_v2_model_runner", b"DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")


@dataclass(frozen=True)
class Judged:
    """A judgement, and what it rests on."""

    judgement: Judgement
    finding: str


@dataclass
class Judge:
    """Judges the carries of one merge."""

    job: Job
    report: MergeReport
    pin: str
    _begun: dict[str, Callable[[], Proof]] = field(default_factory=dict)

    def begin(self, carry: Carry, touched: Sequence[str]) -> None:
        """Start the probe that `judge` of *carry* needs, where it needs one and the job has a pool."""
        declared = self.report.outcome(carry.name).kind in _DECIDED
        trial = None if declared else trial_of(self.job, self.report, carry, touched)
        if self.job.pool is not None and trial is not None and trial.find() is None:
            self._begun[carry.name] = trial.begin()

    def judge(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Return the judgement on *carry*, which would change the files *touched*.

        A probe runs only if the store has no proof with the same inputs.
        """
        outcome = self.report.outcome(carry.name)
        if outcome.kind in _DECIDED:
            return Judged(Judgement.DECLARED, outcome.detail)
        if carry.spec.probe is None:
            why = f"{outcome.detail}; it has no probe".lstrip("; ")
            conflict = outcome.kind.blocks_build
            return Judged(Judgement.CONFLICT if conflict else Judgement.NOT_JUDGED, why)
        if outcome.kind.blocks_build:
            return self._unmerged(carry, touched)
        trial = require(trial_of(self.job, self.report, carry))
        proof = self._proof(trial)
        judgement = (_MERGED if trial.in_tree else _ABSORBED)[proof.verdict]
        if judgement is Judgement.NEEDED and carry.at(self.report.version).spec.runner == "v1":
            # No probe sees this: it calls the changed code itself.
            before, after = (runners(self.job.repository, one) for one in (self.pin, self.report.pristine))
            if "v1" in before - after:
                why = "it is for model runner V1, and V2 is the default of every model there"
                return Judged(Judgement.REACH_LOST, why)
        return Judged(judgement, self._reason(proof))

    def _unmerged(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Judge a carry that is in no tree by its probe on the pristine one: the defect may be gone."""
        trial = trial_of(self.job, self.report, carry, touched)
        if trial is None:
            return Judged(Judgement.CONFLICT, self.report.outcome(carry.name).detail)
        proof = self._proof(trial)
        if proof.verdict is ProbeVerdict.NOT_NEEDED and trial.paths:
            return Judged(Judgement.NOT_NEEDED, "its probe passes on the pristine tree")
        if proof.verdict is ProbeVerdict.BROKEN:
            return Judged(Judgement.CONFLICT, f"the probe cannot run there either: {self._reason(proof)}")
        return Judged(Judgement.CONFLICT, f"the defect is still there: {reason_of(proof)}")

    def _reason(self, proof: Proof) -> str:
        """Return what *proof* rests on, after the place of a name that its probe cannot import any more."""
        text = reason_of(proof)
        gone = _GONE.search(text) if proof.verdict is ProbeVerdict.BROKEN else None
        if gone is None or not (paths := self._defining(gone[1])):
            return text
        return f"{gone[1]} is in {', '.join(paths)} now; {text}"

    def _defining(self, name: str) -> list[str]:
        """Return the files of the target's package that define *name* at their top level."""
        word = re.escape(name.encode())
        definition = re.compile(
            rb"^(?:(?:async +)?def|class) +" + word + rb"\b|^" + word + rb" *[:=]", re.MULTILINE
        )
        repository = self.job.repository
        return [
            path
            for path, entry in sorted(repository.files(self.report.pristine).items())
            if path.startswith("vllm/") and path.endswith(".py")
            if definition.search(repository.blob(entry.blob))
        ]

    def _proof(self, trial: Trial) -> Proof:
        begun = self._begun.pop(trial.carry.name, None)
        return trial.find() or trial.prove() if begun is None else begun()


def runners(repository: Repository, tree: str) -> frozenset[str]:
    """Return the model runners that are some model's default: by a list of architectures, or V2 alone."""
    path, choice, by_model = _CHOICE
    entry = repository.files(tree, [path]).get(path)
    text = b"" if entry is None else repository.blob(entry.blob)
    if choice not in text:
        return frozenset({"v1"})
    return frozenset({"v1", "v2"} if by_model in text else {"v2"})
