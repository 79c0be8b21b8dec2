"""The steps to a wheel and its index: choose binaries, assemble, audit, place in a folder, list it there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sparkwright import __version__
from sparkwright.base.config import convert, to_builtins
from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import SparkwrightError
from sparkwright.lock.runtime import SUFFIX
from sparkwright.native.inspection import Inspection
from sparkwright.native.model import Extension
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.proofs import wants_proof
from sparkwright.pipeline.record import expectation, version_of, wheel_record
from sparkwright.pipeline.state import Binaries, BuildState, FoundWheel, Step, require
from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, assemble
from sparkwright.wheel.kernels import LeftOut, kernels_record
from sparkwright.wheel.source import StockWheel, open_source

# Part of the key: raised when the choice below changes for the same inputs.
_RULES = 2
# Part of the record in the wheel.
_NOT_OURS = "sparkwright compiles no such extension"


def choose_binaries(job: Job, state: BuildState) -> Step[Binaries]:
    """Take compiled extensions, upstream's for the others, and none without code for the card."""
    key, known = None, {*state.extensions, *state.stock_extensions}
    if state.report is not None and set(require(job.native).extensions) <= known:
        key = digest_of(
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

    def find() -> Binaries | None:
        record = job.store.find_record("binaries", key or "")
        try:
            return None if record is None else convert(record, Binaries)
        except msgspec.ValidationError:
            return None

    def make() -> Binaries:
        chosen = _choose(job, state)
        job.store.put_record("binaries", key or "", to_builtins(chosen))
        return chosen

    return Step("binaries", key, find, make)


def _choose(job: Job, state: BuildState) -> Binaries:
    from sparkwright.native.elf import honest_platform

    members = {spec.member: name for name, spec in require(job.native).extensions.items()}
    compiled = {
        member: state.extensions[name] for member, name in members.items() if name in state.extensions
    }
    with open_source(job.stock_file) as upstream:
        inspected = _inspect(job, upstream, {member: one.sha256 for member, one in compiled.items()})
        useless = _unneeded(job, state, upstream, inspected)
        left_out = {one.member: one.because for one in useless}
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
        left_out=useless,
        packages=toolchain.packages,
    )
    return Binaries(record=record, platform=platform, left_out=left_out, upstream=stock)


def _inspect(job: Job, upstream: StockWheel, compiled: Mapping[str, str]) -> dict[str, Inspection]:
    """Return the inspection of each binary by member: the compiled one, or upstream's if there is none.

    *compiled* are SHA-256 by member.
    """
    from sparkwright.native.inspection import inspector_of
    from sparkwright.wheel.binaries import inspect_binary

    inspector = inspector_of(require(job.native), job.access)
    found = {}
    for member in upstream.binaries:
        if sha256 := compiled.get(member):
            found[member] = inspector.inspect(sha256, partial(job.store.require_intact, sha256))
        else:
            digest = upstream.listed[member].sha256
            found[member] = inspect_binary(upstream.archive, member, digest, inspector)
    return found


def _unneeded(
    job: Job, state: BuildState, upstream: StockWheel, inspected: Mapping[str, Inspection]
) -> tuple[LeftOut, ...]:
    from sparkwright.native.device_code import classify
    from sparkwright.wheel.kernels import python_members, unneeded

    python = python_members(upstream, job.changes(require(state.report)))
    arch = require(job.spec.arch)
    tallies = {member: classify(one.device, arch) for member, one in inspected.items()}
    return unneeded(python, tallies, require(job.native).drop, arch)


# Assembly and audit -------------------------------------------------------------------------------

# Part of the keys: raised when assembling or auditing gives another result for the same inputs.
_ASSEMBLY_RULES = 2
_AUDIT_RULES = 4


def fetch_stock_wheel(job: Job) -> Step[Path]:
    """Fetch upstream's wheel, the origin of unchanged files and binaries."""
    wheel = job.stock_wheel

    def find() -> Path | None:
        return job.store.find_file(wheel.sha256, size=wheel.size)

    return Step("upstream's wheel", wheel.sha256, find, lambda: job.stock_file)


def assemble_wheel(job: Job, state: BuildState) -> Step[FoundWheel]:
    """Write the wheel into the store."""
    key = None
    proved = {*state.proofs, *job.options.allow_unproved}
    if (
        (report := state.report) is not None
        and all(one.name in proved or not wants_proof(report, one) for one in job.spec.carries)
        and (job.native is None or state.binaries is not None)
    ):
        key = digest_of(
            {
                "rules": _ASSEMBLY_RULES,
                "tool": __version__,
                "version": version_of(job, state),
                "stock-wheel": job.stock_wheel.sha256,
                "record": wheel_record(job, state),
                "sources": to_builtins(job.spec.lock.sources),  # the bill of materials lists them
            }
        )

    def find() -> FoundWheel | None:
        found = job.store.find_record_as(FoundWheel, "wheel", key or "")
        there = found is not None and job.store.find_file(found.sha256, size=found.size) is not None
        return found if there else None

    def make() -> FoundWheel:
        plan = AssemblyPlan(
            upstream_wheel=job.stock_file,
            upstream_sha256=job.stock_wheel.sha256,
            version=version_of(job, state),
            changes=job.changes(require(state.report)),
            record=wheel_record(job, state),
            lock=job.spec.lock,
            **_binary_arguments(job, state),
        )
        with job.store.scratch() as scratch:
            built = assemble(plan, scratch)
            job.store.adopt_file(built.path, built.sha256, verified=True)
        made = FoundWheel(built.path.name, built.sha256, built.size)
        job.store.put_record("wheel", key or "", to_builtins(made))
        return made

    return Step("assemble", key, find, make)


def audit_wheel(job: Job, state: BuildState) -> Step[dict[str, Any]]:
    """Compare the wheel with upstream's and with the merge; the result is the record of a passed audit."""
    key = None
    if state.wheel is not None and state.report is not None:
        key = digest_of(
            {
                "rules": _AUDIT_RULES,
                "tool": __version__,
                "wheel": state.wheel.sha256,
                "stock-wheel": job.stock_wheel.sha256,
                "trees": [state.report.pristine, state.report.tree],
            }
        )

    def find() -> dict[str, Any] | None:
        record = job.store.find_record("audit", key or "") or {}
        return record if record.get("passed") is True else None

    def make() -> dict[str, Any]:
        from sparkwright.wheel.audit import audit

        wheel, merged = require(state.wheel), require(state.report)
        path = job.store.named_file(wheel.sha256, wheel.filename)
        expected = expectation(
            job,
            job.changes(merged),
            version_of(job, state),
            toolchain=state.toolchain,
            record=wheel_record(job, state),
            python=job.python(merged),
            links=job.links(merged),
            compiled=_compiled_members(job, state),
        )
        try:
            report = audit(path, expected)
            report.require()
        except SparkwrightError:
            job.store.require_intact(wheel.sha256)  # else the store is damaged, not the wheel
            raise
        record = report.to_json()
        job.store.put_record("audit", key or "", record)
        return record

    return Step("audit", key, find, make)


def _binary_arguments(job: Job, state: BuildState) -> dict[str, Any]:
    """Return the arguments of an `AssemblyPlan` that concern binaries; none for upstream's kernels."""
    from sparkwright.wheel.recorded import COMPILED
    from sparkwright.wheel.rewrite import deflated_in

    if state.binaries is None:
        return {}
    providers: dict[str, BinarySource] = {
        member: BinarySource(
            job.store.require_intact(one.sha256), COMPILED, one.key, deflated_in(job.store, one.sha256)
        )
        for member, one in _compiled_members(job, state).items()
    }
    return {
        "providers": providers,
        "upstream_binaries": state.binaries.upstream,
        "left_out": state.binaries.left_out,
        "platform": state.binaries.platform,
    }


def _compiled_members(job: Job, state: BuildState) -> dict[str, Extension]:
    """Return the compiled extensions, by their members in the wheel."""
    return {require(job.native).extensions[name].member: one for name, one in state.extensions.items()}


# The user's folder --------------------------------------------------------------------------------


def place_wheel(job: Job, wheel: FoundWheel | None) -> Step[Path]:
    """Copy the wheel into the user's folder."""

    def find() -> Path | None:
        if wheel is None:
            return None
        target = job.out / wheel.filename
        if not target.is_file() or target.stat().st_size != wheel.size:
            return None
        if _known_digest(job, target) is None:
            _note_digest(job, target, sha256_file(target))
        return target if _known_digest(job, target) == wheel.sha256 else None

    def make() -> Path:
        found = require(wheel)
        placed = job.store.copy_out(found.sha256, job.out / found.filename)
        _note_digest(job, placed, found.sha256)
        return placed

    return Step("place", None if wheel is None else digest_of([wheel.sha256, str(job.out)]), find, make)


def publish_index(job: Job, placed: Path | None) -> Step[bool]:
    """Index every wheel in the user's folder."""
    out = job.out

    def key() -> str:
        runtimes = sorted(job.checkout.patchsets.glob(f"*{SUFFIX}"))
        return digest_of([_listing(out), {path.name: sha256_file(path) for path in runtimes}])

    def find() -> bool | None:
        record = job.store.find_record("index", key())
        return True if record is not None and record.get("pages") == _pages(out) else None

    def make() -> bool:
        from sparkwright.publish.index import publish, runtimes_in

        runtimes = runtimes_in(job.checkout.patchsets)
        listed = None
        # A run for another platform may place its wheel while this one writes pages without it.
        while listed != (listed := _listing(out)):
            index = publish(out, digests=_known_digests(job), runtimes=runtimes)
            for file in index.files:
                _note_digest(job, out / file.filename, file.sha256)
        job.store.put_record("index", key(), {"folder": str(out), "pages": _pages(out)})
        return True

    return Step("index", None if placed is None else key(), find, make)


def _known_digests(job: Job) -> dict[str, str]:
    """Return the digests of wheels in the user's folder that were hashed before and not modified since."""
    from sparkwright.publish.index import wheels_in

    found = {wheel.name: _known_digest(job, wheel) for wheel in wheels_in(job.out)}
    return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


def _known_digest(job: Job, path: Path) -> str | None:
    """Return the digest of the file at *path*, if it was computed and the file was not modified since."""
    record = job.store.find_record("digest", _state_key(path)) or {}
    sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def _note_digest(job: Job, path: Path, sha256: str) -> None:
    job.store.put_record("digest", _state_key(path), {"sha256": sha256})


def _state_key(path: Path) -> str:
    """Return a key for the file at *path* that changes whenever the file is modified.

    It covers the time of the last change of state: unlike the time of modification, it cannot be set back.
    """
    state = path.stat()
    times = [state.st_mtime_ns, state.st_ctime_ns]
    return digest_of([str(path), state.st_dev, state.st_ino, state.st_size, *times])


def _pages(folder: Path) -> str:
    """Return the digest of the index's pages, and of what stands beside wheels, in *folder*."""
    pages = [*folder.glob("simple/**/*"), *folder.glob("*.whl.metadata"), *folder.glob(f"*{SUFFIX}")]
    return digest_of(sorted([str(path), sha256_file(path)] for path in pages if path.is_file()))


def _listing(folder: Path) -> list[list[str | int]]:
    from sparkwright.publish.index import wheels_in

    states = [(wheel, wheel.stat()) for wheel in wheels_in(folder)]
    return [[str(wheel), state.st_size, state.st_mtime_ns] for wheel, state in states]
