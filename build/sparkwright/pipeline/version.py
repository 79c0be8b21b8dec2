"""Versions of wheels: PEP 440, with patchset, revision, digest and origin of kernels in the local part."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require


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
