"""``upstream.lock``: the exact vLLM that we build on, and every other input by digest.

`model` is what the file may say. `statements` reads what a release says about itself (with `cmake`
for the sources that its build downloads), `check` holds the two against each other, and `bump`
writes the lock for another release.
"""

from sparkwright.lock.bump import Bumped, Change
from sparkwright.lock.check import Finding, check, require_agreement
from sparkwright.lock.model import LOCK_FORMAT, Artifact, Dependency, Lock, Release, read_lock
from sparkwright.lock.statements import Evidence, WheelEvidence

__all__ = [
    "LOCK_FORMAT",
    "Artifact",
    "Bumped",
    "Change",
    "Dependency",
    "Evidence",
    "Finding",
    "Lock",
    "Release",
    "WheelEvidence",
    "check",
    "read_lock",
    "require_agreement",
]
