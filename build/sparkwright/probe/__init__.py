"""Probes: differential tests that show a carry to be needed and to work.

A probe must fail on the pristine tree and pass on the merged one. `judge` runs one on both
trees, `proof` is what is recorded of it, `bench` lays out what a run needs, `runner` starts the
child, `environment` is the Python that it runs in, `facility` is what else a probe may ask for, and
``child/`` is what runs inside.
"""

from sparkwright.probe.environment import prepare_environment
from sparkwright.probe.facility import Facility
from sparkwright.probe.judge import Prover, judge
from sparkwright.probe.proof import Proof, Run, Verdict, read_proof, write_proof
from sparkwright.probe.trees import tree_folder

__all__ = [
    "Facility",
    "Proof",
    "Prover",
    "Run",
    "Verdict",
    "judge",
    "prepare_environment",
    "read_proof",
    "tree_folder",
    "write_proof",
]
