"""Does a worker of vLLM 0.33.0 on unified memory outlive what the host does to it?

As in the first probe. At a start all that torch holds is counted, and not the weights alone.
"""

from __future__ import annotations

from probe import GIB, REQUESTED, SLEEPS, STARTS, WEIGHTS, Start, check

MORE_STARTS = (
    Start(
        "another process releases 5 GiB while torch holds buffers",
        unified=True,
        released=5 * GIB,
        budget=REQUESTED - WEIGHTS - GIB // 4,
        buffers=GIB // 4,
    ),
)


def probe() -> None:
    """Check what happens at this release."""
    check((*STARTS, *MORE_STARTS), SLEEPS)
