"""The pin in summaries: the commit and its wheel, and the origin of the wheel's digest."""

from __future__ import annotations

from typing import Any

import click

from sparkwright.pipeline import Job


def pin_summary(job: Job) -> dict[str, Any]:
    """Return the commit and the wheel that *job* starts from, and the origin of the wheel's digest."""
    commit, wheel = job.spec.lock.release.commit, job.stock_wheel
    return {
        "pin": {
            "commit": commit,
            "wheel": wheel.filename,
            "wheel-of": wheel.commit or commit,
            "trust": wheel.trust,
        }
    }


def show_pin(job: Job) -> None:
    """Print the pin, if the digest of upstream's wheel is that of a first download."""
    commit, wheel = job.spec.lock.release.commit, job.stock_wheel
    if wheel.commit is None:
        return
    of = "" if wheel.commit == commit else f" of commit {wheel.commit[:12]}, with equal native inputs,"
    click.echo(f"pin      commit {commit[:12]}; upstream's wheel{of} is known by its first download alone")
