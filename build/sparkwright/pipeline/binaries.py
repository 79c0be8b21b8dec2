"""The step that decides which binaries a wheel with native kernels contains, and their origins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from sparkwright.base.config import convert, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.native.inspection import Inspection
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import Binaries, BuildState, require
from sparkwright.wheel.slim import SlimPlan
from sparkwright.wheel.source import StockWheel

# Part of the key: raised when the choice below changes for the same inputs.
_RULES = 2
# Part of the record in the wheel.
_NOT_OURS = "sparkwright compiles no such extension"


@dataclass(frozen=True)
class ChooseBinaries:
    """Compiled extensions, upstream's for the others, and none without code for the card."""

    name: ClassVar[str] = "binaries"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.report is None or not _all_there(job, state):
            return None
        return digest_of(
            {
                "rules": _RULES,
                "stock-wheel": job.stock_wheel.sha256,
                "tree": state.report.tree,
                "extensions": {name: one.sha256 for name, one in sorted(state.extensions.items())},
                "stock": sorted(state.stock_extensions.items()),
                "attested": sorted(state.attested.items()),
                "arch": job.spec.arch,
            }
        )

    def find(self, job: Job, state: BuildState) -> bool:
        record = job.store.find_record("binaries", self.key(job, state) or "")
        try:
            state.binaries = None if record is None else convert(record, Binaries)
        except msgspec.ValidationError:
            state.binaries = None
        return state.binaries is not None

    def make(self, job: Job, state: BuildState) -> None:
        state.binaries = _choose(job, state)
        job.store.put_record("binaries", self.key(job, state) or "", to_builtins(state.binaries))


def _all_there(job: Job, state: BuildState) -> bool:
    return set(require(job.native).extensions) <= {*state.extensions, *state.stock_extensions}


def _choose(job: Job, state: BuildState) -> Binaries:
    from sparkwright.native.elf import honest_platform
    from sparkwright.wheel.kernels import kernels_record
    from sparkwright.wheel.source import open_source

    members = {spec.member: name for name, spec in require(job.native).extensions.items()}
    compiled = {
        member: state.extensions[name] for member, name in members.items() if name in state.extensions
    }
    with open_source(job.fetch_stock_wheel()) as upstream:
        inspected = _inspect(job, upstream, {member: one.sha256 for member, one in compiled.items()})
        slim = _slim(job, state, upstream, inspected)
        left_out = {one.member: one.because for one in slim.left_out}
        stock = {
            member: state.stock_extensions.get(members.get(member, ""), _NOT_OURS)
            for member in inspected
            if member not in compiled and member not in left_out
        }
        kept = [one.elf.versions for member, one in inspected.items() if member not in left_out]
        platform = honest_platform(upstream.name.platform, kept)
    toolchain = require(state.toolchain)
    record = kernels_record(
        job.target,
        toolchain.key,
        compiled=compiled,
        attested={member: state.attested.get(name, "") for member, name in members.items()},
        upstream=stock,
        left_out=slim.left_out,
        packages=toolchain.packages,
    )
    return Binaries(record=record, platform=platform, left_out=left_out, upstream=stock, kept=dict(slim.kept))


def _inspect(job: Job, upstream: StockWheel, compiled: Mapping[str, str]) -> dict[str, Inspection]:
    """Return the inspection of each binary by member: the compiled one, or upstream's if there is none.

    Args:
        job: the job, for its store and lock.
        upstream: upstream's wheel.
        compiled: SHA-256 of the compiled binaries by member.
    """
    from sparkwright.native.inspection import inspector_of
    from sparkwright.wheel.binaries import inspect_binary

    inspector = inspector_of(require(job.native), job.access)
    found = {}
    for member in upstream.binaries():
        if sha256 := compiled.get(member):
            found[member] = inspector.inspect(sha256, _path_of(job, sha256))
        else:
            digest = upstream.listed[member].sha256
            found[member] = inspect_binary(upstream.archive, member, digest, inspector)
    return found


def _path_of(job: Job, sha256: str) -> Callable[[], Path]:
    return lambda: job.store.require_intact(sha256)


def _slim(job: Job, state: BuildState, upstream: StockWheel, inspected: Mapping[str, Inspection]) -> SlimPlan:
    from sparkwright.native.device_code import classify
    from sparkwright.wheel.slim import plan_slim, python_members

    python = python_members(upstream, job.changes(require(state.report)))
    arch = require(job.spec.arch)
    tallies = {member: classify(one.device, arch) for member, one in inspected.items()}
    return plan_slim(python, tallies, require(job.native).drop, arch)
