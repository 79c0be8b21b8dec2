"""The steps that assemble and audit the wheel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import SparkwrightError
from sparkwright.native.model import Extension
from sparkwright.pipeline.expectation import expectation
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.record import wheel_record
from sparkwright.pipeline.state import BuildState, FoundWheel, require
from sparkwright.pipeline.trial import wants_proof
from sparkwright.pipeline.version import version_of
from sparkwright.wheel import BinarySource

# Part of the keys: raised when assembling or auditing gives another result for the same inputs.
_ASSEMBLY_RULES = 2
_AUDIT_RULES = 4


@dataclass(frozen=True)
class FetchStockWheel:
    """Upstream's wheel, the origin of binaries and unchanged files."""

    name: ClassVar[str] = "upstream's wheel"

    def key(self, job: Job, state: BuildState) -> str | None:
        del state
        return job.stock_wheel.sha256

    def find(self, job: Job, state: BuildState) -> bool:
        wheel = job.stock_wheel
        state.stock_wheel = job.store.find_file(wheel.sha256, size=wheel.size) is not None
        return state.stock_wheel

    def make(self, job: Job, state: BuildState) -> None:
        job.fetch_stock_wheel()
        state.stock_wheel = True


@dataclass(frozen=True)
class Assemble:
    """The wheel, in the store."""

    name: ClassVar[str] = "assemble"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.report is None or not self._proofs_known(job, state):
            return None
        if job.native is not None and state.binaries is None:
            return None
        return digest_of(
            {
                "rules": _ASSEMBLY_RULES,
                "tool": __version__,
                "version": version_of(job, state),
                "stock-wheel": job.stock_wheel.sha256,
                "record": wheel_record(job, state),
                "sources": to_builtins(job.spec.lock.sources),  # the bill of materials lists them
            }
        )

    @staticmethod
    def _proofs_known(job: Job, state: BuildState) -> bool:
        report = require(state.report)
        return all(
            carry.name in state.proofs
            or carry.name in job.options.allow_unproved
            or not wants_proof(report, carry)
            for carry in job.spec.carries
        )

    def find(self, job: Job, state: BuildState) -> bool:
        found = job.store.find_record_as(FoundWheel, "wheel", self.key(job, state) or "")
        if found is None or job.store.find_file(found.sha256, size=found.size) is None:
            return False
        state.wheel = found
        return True

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.wheel import AssemblyPlan, assemble

        plan = AssemblyPlan(
            upstream_wheel=job.fetch_stock_wheel(),
            upstream_sha256=job.stock_wheel.sha256,
            version=version_of(job, state),
            changes=job.changes(require(state.report)),
            record=wheel_record(job, state),
            lock=job.spec.lock,
            **_binary_arguments(job, state),
        )
        with job.store.scratch() as scratch:
            built = assemble(plan, scratch)
            job.store.adopt_file(built.path, built.sha256, verified=True)
        state.wheel = FoundWheel(built.path.name, built.sha256, built.size)
        job.store.put_record("wheel", self.key(job, state) or "", to_builtins(state.wheel))


@dataclass(frozen=True)
class Audit:
    """The wheel compared with upstream's and with the merge."""

    name: ClassVar[str] = "audit"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.wheel is None or state.report is None:
            return None
        return digest_of(
            {
                "rules": _AUDIT_RULES,
                "tool": __version__,
                "wheel": state.wheel.sha256,
                "stock-wheel": job.stock_wheel.sha256,
                "trees": [state.report.pristine, state.report.tree],
            }
        )

    def find(self, job: Job, state: BuildState) -> bool:
        record = job.store.find_record("audit", self.key(job, state) or "") or {}
        state.audited = record.get("passed") is True
        return state.audited

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.wheel.audit import audit

        wheel = require(state.wheel)
        path = job.store.named_file(wheel.sha256, wheel.filename)
        changes = job.changes(require(state.report))
        record, compiled = wheel_record(job, state), _compiled_members(job, state)
        expected = expectation(
            job,
            changes,
            version_of(job, state),
            toolchain=state.toolchain,
            record=record,
            python=job.python(require(state.report)),
            links=job.links(require(state.report)),
            compiled=compiled,
        )
        try:
            report = audit(path, expected)
            report.require()
        except SparkwrightError:
            job.store.require_intact(wheel.sha256)  # else the store is damaged, not the wheel
            raise
        job.store.put_record("audit", self.key(job, state) or "", report.to_json())
        state.audited = True


def _binary_arguments(job: Job, state: BuildState) -> dict[str, Any]:
    """Return the arguments of an `AssemblyPlan` that concern binaries; none for upstream's kernels."""
    from sparkwright.wheel import BinarySource
    from sparkwright.wheel.deflate import deflated_in
    from sparkwright.wheel.sbom import COMPILED

    if state.binaries is None:
        return {}
    providers: dict[str, BinarySource] = {
        member: BinarySource(
            job.store.require_intact(one.sha256), COMPILED, one.key, deflated_in(job.store, one.sha256)
        )
        for member, one in _compiled_members(job, state).items()
    }
    return {
        "providers": providers,
        "upstream_binaries": state.binaries.upstream,
        "left_out": state.binaries.left_out,
        "platform": state.binaries.platform,
    }


def _compiled_members(job: Job, state: BuildState) -> dict[str, Extension]:
    """Return the compiled extensions, by their members in the wheel."""
    return {require(job.native).extensions[name].member: one for name, one in state.extensions.items()}
