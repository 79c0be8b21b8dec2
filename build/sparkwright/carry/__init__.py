"""Carries: changes held on top of upstream, each with its reason, its revisions and its probe.

`model` is what ``carry.toml`` says, `folder` reads the folders, `patch` applies a revision to
exactly the blobs that it was written for.
"""

from sparkwright.carry.folder import Carry, load_carries, load_carry
from sparkwright.carry.model import (
    CARRY_FORMAT,
    CarrySpec,
    Evidence,
    ProbeSpec,
    PullRequest,
    Revision,
    Superseded,
    Upstream,
)
from sparkwright.carry.patch import FilePatch, Patch, parse_patch

__all__ = [
    "CARRY_FORMAT",
    "Carry",
    "CarrySpec",
    "Evidence",
    "FilePatch",
    "Patch",
    "ProbeSpec",
    "PullRequest",
    "Revision",
    "Superseded",
    "Upstream",
    "load_carries",
    "load_carry",
    "parse_patch",
]
