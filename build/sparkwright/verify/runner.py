"""One run, from its plan to its results."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparkwright.store import open_store
from sparkwright.verify.plan import Plan
from sparkwright.verify.results import Results, write_results
from sparkwright.verify.setup import Refusal, prepare
from sparkwright.verify.suite import run_plan
from sparkwright.verify.tuned import write_tuned


def run_verification(
    plan: Plan,
    folder: Path,
    keys: tuple[str, str] = ("", ""),
    *,
    offline: bool = False,
    refusal: Refusal | None = None,
) -> Results:
    """Run *plan*, or what is left of it, and write the results to *folder*; arguments as for `prepare`.

    Raises:
        ServerError: no server came up.
        StorageError: the disk is full or cannot be written.
    """

    async def run() -> None:
        await run_plan(*await prepare(plan, folder, keys, offline=offline, refusal=refusal), folder)

    with open_store().running():  # so that no environment of a server is pruned meanwhile
        asyncio.run(run())
    results = write_results(folder)
    return write_tuned(results, plan.options) if plan.options.vary else results
