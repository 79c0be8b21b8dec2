"""The interface of a step.

A step has a key: the digest of all that its result depends on, or `None` while that depends on a
step that has yet to run. ``find`` takes the result from the store, ``make`` makes it. Both must
reach the same decisions.
"""

from __future__ import annotations

from typing import Protocol

from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState


class Step(Protocol):
    """One step; see the module's text."""

    @property
    def name(self) -> str:
        """Name in plans and logs."""

    def key(self, job: Job, state: BuildState) -> str | None:
        """Return the digest of what the result depends on, or `None` while that is incomplete."""

    def find(self, job: Job, state: BuildState) -> bool:
        """Take the result from the store into *state*; return if it was there."""

    def make(self, job: Job, state: BuildState) -> None:
        """Make the result and put it into the store and *state*."""
