"""The plan of a run: the servers that it starts, the checks that it makes, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkwright.engine.servers import Arms
from sparkwright.verify.check import Check, Context
from sparkwright.verify.estimate import Rates


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
