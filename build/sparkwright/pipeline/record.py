"""A wheel's record of itself, in ``dist-info/sparkwright/`` and its version, and what its audit expects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.carries.model import Carry
from sparkwright.native.model import Extension, Toolchain
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.proofs import wants_proof
from sparkwright.pipeline.state import BuildState, require
from sparkwright.wheel.audit import ALLOWED
from sparkwright.wheel.binaries import Expectation, NativeExpectation
from sparkwright.wheel.kernels import KERNELS
from sparkwright.wheel.recorded import CARRIES, POINT

RECORD_FORMAT = 1


def wheel_record(job: Job, state: BuildState) -> dict[str, Any]:
    """Return the files of the record: the build spec, and each carry's outcome and proof.

    It contains no time, path or machine name: the same inputs give the same wheel.
    """
    report = require(state.report)
    point = {
        "format": RECORD_FORMAT,
        "digest": job.spec.digest,
        "version": version_of(job, state),
        "platform": job.options.platform,
        "kernels": job.kernels,
        **({"series": job.spec.lock.series} if job.spec.lock.series else {}),
        "made-by": f"sparkwright {__version__}",
        "point": job.spec.describe(),
        "merge": {"pristine": report.pristine, "merged": report.tree, "commit": report.commit},
        **({} if job.stock_wheel.trust == "index" else {"trust": job.stock_wheel.trust}),
    }
    # Carries that are left out are not named: the same build spec gives the same wheel.
    carries = [_carry(job, state, carry) for carry in job.spec.deciding]
    files = {POINT: point, CARRIES: {"format": RECORD_FORMAT, "carries": carries}}
    return files if state.binaries is None else {**files, KERNELS: state.binaries.record}


def _carry(job: Job, state: BuildState, carry: Carry) -> dict[str, Any]:
    outcome = require(state.report).outcome(carry.name)
    proof = state.proofs.get(carry.name)
    described: dict[str, Any] = {
        "name": carry.name,
        "title": carry.spec.title,
        "runner": carry.at(require(state.report).version).spec.runner,
        "upstream": [entry.pull for entry in carry.spec.upstream],
        "evidence": to_builtins(carry.spec.evidence),
        **_content(carry, require(state.report).version),
        "outcome": str(outcome.kind),
        "detail": outcome.detail,
        **({"source": outcome.source} if outcome.source else {}),
        "paths": list(outcome.paths),
        "hazards": to_builtins(outcome.hazards),
    }
    if proof is not None:
        # Not its environment: the key covers what the proof hangs on, and any machine can make it again.
        described["proof"] = {"key": proof.key, "verdict": str(proof.verdict)}
    elif wants_proof(require(state.report), carry):
        described["unproved"] = ALLOWED if carry.name in job.options.allow_unproved else ""
    return described


def _content(carry: Carry, version: str) -> dict[str, Any]:
    """Return the content of *carry* at upstream *version*: its patch or its pull request."""
    if (pull := carry.spec.pull) is not None:
        return {"pull": {"repository": pull.repository, "number": pull.number, "head": pull.head}}
    revision = carry.revision_for(version)
    if revision is None:
        return {}
    return {"patch": {"file": revision.patch, "sha256": carry.patch_sha256(revision)}}


# The version --------------------------------------------------------------------------------------


def version_of(job: Job, state: BuildState) -> str:
    """Return the version of the wheel of *job*; see `native_version`.

    A binary of upstream's that is left out does not count as taken from upstream's wheel.
    """
    stock: Collection[str] = state.stock_extensions
    if not stock and not state.attested:
        return native_version(job, ())
    extensions = require(job.native).extensions
    compiled = len(extensions.keys() - state.stock_extensions.keys())
    if state.binaries is not None:
        taken = state.binaries.upstream
        stock = [name for name in stock if extensions[name].member in taken]
    return native_version(job, stock, compiled, state.attested)


def native_version(
    job: Job, stock: Collection[str], compiled: int = 0, attested: Collection[str] = ()
) -> str:
    """Return the version of a wheel with *compiled* extensions and *stock*, which are upstream's.

    One build spec can give different wheels, as some sources cannot always be fetched, so the version says
    which: ``0.24.0+spark.12.sm121a.1a2b3c4d`` for all of them,
    ``0.24.0+spark.12.mixed.5.sm121a.1a2b3c4d.stock.fa2`` where five are compiled and FlashAttention is
    upstream's. Those *attested*, compiled from a candidate for a pinned source, are named too:
    ``….attested.moe.stock.c.fa2``. Clients prefer the wheel with more compiled extensions; see
    `local_version`.
    """
    marks = [
        *(["attested", *stock_marks(attested)] if attested else []),
        *(["stock", *stock_marks(stock)] if stock else []),
    ]
    return ".".join([job.mixed_version(compiled if stock or attested else None), *marks])


def stock_marks(names: Iterable[str]) -> list[str]:
    """Return short names of extensions for a version, sorted: ``_vllm_fa2_C`` is ``fa2``."""
    short = (re.sub(r"^_?(vllm_)?|(_?C)?(_stable_libtorch)?$", "", name) for name in names)
    return sorted(re.sub(r"[^a-z0-9]", "", (name or "c").lower()) for name in short)


# The audit's expectation --------------------------------------------------------------------------


def expectation(
    job: Job,
    changes: Mapping[str, bytes | None] | None,
    version: str | None = None,
    *,
    toolchain: Toolchain | None = None,
    record: Mapping[str, Any] | None = None,
    python: Mapping[str, str] | None = None,
    links: frozenset[str] = frozenset(),
    compiled: Mapping[str, Extension] | None = None,
) -> Expectation:
    """Return what a wheel of *job* is compared with.

    *changes* are `None` for a wheel of another build spec, and *version* for any of the release. All else is
    as for `Expectation`.
    """
    return Expectation(
        upstream_wheel=job.stock_file,
        artifact=job.stock_wheel,
        lock=job.spec.lock,
        changes=changes,
        version=version,
        native=native_expectation(job, toolchain),
        record=record,
        compiled=compiled or {},
        python=python or {},
        links=links,
    )


def native_expectation(job: Job, toolchain: Toolchain | None = None) -> NativeExpectation | None:
    """Return the tools and limits that binaries are inspected with; `None` if the lock names none.

    Without a *toolchain*, libraries are the lock's packages.
    """
    from sparkwright.native.inspection import find_surroundings, inspector_of, surroundings_of

    native = job.spec.lock.native
    if native is None:
        return None
    torch = native.toolkit.target.get(job.options.platform, {}).get("torch")
    surroundings = None
    # After a move of the pin alone the tables may be of another torch, whose symbols say nothing.
    if torch is None or torch.version == job.spec.lock.release.torch:
        surroundings = find_surroundings(native, job.options.platform, job.store) or (
            surroundings_of(native, toolchain) if toolchain else None
        )
    return NativeExpectation(
        arch=job.spec.arch or native.arch,
        inspector=inspector_of(native, job.access),
        surroundings=surroundings,
    )
