"""What can be found out about a server, check by check.

`common` is the file to open first: it says what makes any observation unfit. Each check is a module of its
own that plans cells and judges them; `ALL` holds them by name.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from sparkwright.verify.checks.bands import Bands
from sparkwright.verify.checks.boot import BootCheck
from sparkwright.verify.checks.coherence import Coherence
from sparkwright.verify.checks.compare import Compare
from sparkwright.verify.checks.context import LongContext
from sparkwright.verify.checks.crash import Crash
from sparkwright.verify.checks.lossless import Lossless
from sparkwright.verify.checks.soak import Soak
from sparkwright.verify.checks.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkwright.verify.check import Check

__all__ = [
    "ALL",
    "Bands",
    "BootCheck",
    "Coherence",
    "Compare",
    "Crash",
    "LongContext",
    "Lossless",
    "Soak",
    "Sweep",
]

ALL: Mapping[str, Check] = MappingProxyType(
    {
        check.name: check
        for check in (
            BootCheck(),
            Sweep(),
            Crash(),
            LongContext(),
            Coherence(),
            Soak(),
            Lossless(),
            Compare(),
            Bands(),
        )
    }
)
"""Every check by its name."""
