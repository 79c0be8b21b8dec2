"""Start a probe on one tree in a child process with limits, and read its report."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.digests import to_json
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.carries.model import ProbeSpec
from sparkwright.probe.environment import fingerprint, forget_bytecode
from sparkwright.probe.pool import ProbePool, child_folder, environment, interpreter
from sparkwright.probe.proof import DISTURBED, STOPPED, ProbeRun
from sparkwright.store.disk import remove_tree
from sparkwright.store.paths import Store

PACKAGE = "vllm"
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
    with store.scratch() as scratch, contextlib.ExitStack() as stack:
        # No other run has a folder of that name.
        stack.callback(remove_tree, store.bytecode_of(scratch))
        report, log, metadata = scratch / "report.json", scratch / "log", metadata_folder(scratch, version)
        for name in spec.helpers:
            shutil.copyfile(probe.parent / name, metadata / name)
        arguments: list[str | Path] = ["--tree", tree, "--probe", probe, "--report", report]
        arguments += ["--metadata", metadata, "--triton", spec.triton]
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


def metadata_folder(scratch: Path, version: str) -> Path:
    """Return a folder in *scratch* with the least that makes ``importlib.metadata`` find the package."""
    info = scratch / "metadata" / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    return info.parent


def _short(message: str, tree: Path) -> str:
    """Return *message* without the tree's place on this machine, which means nothing on another."""
    return message.replace(str(tree.resolve()), "<tree>").replace(str(tree), "<tree>").strip()


def _error(message: str) -> ProbeReport:
    return ProbeReport(ProbeRun(verdict="error", message=message), frozenset(), 0.0)
