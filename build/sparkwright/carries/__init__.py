"""Carries: changes held on top of upstream, each with its reason, its revisions and its probe.

`model` is what ``carry.toml`` says, `folder` reads the folders, `patch` applies a revision to exactly the
blobs that it was written for, and `patchset` puts carries in order on a pin. `edited`, `pull` and `files`
make carries: from an edited folder, from a pull request, and as files.
"""

from sparkwright.carries.folder import Carry, load_carries, load_carry
from sparkwright.carries.model import (
    CARRY_FORMAT,
    CarryEvidence,
    CarrySpec,
    ProbeSpec,
    PullRequest,
    Revision,
    Superseded,
    Upstream,
)
from sparkwright.carries.patch import FilePatch, Patch, parse_patch

__all__ = [
    "CARRY_FORMAT",
    "Carry",
    "CarryEvidence",
    "CarrySpec",
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
