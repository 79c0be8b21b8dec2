"""The steps to a wheel, in order.

Each step names its key, the digest of all that its result depends on; `None` while that depends on a
step that has yet to run. ``find`` takes the result from the store, ``make`` makes it. Neither
decides anything that the other would decide differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import (
    AbsorptionError,
    CarryConflictError,
    ProofError,
    SparkwrightError,
    UnprovedError,
)
from sparkwright.merge import MergeReport, OutcomeKind, merge_patchset
from sparkwright.pipeline.binaries import binary_arguments, binary_steps, compiled_members, version_of
from sparkwright.pipeline.job import FoundWheel, require
from sparkwright.pipeline.kernels import compile_steps, source_steps
from sparkwright.pipeline.record import wheel_record
from sparkwright.probe import ProbeVerdict, Proof

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.carries import Carry, CarrySpec
    from sparkwright.merge import Outcome
    from sparkwright.pipeline.job import BuildState, Job

# Part of the keys: raised when a room's rules change what the same inputs give.
_MERGE_RULES = 2
_ASSEMBLY_RULES = 1
_AUDIT_RULES = 2


class Step(Protocol):
    """One step; see the module's text."""

    @property
    def name(self) -> str:
        """What it is called in plans and logs."""

    def key(self, job: Job, known: BuildState) -> str | None:
        """Digest of what the result depends on, or `None` while that is not known."""

    def find(self, job: Job, known: BuildState) -> bool:
        """Take the result from the store into *known*; whether it was there."""

    def make(self, job: Job, known: BuildState) -> None:
        """Make the result and put it into the store and *known*."""


@dataclass(frozen=True)
class PristineTree:
    """Upstream's tree in the object store, verified against the lock."""

    name: ClassVar[str] = "pristine tree"

    def key(self, job: Job, known: BuildState) -> str | None:
        del known
        lock = job.point.lock
        return digest_of([job.options.source, lock.release.commit, lock.sdist.sha256])

    def find(self, job: Job, known: BuildState) -> bool:
        known.pristine = job.source.known(job.point.lock)
        return known.pristine is not None

    def make(self, job: Job, known: BuildState) -> None:
        known.pristine = job.pristine


@dataclass(frozen=True)
class Merge:
    """Every carry merged, each with its outcome."""

    name: ClassVar[str] = "merge"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.pristine is None:
            return None
        return digest_of(
            {
                "rules": _MERGE_RULES,
                "pristine": known.pristine.tree,
                "history": known.pristine.commit if known.pristine.history else None,
                "point": job.point.describe(),
                "carries": [_merge_inputs(carry.spec) for carry in job.point.carries],
                **_left_out_and_sources(job),
            }
        )

    def find(self, job: Job, known: BuildState) -> bool:
        if any(carry.spec.pull is not None for carry in job.point.deciding):
            return False  # a pull request's head is asked for every time; the merge itself is quick
        report = job.store.find_record_as(MergeReport, "merge", self.key(job, known) or "")
        if report is None:
            return False
        if not all(map(job.repository.has, [report.commit, *(source.tree for source in report.sources)])):
            return False
        known.report = report
        return True

    def make(self, job: Job, known: BuildState) -> None:
        version = job.point.lock.release.version
        for carry in job.point.deciding:
            if (revision := carry.revision_for(version)) is not None:
                carry.patch(revision)  # a malformed patch is a fault of ours, and no outcome of a merge
        report = merge_patchset(job.repository, job.merge_request(require(known.pristine), version))
        if report.failed:
            told = "; ".join(
                f"{outcome.carry}: {outcome.kind} ({outcome.detail})" for outcome in report.failed
            )
            names = " ".join(outcome.carry for outcome in report.failed)
            raise CarryConflictError(
                "the patchset does not merge",
                because=told,
                next_step=f"'sparkwright merge' shows all outcomes, 'carry refresh' reworks {names}",
            )
        job.repository.keep(f"refs/sparkwright/points/{job.point.digest}", report.commit)
        for source in report.sources:
            commit = job.repository.commit(source.tree, message=f"{source.name} with the point's carries")
            job.repository.keep(f"refs/sparkwright/merged-sources/{job.point.digest}/{source.name}", commit)
        job.store.put_record("merge", self.key(job, known) or "", to_builtins(report))
        known.report = report


def _left_out_and_sources(job: Job) -> dict[str, object]:
    """What a merge depends on besides, and nothing where upstream's kernels are taken and no carry minds."""
    found = {"left-out": sorted(job.point.left_out), "sources": job.sources_at_hand}
    return {name: value for name, value in found.items() if value}


def _merge_inputs(spec: CarrySpec) -> dict[str, object]:
    """What a merge's report takes from a carry besides its content: the title goes into its commit."""
    wanted = ("name", "title", "requires", "superseded", "upstream")
    described = to_builtins(spec)
    return {name: described[name] for name in wanted}


@dataclass(frozen=True)
class Prove:
    """A proof of one carry, recorded or made: that it is needed and works, or that upstream absorbed it."""

    carry: Carry

    @property
    def name(self) -> str:
        """The step's name."""
        return f"prove {self.carry.name}"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.report is None:
            return None
        outcome = known.report.outcome(self.carry.name)
        if self.carry.spec.probe is None or not outcome.kind.wants_proof:
            return digest_of([self.carry.name, str(outcome.kind)])
        absorbed = outcome.kind is OutcomeKind.ABSORBED
        return job.prover(known.report).key(self.carry, outcome.proof_paths, absorbed=absorbed)

    def find(self, job: Job, known: BuildState) -> bool:
        if known.report is None:
            return False
        outcome = known.report.outcome(self.carry.name)
        if not outcome.kind.wants_proof:
            return True  # nothing of the carry is in the tree, and that is as somebody decided
        proof = find_proof(job, known.report, self.carry)
        if proof is None:
            return False
        known.proofs[self.carry.name] = proof
        return True

    def make(self, job: Job, known: BuildState) -> None:
        name = self.carry.name
        allowed = name in job.options.allow_unproved
        if self.carry.spec.probe is None:
            if not allowed:
                raise _unproved(name, "it has no probe")
            return
        if allowed:
            return
        report = require(known.report)
        outcome = report.outcome(name)
        absorbed = outcome.kind is OutcomeKind.ABSORBED
        proof = job.prover(report).prove(self.carry, outcome.proof_paths, absorbed=absorbed)
        _refuse_unless_proved(proof, outcome)
        known.proofs[name] = proof


def find_proof(job: Job, report: MergeReport, carry: Carry) -> Proof | None:
    """Return the proof, recorded or in the store, of what *report* says of *carry*, if there is one."""
    outcome = report.outcome(carry.name)
    absorbed = outcome.kind is OutcomeKind.ABSORBED
    proof = job.prover(report).find(carry, outcome.proof_paths, absorbed=absorbed)
    return proof if proof is not None and proof.verdict is _wanted(outcome) else None


def _wanted(outcome: Outcome) -> ProbeVerdict:
    """Return the verdict without which no wheel is made."""
    return ProbeVerdict.NOT_NEEDED if outcome.kind is OutcomeKind.ABSORBED else ProbeVerdict.PROVED


def _unproved(name: str, because: str) -> UnprovedError:
    return UnprovedError(
        f"carry {name} is not proved",
        because=because,
        next_step=f"mend its probe, or take it as it is with --allow-unproved {name} (the wheel will say so)",
    )


def _refuse_unless_proved(proof: Proof, outcome: Outcome) -> None:
    if proof.verdict is _wanted(outcome):
        return
    if proof.verdict is ProbeVerdict.NOT_ABSORBED:
        raise AbsorptionError(
            f"carry {proof.carry} is not absorbed",
            because=f"{outcome.detail}, but the defect is still in the pristine tree: {proof.finding}",
            next_step=f"say absorbs = false of that pull request in carries/{proof.carry}/carry.toml, "
            "or write a new revision of the carry",
        )
    if proof.verdict is ProbeVerdict.REFUTED:
        raise ProofError(
            f"carry {proof.carry} is refuted",
            because=f"its probe fails on the merged tree: {proof.finding}",
            next_step="take it out of the patchset, or mend it",
        )
    if proof.verdict is ProbeVerdict.BROKEN:
        raise _unproved(proof.carry, f"its probe could not run: {proof.finding.splitlines()[-1]}")
    if proof.verdict is ProbeVerdict.NOT_NEEDED:
        raise _unproved(proof.carry, "its probe passes on the pristine tree: the carry is not needed here")


@dataclass(frozen=True)
class FetchStockWheel:
    """Upstream's own wheel, from which binaries and unchanged files are taken."""

    name: ClassVar[str] = "upstream's wheel"

    def key(self, job: Job, known: BuildState) -> str | None:
        del known
        return job.stock_wheel.sha256

    def find(self, job: Job, known: BuildState) -> bool:
        wheel = job.stock_wheel
        known.stock_wheel = job.store.find_file(wheel.sha256, size=wheel.size) is not None
        return known.stock_wheel

    def make(self, job: Job, known: BuildState) -> None:
        job.fetch_stock_wheel()
        known.stock_wheel = True


@dataclass(frozen=True)
class Assemble:
    """The wheel, in the store."""

    name: ClassVar[str] = "assemble"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.report is None or not self._proofs_known(job, known):
            return None
        if job.native is not None and known.binaries is None:
            return None
        return digest_of(
            {
                "rules": _ASSEMBLY_RULES,
                "tool": __version__,
                "version": version_of(job, known),
                "stock-wheel": job.stock_wheel.sha256,
                "record": wheel_record(job, known),
            }
        )

    @staticmethod
    def _proofs_known(job: Job, known: BuildState) -> bool:
        report = require(known.report)
        return all(
            carry.name in known.proofs
            or carry.name in job.options.allow_unproved
            or not report.outcome(carry.name).kind.wants_proof
            for carry in job.point.carries
        )

    def find(self, job: Job, known: BuildState) -> bool:
        found = job.store.find_record_as(FoundWheel, "wheel", self.key(job, known) or "")
        if found is None or job.store.find_file(found.sha256, size=found.size) is None:
            return False
        known.wheel = found
        return True

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.wheel import AssemblyPlan, assemble

        plan = AssemblyPlan(
            upstream_wheel=job.fetch_stock_wheel(),
            upstream_sha256=job.stock_wheel.sha256,
            version=version_of(job, known),
            changes=job.changes(require(known.report)),
            record=wheel_record(job, known),
            **binary_arguments(job, known),
        )
        with job.store.scratch() as scratch:
            built = assemble(plan, scratch)
            job.store.adopt_file(built.path, built.sha256, verified=True)
        known.wheel = FoundWheel(built.path.name, built.sha256, built.size)
        job.store.put_record("wheel", self.key(job, known) or "", to_builtins(known.wheel))


@dataclass(frozen=True)
class Audit:
    """The wheel checked against upstream's own and against the merge."""

    name: ClassVar[str] = "audit"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.wheel is None or known.report is None:
            return None
        return digest_of(
            {
                "rules": _AUDIT_RULES,
                "tool": __version__,
                "wheel": known.wheel.sha256,
                "stock-wheel": job.stock_wheel.sha256,
                "trees": [known.report.pristine, known.report.tree],
            }
        )

    def find(self, job: Job, known: BuildState) -> bool:
        record = job.store.find_record("audit", self.key(job, known) or "") or {}
        known.audited = record.get("passed") is True
        return known.audited

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.wheel.audit import audit

        wheel = require(known.wheel)
        path = job.store.named_file(wheel.sha256, wheel.filename)
        changes = job.changes(require(known.report))
        record, compiled = wheel_record(job, known), compiled_members(job, known)
        expectation = job.expectation(
            changes, version_of(job, known), toolchain=known.toolchain, record=record, compiled=compiled
        )
        try:
            report = audit(path, expectation)
            report.require()
        except SparkwrightError:
            job.store.require_intact(wheel.sha256)  # else it is the store's fault and not the wheel's
            raise
        job.store.put_record("audit", self.key(job, known) or "", report.to_json())
        known.audited = True


@dataclass(frozen=True)
class Place:
    """The wheel in the user's folder."""

    name: ClassVar[str] = "place"

    def key(self, job: Job, known: BuildState) -> str | None:
        return None if known.wheel is None else digest_of([known.wheel.sha256, str(job.options.out)])

    def find(self, job: Job, known: BuildState) -> bool:
        if known.wheel is None:
            return False
        target = job.options.out / known.wheel.filename
        if not target.is_file() or target.stat().st_size != known.wheel.size:
            return False
        if _known_digest(job, target) is None:
            _note_digest(job, target, sha256_file(target))
        if _known_digest(job, target) != known.wheel.sha256:
            return False
        known.placed = target
        return True

    def make(self, job: Job, known: BuildState) -> None:
        wheel = require(known.wheel)
        known.placed = job.store.copy_out(wheel.sha256, job.options.out / wheel.filename)
        _note_digest(job, known.placed, wheel.sha256)


@dataclass(frozen=True)
class Publish:
    """The index over every wheel in the user's folder."""

    name: ClassVar[str] = "index"

    def key(self, job: Job, known: BuildState) -> str | None:
        return None if known.placed is None else digest_of(_listing(job.options.out))

    def find(self, job: Job, known: BuildState) -> bool:
        record = job.store.find_record("index", self.key(job, known) or "")
        known.published = record is not None and record.get("pages") == _pages(job.options.out)
        return known.published

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.publish import publish, wheels_in

        out = job.options.out
        listed = None
        # A run for another platform may place its wheel while this one writes pages without it.
        while listed != (listed := _listing(out)):
            index = publish(wheels_in(out), out, digests=_known_digests(job))
            for file in index.files:
                _note_digest(job, out / file.filename, file.sha256)
        job.store.put_record("index", self.key(job, known) or "", {"folder": str(out), "pages": _pages(out)})
        known.published = True


def _known_digests(job: Job) -> dict[str, str]:
    """Digests of wheels in the user's folder that were read before and have not been touched since."""
    from sparkwright.publish import wheels_in

    found = {wheel.name: _known_digest(job, wheel) for wheel in wheels_in(job.options.out)}
    return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


def _known_digest(job: Job, path: Path) -> str | None:
    """The digest of the file at *path*, if it was computed and the file has not been touched since."""
    record = job.store.find_record("digest", _state_key(path)) or {}
    sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def _note_digest(job: Job, path: Path, sha256: str) -> None:
    job.store.put_record("digest", _state_key(path), {"sha256": sha256})


def _state_key(path: Path) -> str:
    """Return what identifies the file at *path* as long as it is not touched.

    The time of a change of its state is among it: unlike that of its content, it cannot be set back.
    """
    state = path.stat()
    times = [state.st_mtime_ns, state.st_ctime_ns]
    return digest_of([str(path), state.st_dev, state.st_ino, state.st_size, *times])


def _pages(folder: Path) -> str:
    """Digest of the index's pages and metadata in *folder*."""
    pages = [*folder.glob("simple/**/*"), *folder.glob("*.whl.metadata")]
    return digest_of(sorted([str(path), sha256_file(path)] for path in pages if path.is_file()))


def _listing(folder: Path) -> list[list[str | int]]:
    from sparkwright.publish import wheels_in

    states = [(wheel, wheel.stat()) for wheel in wheels_in(folder)]
    return [[str(wheel), state.st_size, state.st_mtime_ns] for wheel, state in states]


def steps_for(job: Job) -> list[Step]:
    """All steps of *job*, in order."""
    proofs = [Prove(carry) for carry in job.point.carries]
    return [
        PristineTree(),
        *source_steps(job),
        Merge(),
        *proofs,
        *compile_steps(job),
        FetchStockWheel(),
        *binary_steps(job),
        Assemble(),
        Audit(),
        Place(),
        Publish(),
    ]
