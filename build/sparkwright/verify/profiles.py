"""Profiles: how much a run of `verify` measures. Options and recipes can change every number."""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.base.config import Model
from sparkwright.engine.cell import Deadlines


class Profile(Model, frozen=True):
    """The sizes of a run.

    Attributes:
        checks: names of the checks that run, in order.
        levels: concurrencies of the sweep.
        requests_per_client: requests in a sweep's cell for each of its clients, at the least.
        least_requests: requests in a sweep's cell, at the least.
        off_grid: concurrencies between the sizes that graphs are captured for, for the crash hunt.
        waves: mixed-length waves of the crash hunt; with none, it drains from the largest of `off_grid` only.
        contexts: prompt lengths in tokens of the long-context check.
        soak_s: length of the prefix-cache soak, in seconds of the server's clock.
        boots: starts of each arm of a comparison, at the least; `most_boots` where fewer decide nothing.
        speed: server's seconds in one of the client's; above 1 only for a simulator.
    """

    name: str
    checks: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("code", "math", "reasoning", "prose", "dialogue", "extraction")
    levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    requests_per_client: int = 3
    least_requests: int = 24
    max_tokens: int = 400
    off_grid: tuple[int, ...] = (3, 5, 7, 9, 15, 17, 23, 25, 31, 33, 47, 63)
    waves: int = 10
    contexts: tuple[int, ...] = (16_000, 33_000)
    context_requests: int = 4
    soak_s: float = 1800.0
    soak_concurrency: int = 8
    boots: int = 3
    most_boots: int = 10
    comparison_requests: int = 24
    lossless_prompts: int = 48
    thinking: bool = False
    seed: int = 0
    speed: float = 1.0
    deadlines: Deadlines = Deadlines()


_FULL = Profile(
    name="full",
    checks=(
        *("boot", "coherence", "traffic", "sampling", "thinking", "image", "sweep", "bands", "crash"),
        *("mixed", "context", "limit", "soak", "lossless", "prefix"),
    ),
)

# Random weights generate no meaningful text, and synthetic acceptance accepts wrong tokens on purpose, so
# this profile has no check of content. Tiny models are fast, so deadlines are short.
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
    deadlines=Deadlines(first_token_s=120.0, stall_s=30.0),
)

# More than twenty minutes of a simulated server's time in one of the client's, on two shared cores. At c = 64
# the simulator limits the rate, whatever the speed, so outputs and prompts are few and short.
_DEMO = Profile(
    name="demo",
    # Early, the soak: a decay with the server's age would be over once all other cells are measured.
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

# A small model on a few cores: tens of tokens a second for all requests together.
_CPU = Profile(
    name="cpu",
    checks=("boot", "coherence", "traffic", "sweep", "prefix", "crash", "lossless"),
    categories=("code", "extraction"),
    levels=(1, 4, 8),
    requests_per_client=2,
    least_requests=8,
    max_tokens=48,
    off_grid=(3,),
    waves=1,
    lossless_prompts=20,
)

# The usual profile: at most 20 minutes on a GB10 with a model of 27 billion parameters. Two categories, so
# that they can be compared, every concurrency, the batch size of a known crash, one long prompt; nothing that
# takes hours or another server, such as a soak or plain answers.
_QUICK = Profile(
    name="quick",
    checks=("boot", "coherence", "traffic", "sampling", "sweep", "crash", "context"),
    categories=("code", "prose"),
    requests_per_client=1,
    least_requests=12,
    max_tokens=32,
    off_grid=(17,),
    waves=0,
    contexts=(8_000,),
    context_requests=1,
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (_FULL, _QUICK, _SMOKE, _DEMO, _CPU)}
"""Shipped profiles by name."""
