"""Which binaries a wheel with native kernels has, where each comes from, and which it does without."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.pipeline.job import require

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from sparkwright.native.inspection import Inspection
    from sparkwright.native.model import Extension, Toolchain
    from sparkwright.pipeline.job import BuildState, Job
    from sparkwright.pipeline.steps import Step
    from sparkwright.wheel import BinarySource
    from sparkwright.wheel.binaries import NativeExpectation
    from sparkwright.wheel.slim import SlimPlan
    from sparkwright.wheel.source import StockWheel

# Part of the key: raised when the choice below changes.
_RULES = 1
_NOT_OURS = "sparkwright compiles no such extension"


class Binaries(Model, frozen=True):
    """The choice.

    Attributes:
        record: ``kernels.json``, as a JSON value.
        platform: platform tag that the wheel may carry: what all its binaries run on.
        left_out: why binaries of upstream's wheel are left out, by member.
        upstream: why the others of upstream's are taken, by member.
        kept: why binaries stay that hold nothing for the card, by member.
    """

    record: dict[str, Any]
    platform: str
    left_out: dict[str, str]
    upstream: dict[str, str]
    kept: dict[str, str]


def binary_steps(job: Job) -> list[Step]:
    """The steps between the kernels and the assembly; none where upstream's kernels are taken."""
    return [] if job.native is None else [ChooseBinaries()]


@dataclass(frozen=True)
class ChooseBinaries:
    """Compiled extensions, upstream's where there is none, and nothing that is of no use on the card."""

    name: ClassVar[str] = "binaries"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.report is None or not _all_there(job, known):
            return None
        return digest_of(
            {
                "rules": _RULES,
                "stock-wheel": job.stock_wheel.sha256,
                "tree": known.report.tree,
                "extensions": {name: one.sha256 for name, one in sorted(known.extensions.items())},
                "stock": sorted(known.stock_extensions.items()),
                "arch": job.point.arch,
                "full": job.options.full,
            }
        )

    def find(self, job: Job, known: BuildState) -> bool:
        record = job.store.find_record("binaries", self.key(job, known) or "")
        try:
            known.binaries = None if record is None else msgspec.convert(record, Binaries)
        except msgspec.ValidationError:
            known.binaries = None
        return known.binaries is not None

    def make(self, job: Job, known: BuildState) -> None:
        known.binaries = _choose(job, known)
        job.store.put_record("binaries", self.key(job, known) or "", to_builtins(known.binaries))


def _all_there(job: Job, known: BuildState) -> bool:
    return set(require(job.native).extensions) <= {*known.extensions, *known.stock_extensions}


def _choose(job: Job, known: BuildState) -> Binaries:
    from sparkwright.native.inspection import honest_platform
    from sparkwright.wheel.kernels import kernels_record
    from sparkwright.wheel.slim import SlimPlan
    from sparkwright.wheel.source import open_source

    members = {spec.member: name for name, spec in require(job.native).extensions.items()}
    compiled = {
        member: known.extensions[name] for member, name in members.items() if name in known.extensions
    }
    with open_source(job.fetch_stock_wheel()) as upstream:
        inspected = _inspect(job, upstream, {member: one.sha256 for member, one in compiled.items()})
        slim = SlimPlan((), {}) if job.options.full else _slim(job, known, upstream, inspected)
        left_out = {one.member: one.because for one in slim.left_out}
        stock = {
            member: known.stock_extensions.get(members.get(member, ""), _NOT_OURS)
            for member in inspected
            if member not in compiled and member not in left_out
        }
        kept = [one.elf.versions for member, one in inspected.items() if member not in left_out]
        platform = honest_platform(upstream.name.platform, kept)
    record = kernels_record(
        job.target, require(known.toolchain).key, compiled=compiled, upstream=stock, left_out=slim.left_out
    )
    return Binaries(record=record, platform=platform, left_out=left_out, upstream=stock, kept=dict(slim.kept))


def _inspect(job: Job, upstream: StockWheel, compiled: Mapping[str, str]) -> dict[str, Inspection]:
    """What every binary is: the compiled ones, and upstream's where there is none, by member.

    Args:
        job: whose store and lock are used.
        upstream: upstream's wheel.
        compiled: SHA-256 of the compiled ones by member.
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


def _slim(job: Job, known: BuildState, upstream: StockWheel, inspected: Mapping[str, Inspection]) -> SlimPlan:
    from sparkwright.native.inspection import classify
    from sparkwright.wheel.slim import plan_slim, python_members

    python = python_members(upstream, job.changes(require(known.report)))
    arch = require(job.point.arch)
    tallies = {member: classify(one.device, arch) for member, one in inspected.items()}
    return plan_slim(python, tallies, require(job.native).drop, arch)


def binary_arguments(job: Job, known: BuildState) -> dict[str, Any]:
    """What an `AssemblyPlan` says about binaries, as its arguments; none where upstream's are taken."""
    from sparkwright.wheel import BinarySource
    from sparkwright.wheel.assemble import COMPILED
    from sparkwright.wheel.deflate import deflated_in

    if known.binaries is None:
        return {}
    providers: dict[str, BinarySource] = {
        member: BinarySource(
            job.store.require_intact(one.sha256), COMPILED, one.key, deflated_in(job.store, one.sha256)
        )
        for member, one in compiled_members(job, known).items()
    }
    return {
        "providers": providers,
        "upstream_binaries": known.binaries.upstream,
        "left_out": known.binaries.left_out,
        "platform": known.binaries.platform,
    }


def compiled_members(job: Job, known: BuildState) -> dict[str, Extension]:
    """The extensions that were compiled, by their members in the wheel."""
    return {require(job.native).extensions[name].member: one for name, one in known.extensions.items()}


def native_expectation(
    job: Job, arch: str = "", toolchain: Toolchain | None = None
) -> NativeExpectation | None:
    """What an audit looks into binaries with; `None` where the lock names nothing for that.

    Args:
        job: whose point and platform the wheel is of.
        arch: the card that kernels are judged for; by default that of the point, or of the lock.
        toolchain: what compiled the wheel, where that is known; else libraries are the lock's packages.
    """
    from sparkwright.native.inspection import find_surroundings, inspector_of, surroundings_of
    from sparkwright.wheel.binaries import NativeExpectation

    native = job.point.lock.native
    if native is None:
        return None
    return NativeExpectation(
        arch=arch or job.point.arch or native.arch,
        inspector=inspector_of(native, job.access),
        surroundings=find_surroundings(native, job.options.platform, job.store)
        or (surroundings_of(native, toolchain) if toolchain else None),
    )


def version_of(job: Job, known: BuildState) -> str:
    """The version that the wheel gets; see `native_version`. A binary that is left out is nobody's."""
    if known.binaries is None:
        return native_version(job, known.stock_extensions)
    extensions, taken = require(job.native).extensions, known.binaries.upstream
    return native_version(job, [name for name in known.stock_extensions if extensions[name].member in taken])


def native_version(job: Job, stock: Collection[str]) -> str:
    """The version of a wheel for which the extensions *stock* are taken from upstream's wheel.

    The same point can give different wheels, as sources can or cannot be had, so the version says
    which: ``0.24.0+spark.12.1a2b3c4d`` for all of them, ``….stock.fa2`` where FlashAttention is upstream's.
    """
    marks = [*(["stock", *stock_marks(stock)] if stock else []), *(["full"] if job.options.full else [])]
    return ".".join([job.version, *marks])


def stock_marks(names: Iterable[str]) -> list[str]:
    """Short names of extensions for a version, sorted: ``_vllm_fa2_C`` is ``fa2``."""
    short = (re.sub(r"^_?(vllm_)?|(_?C)?(_stable_libtorch)?$", "", name) for name in names)
    return sorted(re.sub(r"[^a-z0-9]", "", (name or "c").lower()) for name in short)
