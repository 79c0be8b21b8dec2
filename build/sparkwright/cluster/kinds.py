"""Kinds of tasks: how a worker reads one, and what it lays out for those with the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkwright.base.config import Model

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import UnionType

    from sparkwright.cluster.messages import TaskInputs
    from sparkwright.cluster.serving import Serving


class UnfitError(Exception):
    """This machine cannot be used for those tasks.

    Attributes:
        next_step: what helps.
    """

    def __init__(self, because: str, next_step: str) -> None:
        super().__init__(because)
        self.next_step = next_step


@dataclass(frozen=True)
class Place:
    """The files of one task on a worker.

    Attributes:
        log: what the task's tool writes; sent with an error.
        out: an empty folder; what is in it at the end is sent as the result's files.
    """

    log: Path
    out: Path


class LaidOut(Protocol):
    """Trees, tools and processes that tasks of the same inputs share on a worker."""

    def run(self, asked: Any, place: Place) -> Model:
        """Run a task and return its result."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task.

    Attributes:
        shared: class of `TaskInputs.shared`.
        asked: class of `ClusterTask.asked`, or a union of such classes.
        lay_out: lays inputs out on a worker until the stack is closed; gets those as they were read, too.
    """

    shared: type[Model]
    asked: type[Model] | UnionType
    lay_out: Callable[[Serving, Any, TaskInputs, contextlib.ExitStack], LaidOut]


class Nothing(Model, frozen=True):
    """Inputs that hold nothing: the trees are all that tasks share."""


def _units() -> TaskKind:
    from sparkwright.cluster import compiling

    return TaskKind(compiling.BuildInputs, compiling.UnitTask, compiling.lay_out_build)


def _proofs() -> TaskKind:
    from sparkwright.cluster import proving

    return TaskKind(proving.ProofInputs, proving.ProofTask, proving.lay_out_proofs)


def _runs() -> TaskKind:
    from sparkwright.cluster import verifying

    return verifying.verify_kind()


UNIT, PROOF, VERIFY = "unit", "proof", "verify"
KINDS: Mapping[str, Callable[[], TaskKind]] = {UNIT: _units, PROOF: _proofs, VERIFY: _runs}
"""Functions that import a kind of task, by its name. Packages above this one have further kinds."""
