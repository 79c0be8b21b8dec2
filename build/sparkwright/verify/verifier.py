"""The checks, as rehearsals and bisections are given them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sparkwright.engine.verifier import CheckRequest, Verifier
from sparkwright.verify.checks import ALL
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.results import write_results
from sparkwright.verify.setup import prepare
from sparkwright.verify.suite import run_suite

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.engine.findings import Finding

_PAIRED = frozenset({"compare", "parity"})  # they need two servers


def run_checks(request: CheckRequest, folder: Path) -> tuple[Finding, ...]:
    """Run the checks of *request* into *folder* and write their results; a finished run is not repeated.

    Raises:
        ServerError: no server came up.
        StorageError: the disk is full or cannot be written.
    """
    options = VerifyOptions(
        recipe=request.recipe,
        python=str(request.python),
        against="" if request.against is None else str(request.against),
        profile=request.profile,
        checks=request.checks,
        categories=request.categories,
        levels=request.levels,
        seed=request.seed,
    )

    async def run() -> tuple[Finding, ...]:
        suite, manifest = await prepare(options, folder, offline=request.offline)
        return await run_suite(suite, folder, manifest)

    findings = asyncio.run(run())
    write_results(folder)
    return findings


VERIFIER = Verifier(tuple(name for name in ALL if name not in _PAIRED), run_checks)
"""All of them."""
