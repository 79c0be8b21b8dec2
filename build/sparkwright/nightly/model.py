"""The findings of one night, per target and carry: outcome, judgement, and the commit that changed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.errors import StorageError
from sparkwright.merge.report import Hazard, OutcomeKind
from sparkwright.store.disk import storing, write_atomically

TargetKind = Literal["release", "commit"]


class Judgement(StrEnum):
    """The meaning of a carry's outcome and of its probe's runs on one target; in words in `MEANINGS`."""

    NEEDED = "needed"
    DECLARED = "declared"
    NOT_NEEDED = "not-needed"
    CONFLICT = "conflict"
    WRONG = "wrong-though-clean"
    NOT_ABSORBED = "not-absorbed"
    BROKEN_PROBE = "broken-probe"
    REACH_LOST = "reach-lost"
    NOT_JUDGED = "not-judged"

    @property
    def words(self) -> str:
        """Return it as a person reads it."""
        return self.value.replace("-", " ")

    @property
    def standing(self) -> Standing:
        """Return the standing of a carry that is judged so."""
        return _STANDINGS.get(self, Standing.RED)


MEANINGS = {
    Judgement.NEEDED: "the probe fails on the pristine tree and passes on the merged one",
    Judgement.DECLARED: "the project says why it is not in the tree: superseded, left out, or absorbed",
    Judgement.NOT_NEEDED: "the probe passes on the pristine tree: drop the carry, or declare it superseded",
    Judgement.CONFLICT: "it does not merge, and the defect is still upstream as far as the probe can tell",
    Judgement.WRONG: "it merges without a conflict, and the probe fails on the result",
    Judgement.NOT_ABSORBED: "upstream seems to have the change, and still has the defect",
    Judgement.BROKEN_PROBE: "the probe cannot run on one of the trees, as after a rename",
    Judgement.REACH_LOST: "it merges and its probe passes, but its model runner is no default any more",
    Judgement.NOT_JUDGED: "it has no probe, or a carry that it requires is not in the tree",
}


class Standing(StrEnum):
    """The three kinds of judgement that a person tells apart at a glance."""

    GOOD = "good"
    DROP = "drop"
    RED = "red"


_STANDINGS = {
    Judgement.NEEDED: Standing.GOOD,
    Judgement.DECLARED: Standing.GOOD,
    Judgement.NOT_NEEDED: Standing.DROP,
}


class NightVerdict(StrEnum):
    """The result of a night."""

    NOTHING_NEW = "nothing-new"
    GREEN = "green"
    NEEDS_PERSON = "needs-person"


class UpstreamTarget(Model, frozen=True):
    """One upstream tree to merge onto.

    Attributes:
        kind: ``release``, or ``commit`` for an untagged commit of the main branch.
        version: the release, or the version that the commit's wheel states; ``0.24.0`` or ``0.24.1.dev7+g…``.
        commit: full id of its commit; abbreviated where only a release's own statement is known.
        wheel: whether upstream has a wheel of it for the platform; `None` if that could not be asked.
        history: whether commits before it are in the store, so that a culprit can be named by commit.
    """

    kind: TargetKind
    version: str
    tree: str
    commit: str = ""
    wheel: bool | None = None
    history: bool = False
    origin: str = ""

    @property
    def label(self) -> str:
        """Return a short name for people: the version of a release, or the commit's first digits."""
        return self.version if self.kind == "release" else self.commit[:12]


class UpstreamCommit(Model, frozen=True):
    """The upstream commit, or release where no history is known, that changed a carry's outcome.

    Attributes:
        commit: full id; empty for a release.
        release: the release, where no commit can be named; else empty.
        before: the carry's outcome on its first parent, or on the release before.
    """

    commit: str
    subject: str
    author: str
    date: str
    files: tuple[str, ...]
    before: OutcomeKind
    after: OutcomeKind
    release: str = ""
    pull: int | None = None


class Mark(Model, frozen=True):
    """One cell of a carry's strip of nights."""

    date: str
    target: str
    judgement: Judgement


class CarryNight(Model, frozen=True):
    """One carry on one target.

    Attributes:
        outcome: the outcome of merging the whole patchset, in order.
        alone: the outcome with nothing but what it requires; differs where another carry is in the way.
        finding: what the probe found, first line, or why it did not run.
        hazards: functions that both sides changed, and calls that do not fit any more.
        previous: its outcome on the previous target of the same kind; `None` on the first night.
        culprit: the upstream commit that changed its outcome; kept from night to night while it stays red.
        red_since: date of the first night of this red run; empty while it is not red.
        holds: label of the newest target on which it was good: what a proposal keeps for it while red.
        bisect_command: command that searches for the change; empty where there is nothing to search.
        history: earlier nights on this kind of target, oldest first, this one last.
    """

    name: str
    outcome: OutcomeKind
    judgement: Judgement
    alone: OutcomeKind | None = None
    detail: str = ""
    finding: str = ""
    hazards: tuple[Hazard, ...] = ()
    conflicts: tuple[str, ...] = ()
    previous: OutcomeKind | None = None
    culprit: UpstreamCommit | None = None
    red_since: str = ""
    holds: str = ""
    bisect_command: str = ""
    history: tuple[Mark, ...] = ()

    @property
    def standing(self) -> Standing:
        """Return whether it is good, to be dropped, or red."""
        return self.judgement.standing

    @property
    def told(self) -> str:
        """Return what a reader has to know first: what the probe found, or the reason for the outcome."""
        return self.finding or self.detail

    @property
    def outcomes(self) -> str:
        """Return its outcome, and the former one if that differed."""
        if self.previous in {None, self.outcome}:
            return str(self.outcome)
        return f"{self.previous} → {self.outcome}"

    @property
    def changed(self) -> bool:
        """Tell if the judgement differs from the previous night's."""
        return len(self.history) > 1 and self.history[-2].judgement is not self.judgement


class NightBuild(Model, frozen=True):
    """The wheel of one target.

    Attributes:
        status: ``built`` also where an earlier run built the same wheel.
        left_out: names of carries of the patchset that are not in it because they are not good.
        lock: path of the lock that it was built with, to propose.
    """

    status: Literal["built", "skipped", "failed"]
    reason: str = ""
    path: str = ""
    version: str = ""
    sha256: str = ""
    size: int = 0
    audited: bool = False
    carries: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    lock: str = ""


class NightCheck(Model, frozen=True):
    """Something that was tried on one target: its rehearsal, its Triton kernels, or upstream's own tests.

    Attributes:
        status: upstream's tests fail where one passes on the target's tree and fails on the merged one.
        reason: what failed, how much was tried, or why it was skipped.
        flaky: tests of upstream's that differed between the trees, and did not differ again.
    """

    status: Literal["passed", "failed", "skipped"]
    reason: str = ""
    report: str = ""
    passed: int = 0
    flaky: tuple[str, ...] = ()


NOT_ASKED = NightCheck(status="skipped", reason="not asked for")


class TargetNight(Model, frozen=True):
    """The findings about one target.

    Attributes:
        previous: the target of the same kind that it is compared with: last night's, or the pin.
        merged: id of the tree with the whole patchset, without what did not merge.
    """

    target: UpstreamTarget
    previous: UpstreamTarget | None
    merged: str
    carries: tuple[CarryNight, ...]
    build: NightBuild = NightBuild(status="skipped", reason="not asked for")
    rehearsal: NightCheck = NOT_ASKED
    kernels: NightCheck = NOT_ASKED
    tests: NightCheck = NOT_ASKED

    @property
    def green(self) -> bool:
        """Tell if every carry is good, and nothing failed that was tried with them."""
        good = all(carry.standing is Standing.GOOD for carry in self.carries)
        return good and not self.failed

    @property
    def failed(self) -> bool:
        """Tell if the build, the rehearsal, a Triton kernel or a test of upstream's failed."""
        tried = (self.build, self.rehearsal, self.kernels, self.tests)
        return "failed" in {one.status for one in tried}

    def carry(self, name: str) -> CarryNight:
        """Return the carry called *name*."""
        return next(carry for carry in self.carries if carry.name == name)


class Night(Model, frozen=True):
    """One run of ``sparkwright nightly`` that found something new.

    Attributes:
        id: number of the night in its state file, as text, growing.
        patchset: name of the series, such as ``0.33``; with another patchset than its own, ``mine@0.33``.
        verdict: ``nothing-new`` only for a run that stopped after discovery.
        reasons: one line for each thing that a person has to decide.
    """

    id: str
    date: str
    patchset: str
    pin: str
    verdict: NightVerdict
    reasons: tuple[str, ...] = ()
    targets: tuple[TargetNight, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


# The nights of a series in a checkout -------------------------------------------------------------

# A run that is killed leaves no file. One process at a time writes: the command holds a lock.


class RecordedNight(Model, frozen=True):
    """A night, and the digest of what it looked at."""

    inputs: str
    night: Night


@dataclass(frozen=True)
class NightState:
    """The nights in *folder*, which is made with the first one."""

    folder: Path

    def recorded(self) -> Iterator[RecordedNight]:
        """Yield what was recorded, newest first."""
        for _, path in sorted(self._numbered(), reverse=True):
            try:
                yield decode_json(path.read_bytes(), RecordedNight)
            except (OSError, msgspec.MsgspecError) as error:
                raise StorageError(
                    f"the night in {path} cannot be read",
                    because=str(error),
                    next_step=f"move {self.folder} away: the next night counts days red from then on",
                ) from error

    def nights(self) -> Iterator[Night]:
        """Yield the nights, newest first."""
        return (one.night for one in self.recorded())

    def last_target(self, kind: TargetKind) -> TargetNight | None:
        """Return the newest findings on a target of that *kind*."""
        found = (one for night in self.nights() for one in reversed(night.targets))
        return next((one for one in found if one.target.kind == kind), None)

    def last_inputs(self) -> str:
        """Return the digest of what the last night looked at; empty before the first."""
        return next((one.inputs for one in self.recorded()), "")

    def next_id(self) -> str:
        """Return the name that the next night gets."""
        return str(max((number for number, _ in self._numbered()), default=0) + 1)

    def record(self, night: Night, *, inputs: str) -> None:
        """Add *night*, with the digest of its *inputs*."""
        made = RecordedNight(inputs=inputs, night=night)
        with storing(f"recording the night in {self.folder}"):
            write_atomically(self.folder / f"{night.id}.json", msgspec.json.encode(made))

    def _numbered(self) -> Iterator[tuple[int, Path]]:
        """Yield the nights' files by number; others, such as a person's copies, are none of a night."""
        for path in self.folder.glob("*.json"):
            if path.stem.isdecimal():
                yield int(path.stem), path


def red_since(marks: Sequence[Mark]) -> str:
    """Return the date on which the red run that ends *marks*, oldest first, began; empty where none does."""
    since = ""
    for mark in reversed(marks):
        if mark.judgement.standing is not Standing.RED:
            break
        since = mark.date
    return since


def holds(marks: Sequence[Mark], pin: str) -> str:
    """Return the label of the newest target in *marks* on which the carry was good, or the *pin*'s."""
    good = (mark.target for mark in reversed(marks) if mark.judgement.standing is Standing.GOOD)
    return next(good, pin)
