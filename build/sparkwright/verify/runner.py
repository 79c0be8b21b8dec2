"""One run, from its options to its results."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparkwright.store import open_store
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.results import Results, write_results
from sparkwright.verify.setup import make_plan
from sparkwright.verify.suite import run_plan


def run_verification(
    options: VerifyOptions, folder: Path, keys: tuple[str, str] = ("", ""), *, offline: bool = False
) -> Results:
    """Run what *options* select, or what is left of it, and write the results to *folder*.

    Args:
        options: of the run.
        folder: of the run.
        keys: of the server at an address, and of the one that it is compared with.
        offline: fetch nothing.

    Raises:
        ServerError: no server came up.
        StorageError: the disk is full or cannot be written.
    """

    async def run() -> None:
        plan, manifest = await make_plan(options, folder, *keys, offline=offline)
        await run_plan(plan, folder, manifest)

    with open_store().running():  # so that no environment of a server is pruned meanwhile
        asyncio.run(run())
    return write_results(folder)
