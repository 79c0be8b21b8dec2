"""``upstream.lock``: the pinned vLLM release and every other input by digest.

`model` and `native` are the typed model of the file. `statements` reads what a release states about
itself (with `cmake` for the sources that its build downloads), `check` compares the lock with that and
the ``[native]`` tables with the rest, and `bump` writes the lock for another release.
"""

from sparkwright.lock.bump import Bumped, LockChange
from sparkwright.lock.check import (
    CudaEvidence,
    LockFinding,
    Unconfirmed,
    check,
    check_native,
    disagreement,
    require_native,
    unconfirmed,
)
from sparkwright.lock.model import (
    LOCK_FORMAT,
    Artifact,
    Dependency,
    Lock,
    RehearsalPin,
    Release,
    read_lock,
)
from sparkwright.lock.statements import ReleaseEvidence, WheelEvidence

__all__ = [
    "LOCK_FORMAT",
    "Artifact",
    "Bumped",
    "CudaEvidence",
    "Dependency",
    "Lock",
    "LockChange",
    "LockFinding",
    "RehearsalPin",
    "Release",
    "ReleaseEvidence",
    "Unconfirmed",
    "WheelEvidence",
    "check",
    "check_native",
    "disagreement",
    "read_lock",
    "require_native",
    "unconfirmed",
]
