"""Compile the Triton kernels of a tree for a GB10 without one, and measure their registers and shared memory.

A child in the environment of probes lets upstream's own Python launch its kernels on a card that is
pretended to be here (``child/record_kernels.py``), and compiles each launch for it. What was compiled once
is kept in the store by the digest of all that decides the code, and the whole of it by the tree.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ProofError
from sparkwright.base.events import task
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.git.repository import Repository
from sparkwright.probe.environment import environment_key, part_of, prepare_environment, tree_folder
from sparkwright.probe.pool import child_folder, environment, interpreter
from sparkwright.probe.runner import metadata_folder
from sparkwright.store.paths import Store

LIMIT = 99 << 10
"""Bytes of shared memory that a block of 12.x may have (CUDA C++ Programming Guide)."""
_CHILD = ("record_kernels.py", "compilekit.py", "cpu_tensors.py", "kernel_tests.py")
_REPORT, _RESULTS = "kernel-report", "kernel-results"
_LIMITS = ProcessLimits(seconds=5400, memory_mib=16384)
_PARTS = ("vllm", "tests")


class KernelLaunch(Model, frozen=True):
    """One configuration of a kernel and what it takes, or why it could not be compiled.

    Attributes:
        origin: what was asked for, or the test of upstream's that launches it.
        tuning: the autotuned launch that it is one configuration of; 0 for none.
        spills: bytes a thread, stored and loaded.
        helpers: other functions that became part of it.
    """

    kernel: str
    origin: str
    constants: dict[str, Any]
    warps: int
    stages: int
    tuning: int
    shared: int = 0
    registers: int = 0
    spills: int = 0
    refused: str = ""
    helpers: tuple[str, ...] = ()

    @property
    def of_test(self) -> bool:
        """Tell if upstream's tests alone launch it, whose shapes need not be those of a recipe."""
        return self.origin.startswith("upstream's ")


class KernelReport(Model, frozen=True):
    """The launches of one tree, and the functions and wrappers that they come from.

    Attributes:
        functions: all with ``triton.jit``: their files, and why no recipe comes to them, if that is known.
        failed: what could not be asked of upstream's wrappers, and why.
        launches: by the digest of all that decides the code.
    """

    triton: str
    functions: dict[str, tuple[str, str]]
    failed: dict[str, str]
    fresh: int
    launches: dict[str, KernelLaunch]

    def compiled(self) -> set[str]:
        """Return functions that are compiled, as kernels or as parts of some."""
        good = [one for one in self.launches.values() if not one.refused]
        names = {one.kernel for one in good} | {name for one in good for name in one.helpers}
        return names & self.functions.keys()

    def left(self) -> dict[str, list[str]]:
        """Return functions that are not compiled, by the reason."""
        reasons = defaultdict(list)
        refused = {one.kernel: one.refused for one in self.launches.values() if one.refused}
        for name in sorted(self.functions.keys() - self.compiled()):
            why = self.functions[name][1] or ("refused by the compiler" if name in refused else "")
            reasons[why or "no launch of it is known"].append(name)
        return dict(sorted(reasons.items()))

    def faults(self) -> list[str]:
        """Return what a GB10 could not launch; of an autotuned launch one configuration has to fit."""
        tunings: dict[int, list[KernelLaunch]] = defaultdict(list)
        found = [f"{name} could not be asked for: {why}" for name, why in self.failed.items()]
        for one in self.launches.values():
            if one.of_test:
                continue
            if one.tuning:
                tunings[one.tuning].append(one)
            elif why := too_much(one):
                found.append(f"{one.kernel}: {why} ({one.origin})")
        found += [
            f"{some[0].kernel}: no configuration fits, {too_much(some[0])} ({some[0].origin})"
            for some in tunings.values()
            if all(too_much(one) for one in some)
        ]
        return sorted(found)


def too_much(launch: KernelLaunch) -> str:
    """Return what of *launch* a GB10 could not launch; empty if nothing."""
    if launch.refused:
        return launch.refused
    return f"{launch.shared} bytes of shared memory, more than {LIMIT}" if launch.shared > LIMIT else ""


@dataclass(frozen=True)
class KernelSurvey:
    """Compiles the kernels of trees.

    Attributes:
        store: where trees, the environment of probes and earlier results are.
        launches: the file with what is asked of upstream's wrappers; that of the recipes by default.
        jobs: kernels that are compiled at a time; as many as there are cores by default.
    """

    store: Store
    repository: Repository
    offline: bool = False
    launches: Path = field(default_factory=lambda: child_folder() / "kernel_launches.py")
    jobs: int = 0

    def survey(self, tree: str, version: str) -> KernelReport:
        """Return what the kernels in *tree*, of vLLM's *version*, take."""
        part = part_of(self.repository, tree, _PARTS)
        files = [*(child_folder() / name for name in _CHILD), self.launches]
        sources = [sha256_bytes(file.read_bytes()) for file in files]
        key = digest_of([part, version, environment_key(), sources])
        if (known := self.store.find_record_as(KernelReport, _REPORT, key)) is not None:
            return msgspec.structs.replace(known, fresh=0)
        python = prepare_environment(self.store, offline=self.offline)
        folder = tree_folder(self.store, self.repository, part, under="")
        results = digest_of([environment_key(), sources[1]])  # of one compiler, asked in one way
        with task(f"compile the Triton kernels of vLLM {version} for 12.1 (minutes, once)"):
            report = self._run(python, folder, version, results)
        self.store.put_record(_REPORT, key, to_builtins(report))
        return report

    def _run(self, python: Path, tree: Path, version: str, results: str) -> KernelReport:
        known = self.store.find_record(_RESULTS, results) or {}
        with self.store.scratch() as scratch:
            report, log, told = scratch / "report.json", scratch / "log", scratch / "known.json"
            told.write_text(json.dumps(known), encoding="utf-8")
            command: list[str | Path] = [*interpreter(self.store, python), child_folder() / _CHILD[0]]
            command += ["--tree", tree, "--metadata", metadata_folder(scratch, version), "--report", report]
            command += ["--launches", self.launches, "--known", told]
            command += ["--jobs", str(self.jobs or len(os.sched_getaffinity(0)))]
            try:
                run_limited(command, limits=_LIMITS, cwd=scratch, env=environment(scratch), log=log)
                return decode_json(report.read_bytes(), KernelReport)
            except (LimitsExceeded, FileNotFoundError, msgspec.MsgspecError) as error:
                said = log.read_bytes()[-1500:].decode(errors="replace").strip() if log.is_file() else ""
                raise ProofError(
                    f"the Triton kernels of vLLM {version} were not compiled",
                    because=f"{error}; the child's last words: {said}",
                    next_step="run it again; else try record_kernels.py of sparkwright/probe/child by hand",
                ) from error
            finally:  # also of a run that was stopped
                if fresh := _compiled(report.with_suffix(".jsonl")):
                    self.store.put_record(_RESULTS, results, known | fresh)


def _compiled(lines: Path) -> dict[str, Any]:
    """Return the results that a child wrote, by key; the last line may be a part of one."""
    found = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        for line in lines.read_text(encoding="utf-8").splitlines():
            key, result = json.loads(line)
            if "refused" not in result:
                found[key] = result
    return found
