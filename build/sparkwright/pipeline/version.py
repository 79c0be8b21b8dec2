"""Versions of wheels: PEP 440, with patchset, revision, digest and origin of kernels in the local part."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkwright.pipeline.state import require

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sparkwright.pipeline.job import Job
    from sparkwright.pipeline.state import BuildState


def version_of(job: Job, state: BuildState) -> str:
    """Return the version of the wheel of *job*; see `native_version`.

    A binary of upstream's that is left out does not count as taken from upstream's wheel.
    """
    if state.binaries is None:
        return native_version(job, state.stock_extensions)
    extensions, taken = require(job.native).extensions, state.binaries.upstream
    return native_version(job, [name for name in state.stock_extensions if extensions[name].member in taken])


def native_version(job: Job, stock: Collection[str]) -> str:
    """Return the version of a wheel that takes the extensions *stock* from upstream's wheel.

    One build spec can give different wheels, as some sources cannot always be fetched, so the version says
    which: ``0.24.0+spark.12.sm121a.1a2b3c4d`` for all of them, ``….stock.fa2`` where FlashAttention is
    upstream's.
    """
    marks = [*(["stock", *stock_marks(stock)] if stock else []), *(["full"] if job.options.full else [])]
    return ".".join([job.version, *marks])


def stock_marks(names: Iterable[str]) -> list[str]:
    """Return short names of extensions for a version, sorted: ``_vllm_fa2_C`` is ``fa2``."""
    short = (re.sub(r"^_?(vllm_)?|(_?C)?(_stable_libtorch)?$", "", name) for name in names)
    return sorted(re.sub(r"[^a-z0-9]", "", (name or "c").lower()) for name in short)
