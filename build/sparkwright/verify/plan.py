"""What a run measures: its arms, its checks, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.verify.estimate import Rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.servers import Arms
    from sparkwright.verify.check import Check, Context


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        arms: the servers, which are started by arm and boot number.
        checks: to run, in order.
        context: sizes, prompts and what is known of the server before it runs.
        rates: typical ones of such a server, for the run's expected duration.
    """

    arms: Arms
    checks: Sequence[Check]
    context: Context
    rates: Rates = field(default_factory=Rates)
