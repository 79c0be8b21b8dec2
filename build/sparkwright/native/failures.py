"""One error for all failed units of a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import (
    CompileError,
    NotEnoughMemoryError,
    SparkwrightError,
    StorageError,
    ToolError,
)
from sparkwright.base.machine import MachineSnapshot
from sparkwright.native.diagnose import Diagnosis
from sparkwright.native.schedule import gib

_KEPT = "compiled units are kept, and the next run continues from there"


@dataclass(frozen=True)
class CompileFailure:
    """A unit that has no object.

    Attributes:
        diagnosis: the cause; `None` if its compiler could not be started.
        peak_mib: most memory that it was seen to use.
        before: the machine when it was started.
        after: the machine when it had failed, if it failed for want of memory.
        error: the error of starting its compiler.
    """

    unit: str
    log: Path
    diagnosis: Diagnosis | None = None
    peak_mib: int = 0
    before: MachineSnapshot | None = None
    after: MachineSnapshot | None = None
    error: ToolError | None = None

    @property
    def detail(self) -> str:
        """The reason, as a clause."""
        return self.diagnosis.detail if self.diagnosis else str(self.error)


def error_of(failures: Sequence[CompileFailure]) -> SparkwrightError:
    """Return one error for one or more *failures*: the first in full, the others by name."""
    first = failures[0]
    if first.diagnosis is None:
        return first.error or CompileError(f"{first.unit} was not compiled")
    others = [failure.unit for failure in failures[1:]]
    lines = [first.diagnosis.detail, *first.diagnosis.lines, f"log: {first.log}"]
    if others:
        lines.append(f"also failed: {', '.join(others)}")
    match first.diagnosis.cause:
        case "disk":
            return StorageError(
                f"{first.unit} was not compiled",
                because="\n".join(lines),
                next_step=f"free some space on the disks of the build and of the temporary folder; {_KEPT}",
            )
        case "memory":
            lines[0] = f"{first.diagnosis.detail}; {_memory(first)}"
            return NotEnoughMemoryError(
                f"{first.unit} was not compiled: memory ran out, even with nothing else running",
                because="\n".join(lines),
                next_step="stop processes that hold memory, such as a server with a model, or add swap, "
                f"then run again with fewer jobs; {_KEPT}",
            )
        case "refused" | "no-output":
            return CompileError(
                f"{first.unit} was not compiled", because="\n".join(lines), next_step=f"read its log; {_KEPT}"
            )


def _memory(failure: CompileFailure) -> str:
    """Return the memory figures of a unit that ran out of memory, as a clause."""
    parts = [f"it used up to {gib(failure.peak_mib)} GiB"]
    if (before := failure.before) is not None:
        parts.append(f"{gib(before.available_mib)} of {gib(before.total_mib)} GiB were available before")
        after = failure.after
        if after is not None and None not in {before.oom_kills, after.oom_kills}:
            kills = (after.oom_kills or 0) - (before.oom_kills or 0)
            parts.append(
                f"the kernel killed {kills} processes for want of memory meanwhile"
                if kills
                else "the kernel itself killed nothing for want of memory meanwhile: a daemon or a person did"
            )
    return "; ".join(parts)
