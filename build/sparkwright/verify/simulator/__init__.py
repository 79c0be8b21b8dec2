"""A server that speaks like vLLM with speculative decoding, in its own process, and can be made to fail.

`engine` is the file to open first: a scheduler and a model, step by step, that know no clock and no network.
`server` puts HTTP in front of them, `faults` lists what can be wrong, `main` is the command.
"""

from __future__ import annotations

from sparkwright.verify.simulator.faults import FAULTS, Fault, Faults, parse_faults
from sparkwright.verify.simulator.settings import Settings, StepCosts

__all__ = ["FAULTS", "Fault", "Faults", "Settings", "StepCosts", "parse_faults"]
