"""One run of the suite against a simulated server with one thing wrong, small enough to be done sixty times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from sparkwright.verify import profiles, setup
from sparkwright.verify.profile import Deadlines, Profile
from sparkwright.verify.suite import run_suite
from sparkwright.verify.wish import Wish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkwright.verify.model import Finding

# In the server's seconds. A request that hangs costs its deadline, so those are short; on a busy machine the
# simulator's clock runs on while nobody gets to run, so they are not shorter.
SMALL = Profile(
    name="matrix",
    checks=("boot", "coherence", "sweep", "crash", "context", "soak", "lossless"),
    categories=("code", "prose"),
    levels=(1, 8, 32),
    requests_per_client=2,
    least_requests=16,
    max_tokens=96,
    off_grid=(17,),
    waves=1,
    contexts=(8_000,),
    context_requests=2,
    soak_s=1200.0,
    lossless_prompts=24,
    speed=60.0,
    deadlines=Deadlines(first_token_s=300.0, stall_s=120.0, canary_s=120.0, quiesce_s=300.0),
)


def judge(folder: Path, *faults: str, checks: Sequence[str] = (), **wish: object) -> dict[str, list[Finding]]:
    """Findings by check of one small run.

    Args:
        folder: of the run.
        faults: what is wrong, as for ``--fault``.
        checks: what to run; everything by default.
        wish: more of `Wish`.
    """
    profile = msgspec.structs.replace(SMALL, checks=tuple(checks) or SMALL.checks)
    asked = Wish(profile=profile.name, simulator=True, faults=faults, **wish)
    profiles.PROFILES = {**profiles.PROFILES, profile.name: profile}

    async def run() -> tuple[Finding, ...]:
        suite, manifest = await setup.prepare(asked, folder)
        return await run_suite(suite, folder, manifest)

    grouped: dict[str, list[Finding]] = {}
    for finding in asyncio.run(run()):
        grouped.setdefault(finding.check, []).append(finding)
    return grouped
