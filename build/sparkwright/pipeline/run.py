"""Plan the steps of a job, or run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from sparkwright.base.events import emit
from sparkwright.pipeline.assembly import Audit
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import CompileExtension, not_native
from sparkwright.pipeline.proofs import Evidence, Prove, evidence_of
from sparkwright.pipeline.state import BuildState
from sparkwright.pipeline.steps import Step, steps_for


@dataclass(frozen=True)
class PlannedStep:
    """A step as a plan shows it.

    Attributes:
        key: digest of its inputs; `None` while these depend on steps that have yet to run.
        state: ``in store``, ``to do``, or ``waits`` for an earlier step.
        detail: the work that is left, as far as earlier builds allow an estimate; mostly empty.
        evidence: of a step that proves a carry, what stands behind its outcome; see `evidence_of`.
        code: of such a step, the number of units by device code; `None` while that is unknown.
        warning: how the card runs an extension that gets no code for the card itself; mostly empty.
    """

    name: str
    key: str | None
    state: Literal["in store", "to do", "waits"]
    detail: str = ""
    evidence: Evidence = ""
    compiles: bool = False
    code: dict[str, int] | None = None
    warning: str = ""


def plan(job: Job) -> list[PlannedStep]:
    """Return what `apply` would do; fetch, make and write nothing."""
    state = BuildState()
    planned = []
    for step in steps_for(job):
        key = step.key(job, state)
        compiles = isinstance(step, CompileExtension)
        if key is None:
            planned.append(PlannedStep(step.name, None, "waits", compiles=compiles))
        else:
            verdict: Literal["in store", "to do"] = "in store" if step.find(job, state) else "to do"
            evidence: Evidence = ""
            if isinstance(step, Prove) and state.report is not None:
                evidence = evidence_of(job, state.report, step.carry)
            code = step.code(job, state) if isinstance(step, CompileExtension) else None
            warning = not_native(code or {}, job.spec.arch or "")
            detail = step.detail(job, state) if isinstance(step, CompileExtension) else ""
            planned.append(PlannedStep(step.name, key, verdict, detail, evidence, compiles, code, warning))
    return planned


def unforeseen(job: Job, steps: Iterable[PlannedStep]) -> str:
    """Return why a plan cannot tell which code its extensions get; empty where it can, or the lock does."""
    unknown = any(step.compiles and step.code is None for step in steps)
    if job.native is None or job.spec.arch == job.native.arch or not unknown:
        return ""
    return (
        f"the lock states what is compiled for {job.native.arch}; an extension may get no code for "
        f"{job.spec.arch} itself, and that is known once CMake has run: 'sparkwright wheel' says so before "
        "it compiles, and this plan from then on"
    )


def apply(job: Job, *, until: Callable[[Step], bool] = lambda _: False) -> BuildState:
    """Run, in order, every step that has no result in the store.

    Two runs of one build spec take turns, so that the second finds the first one's results.

    Args:
        job: the job.
        until: stop after the first step for which this is true.
    """
    state = BuildState()
    with job.store.lock(f"point-{job.spec.digest[:16]}-{job.options.platform}", "this build spec"):
        for step in steps_for(job):
            started = time.monotonic()
            found = step.find(job, state)
            if not found:
                step.make(job, state)
            emit(
                "step.found" if found else "step.made",
                step=step.name,
                key=step.key(job, state),
                seconds=round(time.monotonic() - started, 3),
            )
            if until(step):
                break
        _attach_audit(job, state)
    return state


def _attach_audit(job: Job, state: BuildState) -> None:
    """Attach the audit of the wheel in the user's folder to its digest there, unless one is attached."""
    from sparkwright.publish.evidence import FOLDER, attach, audit_detail

    wheel = state.wheel
    if wheel is None or not state.audited or state.placed is None:
        return
    record = job.store.find_record("audit", Audit().key(job, state) or "") or {}
    # Records of earlier versions do not state what was not checked.
    if "unchecked" in record and not (job.out / FOLDER / wheel.sha256 / "audit.json").exists():
        attach(job.out, "audit", wheel.sha256, audit_detail(record))
