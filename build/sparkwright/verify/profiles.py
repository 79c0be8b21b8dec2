"""The three sizes that a run comes in; every number can be changed on the command line or in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.verify.profile import Deadlines, Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL = Profile(
    name="full",
    checks=("boot", "coherence", "sweep", "bands", "crash", "context", "soak", "lossless"),
)

# Random weights say nothing sensible, and synthetic acceptance takes wrong tokens on purpose: what answers
# mean is left out. Tiny models are fast, so deadlines are short.
_SMOKE = Profile(
    name="smoke",
    checks=("boot", "sweep", "crash", "context", "soak"),
    categories=("code", "prose"),
    requests_per_client=2,
    least_requests=24,
    max_tokens=96,
    waves=2,
    contexts=(16_000,),
    context_requests=2,
    soak_s=60.0,
    soak_window_s=5.0,
    deadlines=Deadlines(first_token_s=120.0, stall_s=30.0),
)

# Twenty minutes and more of a simulated server's life in one of ours, on two cores that others use too. At
# c = 64 it is the simulator that sets the pace, whatever the speed: what is asked there is kept short.
# The soak comes early: acceptance that decays with a server's age would be gone when all else had been asked.
_DEMO = Profile(
    name="demo",
    checks=("boot", "coherence", "soak", "sweep", "crash", "context", "lossless"),
    categories=("code", "prose"),
    levels=(1, 8, 64),
    requests_per_client=1,
    least_requests=16,
    max_tokens=128,
    off_grid=(17, 33),
    waves=1,
    contexts=(16_000,),
    context_requests=2,
    soak_s=1200.0,
    lossless_prompts=24,
    speed=60.0,
    deadlines=Deadlines(first_token_s=120.0),
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (_FULL, _SMOKE, _DEMO)}
"""By name."""
