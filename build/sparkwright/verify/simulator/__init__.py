"""A simulated vLLM server with speculative decoding and faults that can be switched on.

Read `engine` first: a scheduler and a model, step by step, without clock or network. `server` serves it over
HTTP, `generate` streams one response, `faults` lists the faults, `main` is the command.
"""

from __future__ import annotations

from sparkwright.verify.simulator.faults import FAULTS, Fault, Faults, parse_faults
from sparkwright.verify.simulator.settings import Settings, StepCosts

__all__ = ["FAULTS", "Fault", "Faults", "Settings", "StepCosts", "parse_faults"]
