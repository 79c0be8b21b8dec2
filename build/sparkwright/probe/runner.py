"""Lay out what a probe reads, start it on one tree in a child process with limits, and read its report."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.digests import to_json
from sparkwright.base.errors import ToolError
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.carries.model import Carry, ProbeSpec
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergedSource
from sparkwright.probe.environment import (
    describe_environment,
    fingerprint,
    forget_bytecode,
    part_of,
    prepare_environment,
    share_bytecode,
    tree_folder,
)
from sparkwright.probe.pool import ProbePool, child_folder, environment, interpreter
from sparkwright.probe.proof import DISTURBED, STOPPED, ProbeRun
from sparkwright.store.disk import remove_tree
from sparkwright.store.paths import Store

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
        """Return the setup of a probe that imports vLLM."""
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
    """Return what a probe needs, by name."""
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


# The child process --------------------------------------------------------------------------------

_CHILD = ("harness.py", "probekit.py")
_BUILDKIT = "buildkit.py"
_COMPILEKIT = "compilekit.py"
_COMPILES = re.compile(rb"^\s*(?:from|import) compilekit\b", re.MULTILINE)
_SAID = 1500


@dataclass(frozen=True)
class ProbeReport:
    """A run and the files of the tree that it imported."""

    run: ProbeRun
    loaded: frozenset[str]
    seconds: float


class _Found(Model, frozen=True):
    """The report that the harness writes; `loaded` are paths in the tree."""

    verdict: Literal["passes", "fails", "error"]
    message: str
    loaded: tuple[str, ...]
    seconds: float
    peak_mib: int


def harness_sources(spec: ProbeSpec, modules: Iterable[bytes]) -> list[bytes]:
    """Return the sources that run inside the child beside *modules*, a probe of *spec* and its helpers.

    A proof's key has them.
    """
    names = (*_CHILD, _BUILDKIT) if spec.needs else _CHILD
    if any(_COMPILES.search(text) for text in modules):
        names = (*names, _COMPILEKIT)
    return [(child_folder() / name).read_bytes() for name in names]


def run_probe(
    store: Store,
    python: Path,
    probe: Path,
    spec: ProbeSpec,
    tree: Path,
    *,
    version: str,
    stop: threading.Event | None = None,
    subject: ProbeInput | None = None,
    pool: ProbePool | None = None,
) -> ProbeReport:
    """Run *probe* on *tree*; whatever the probe does becomes a run, never an exception.

    Args:
        store: where scratch space is.
        python: interpreter of the environment for probes.
        probe: the probe.
        spec: its limits and settings.
        tree: the tree that it imports from.
        version: what the package's metadata says that it is; a bare tree has none, and vLLM switches
            Triton off when it cannot find its own version.
        stop: ends the run when it is set.
        subject: what the probe is told where it needs something from the outside.
        pool: forks the run from a process that has imported torch, if it has one; its own event ends the run.
    """
    before = fingerprint(tree)
    forget_bytecode(store, probe.parent)
    with store.scratch() as scratch, _no_bytecode(store, scratch):
        report, log = scratch / "report.json", scratch / "log"
        arguments: list[str | Path] = [
            "--tree",
            tree,
            "--probe",
            probe,
            "--report",
            report,
            "--metadata",
            metadata_folder(scratch, version, [probe.parent / name for name in spec.helpers]),
            "--triton",
            spec.triton,
        ]
        limits = ProcessLimits(spec.seconds, spec.memory_mib)
        env = environment(scratch)
        if subject is not None:
            told = scratch / "facilities.json"
            told.write_bytes(subject.to_json())
            env[ENVIRONMENT_NAME] = str(told)
        script, status = child_folder() / "harness.py", " in a fork"
        try:
            if pool is None or not pool.run(
                python, spec.triton, script, arguments, limits=limits, folder=scratch, variables=env, log=log
            ):
                command = [*interpreter(store, python), script.with_name("launch.py"), str(os.getpid())]
                done = run_limited(
                    [*command, script, *arguments], limits=limits, cwd=scratch, env=env, log=log, stop=stop
                )
                status = f" with status {done.status}"
        except LimitsExceeded as error:
            return _error(f"{STOPPED}{error}")
        if not report.is_file():
            said = log.read_bytes()[-_SAID:].decode(errors="replace").strip()
            return _error(f"it ended{status} and no report: {said}")
        try:
            found = decode_json(report.read_bytes(), _Found)
        except msgspec.MsgspecError as error:
            return _error(f"its report is damaged: {error}")
    if fingerprint(tree) != before:
        return _error(DISTURBED)
    run = ProbeRun(verdict=found.verdict, message=_short(found.message, tree))
    return ProbeReport(run, frozenset(found.loaded), found.seconds)


@contextlib.contextmanager
def _no_bytecode(store: Store, scratch: Path) -> Iterator[None]:
    """Remove the bytecode of modules in *scratch* after the block: no other run has a folder of that name."""
    try:
        yield
    finally:
        remove_tree(store.bytecode_of(scratch))


def metadata_folder(scratch: Path, version: str, helpers: Sequence[Path] = ()) -> Path:
    """Return a folder with *helpers* and the least that makes ``importlib.metadata`` find the package."""
    folder = scratch / "metadata"
    write_metadata(folder, version)
    for helper in helpers:
        shutil.copyfile(helper, folder / helper.name)
    return folder


def write_metadata(folder: Path, version: str) -> None:
    """Write into *folder* what makes ``importlib.metadata`` find the package in that *version*."""
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")


def _short(message: str, tree: Path) -> str:
    """Return *message* without the tree's place on this machine, which means nothing on another."""
    return message.replace(str(tree.resolve()), "<tree>").replace(str(tree), "<tree>").strip()


def _error(message: str) -> ProbeReport:
    return ProbeReport(ProbeRun(verdict="error", message=message), frozenset(), 0.0)
