"""The setup of a probe's two runs: an interpreter, two folders, and the input of the child.

A probe of how kernels are compiled needs a toolchain, and finding or making one is another package's work:
so the pipeline passes the providers in, and this package requires no more of them than `ProbeResource`. The
child gets one JSON file, named by an environment variable; ``child/buildkit.py`` reads it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparkwright.base.digests import to_json
from sparkwright.base.errors import ToolError
from sparkwright.carries.model import Carry, ProbeSpec
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergedSource
from sparkwright.probe.environment import (
    describe_environment,
    part_of,
    prepare_environment,
    share_bytecode,
    tree_folder,
)
from sparkwright.store import Store

PACKAGE = "vllm"
_OWN = "source"  # where vLLM's tree lies in a build's folder


@dataclass(frozen=True)
class ProbeTree:
    """One run's place.

    Attributes:
        subject: what the child is told, where the probe needs something from the outside.
    """

    tree: Path
    subject: ProbeInput | None = None


@dataclass(frozen=True)
class ProbeSetup:
    """The setup of both runs.

    Attributes:
        stands: the run without the carry, and the one with it.
        versions: what matters to a verdict, for the record.
    """

    python: Path
    stands: tuple[ProbeTree, ProbeTree]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Trees:
    """Makes benches for one pair of trees."""

    store: Store
    repository: Repository
    pristine: str
    merged: str

    def importing(self, *, offline: bool) -> ProbeSetup:
        """Return the setup of a probe that imports vLLM.

        Raises:
            EnvironmentSetupError: the environment could not be made.
            NotInStoreError: it is not there and the network is off.
        """
        python = prepare_environment(self.store, offline=offline)
        folders = [
            tree_folder(self.store, self.repository, tree, under=PACKAGE, like=like)
            for tree, like in ((self.pristine, None), (self.merged, self.pristine))
        ]
        share_bytecode(self.store, self.repository, (self.pristine, self.merged), under=PACKAGE)
        return ProbeSetup(
            python, (ProbeTree(folders[0]), ProbeTree(folders[1])), describe_environment(python)
        )

    def configuring(
        self, carry: Carry, source: MergedSource | None, facilities: Mapping[str, ProbeResource]
    ) -> ProbeSetup:
        """Return the setup of a probe that runs tools on the tree, in our own interpreter, without torch.

        A change to a dependency's source is tried where it will be used: in the merged tree of vLLM,
        with that source as it is pinned and as it is with the carries.

        Raises:
            SparkwrightError: something that the probe needs cannot be had.
        """
        inputs = tuple(dict.fromkeys(name for entry in facilities.values() for name in entry.inputs))
        own = [self._part(tree, inputs) for tree in (self.pristine, self.merged)]
        place = _OWN
        others: dict[str, dict[str, Path]] = {}
        if carry.spec.source is not None:
            if source is None:
                raise ToolError(f"the source of {carry.spec.source} is not in the store")
            place, others = f"deps/{source.name}", {_OWN: {"here": own[1], "pristine": own[1]}}
            own = [
                tree_folder(self.store, self.repository, tree, under="")
                for tree in (source.pristine, source.tree)
            ]
        described = {name: entry.describe() for name, entry in facilities.items()}
        versions = {"python": platform.python_version()}
        for entry in facilities.values():
            versions |= entry.versions()
        without, with_it = (
            ProbeTree(here, ProbeInput(described, {place: {"here": here, "pristine": own[0]}, **others}))
            for here in own
        )
        return ProbeSetup(Path(sys.executable), (without, with_it), versions)

    def _part(self, tree: str, inputs: Sequence[str]) -> Path:
        return tree_folder(self.store, self.repository, part_of(self.repository, tree, inputs), under="")


def facilities_of(spec: ProbeSpec, known: Mapping[str, ProbeResource]) -> dict[str, ProbeResource]:
    """Return what a probe needs, by name.

    Raises:
        ToolError: there is no such thing here.
    """
    for name in spec.needs:
        if name not in known:
            raise ToolError(
                f"the probe needs {name!r}",
                because="nothing provides it here",
                next_step="prove it where kernels are compiled: --kernels native",
            )
    return {name: known[name] for name in spec.needs}


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
