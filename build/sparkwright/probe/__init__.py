"""Probes: differential tests that show a carry to be needed and to work.

A probe must fail on the pristine tree and pass on the merged one. `judge` runs one on both
trees, `proof` is what is recorded of it, `setup` lays out what a run needs, `runner` starts the
child, `environment` is the Python and the trees that it runs in, ``child/`` is what runs inside, and
``pool`` makes many runs cheap. `upstream_tests` runs upstream's own tests on
both trees.
"""

from sparkwright.probe.environment import prepare_environment, tree_folder
from sparkwright.probe.judge import Prover, judge
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import ProbeRun, ProbeVerdict, Proof, read_proof, write_proof
from sparkwright.probe.setup import ProbeResource
from sparkwright.probe.upstream_tests import UpstreamGate

__all__ = [
    "ProbePool",
    "ProbeResource",
    "ProbeRun",
    "ProbeVerdict",
    "Proof",
    "Prover",
    "UpstreamGate",
    "judge",
    "prepare_environment",
    "read_proof",
    "tree_folder",
    "write_proof",
]
