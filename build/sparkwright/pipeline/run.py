"""Plan the steps of a job, or carry them out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkwright.base.events import emit
from sparkwright.pipeline.job import BuildState
from sparkwright.pipeline.kernels import detail_of
from sparkwright.pipeline.steps import steps_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.pipeline.job import Job
    from sparkwright.pipeline.steps import Step


@dataclass(frozen=True)
class PlannedStep:
    """A step as a plan shows it.

    Attributes:
        name: the step's name.
        key: digest of its inputs; `None` while they depend on steps that have yet to run.
        state: ``in store``, ``to do``, or ``waits`` for an earlier step.
        detail: what there is to do, as far as earlier builds can tell; mostly empty.
    """

    name: str
    key: str | None
    state: Literal["in store", "to do", "waits"]
    detail: str = ""


def plan(job: Job) -> list[PlannedStep]:
    """What `apply` would do; nothing is fetched, made or written."""
    known = BuildState()
    planned = []
    for step in steps_for(job):
        key = step.key(job, known)
        if key is None:
            planned.append(PlannedStep(step.name, None, "waits"))
        else:
            state: Literal["in store", "to do"] = "in store" if step.find(job, known) else "to do"
            planned.append(PlannedStep(step.name, key, state, detail_of(step, job, known)))
    return planned


def apply(job: Job, *, until: Callable[[Step], bool] = lambda _: False) -> BuildState:
    """Do every step that the store has no result of, in order.

    Two runs of one point take turns, so that the second finds the first one's results.

    Args:
        job: what to do.
        until: stop after the first step for which this is true.
    """
    known = BuildState()
    with job.store.lock(f"point-{job.point.digest[:16]}-{job.options.platform}", "this point"):
        for step in steps_for(job):
            started = time.monotonic()
            found = step.find(job, known)
            if not found:
                step.make(job, known)
            emit(
                "step.found" if found else "step.made",
                step=step.name,
                key=step.key(job, known),
                seconds=round(time.monotonic() - started, 3),
            )
            if until(step):
                break
    return known
