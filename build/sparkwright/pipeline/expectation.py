"""The expectation that an audit compares a wheel with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.native.model import Extension, Toolchain
from sparkwright.pipeline.job import Job
from sparkwright.wheel.audit import Expectation
from sparkwright.wheel.binaries import NativeExpectation


def expectation(
    job: Job,
    changes: Mapping[str, bytes | None] | None,
    version: str | None = None,
    *,
    arch: str = "",
    toolchain: Toolchain | None = None,
    record: Mapping[str, Any] | None = None,
    python: Mapping[str, str] | None = None,
    links: frozenset[str] = frozenset(),
    compiled: Mapping[str, Extension] | None = None,
) -> Expectation:
    """Return what a wheel of *job* is compared with.

    Args:
        job: the build spec and platform of the wheel.
        changes: what the merge changed; `None` for a wheel of another build spec.
        version: the version that it should have; any of the release by default.
        arch: the card that kernels are judged for; by default that of the build spec, or of the lock.
        toolchain: the toolchain that compiled it, if that is known.
        record: the provenance record that the wheel should contain,
        python: its Python files,
        links: what the merged tree has as links, and
        compiled: its binaries in the store; all as for `Expectation`.
    """
    from sparkwright.wheel.audit import Expectation

    return Expectation(
        upstream_wheel=job.fetch_stock_wheel(),
        artifact=job.stock_wheel,
        lock=job.spec.lock,
        changes=changes,
        version=version,
        native=native_expectation(job, arch, toolchain),
        record=record,
        compiled=compiled or {},
        python=python or {},
        links=links,
    )


def native_expectation(
    job: Job, arch: str = "", toolchain: Toolchain | None = None
) -> NativeExpectation | None:
    """Return the tools and limits that binaries are inspected with; `None` if the lock names none.

    Args:
        job: the build spec and platform of the wheel.
        arch: the card that kernels are judged for; by default that of the build spec, or of the lock.
        toolchain: the toolchain that compiled the wheel, if that is known; else libraries are the lock's
            packages.
    """
    from sparkwright.native.inspection import find_surroundings, inspector_of, surroundings_of
    from sparkwright.wheel.binaries import NativeExpectation

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
        arch=arch or job.spec.arch or native.arch,
        inspector=inspector_of(native, job.access),
        surroundings=surroundings,
    )
