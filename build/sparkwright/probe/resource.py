"""Resources from outside that a probe may need, such as compilers to run CMake with.

Probes of Python import the tree under test and want nothing else. A probe of how kernels are
compiled needs a toolchain, and finding or making one is another package's work: so the pipeline passes
the providers in, and this package requires no more of them than `ProbeResource`.

The child gets one JSON file, named by an environment variable; ``child/buildkit.py`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparkwright.base.digests import to_json

ENVIRONMENT_NAME = "SPARKWRIGHT_FACILITIES"


class ProbeResource(Protocol):
    """Something that probes may need; made by the plan."""

    @property
    def key(self) -> str:
        """Return digest of what decides a verdict here, and of no machine: a part of the proof's key.

        It is asked for when nothing may be fetched, so it comes from the lock.
        """

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return files and folders at the top of upstream's tree that the probe gets, such as ``csrc``."""

    def describe(self) -> Mapping[str, Any]:
        """Return what the child is told, JSON-ready; what it names is made when it is not there yet.

        Raises:
            SparkwrightError: it cannot be had.
        """

    def versions(self) -> Mapping[str, str]:
        """Return versions for the proof's record; asked for after `describe`."""


@dataclass(frozen=True)
class ProbeInput:
    """The input of a run, for the child.

    Attributes:
        facilities: what each facility says of itself.
        trees: folders by their place in a build's folder, as ``here`` (under test) and ``pristine``.
    """

    facilities: Mapping[str, Mapping[str, Any]]
    trees: Mapping[str, Mapping[str, Path]]

    def to_json(self) -> bytes:
        """Return the file that the child reads."""
        trees = {
            place: {which: str(folder) for which, folder in folders.items()}
            for place, folders in self.trees.items()
        }
        return to_json({"facilities": self.facilities, "trees": trees})
