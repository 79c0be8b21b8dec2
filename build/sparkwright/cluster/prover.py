"""Prove carries on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.config import convert, to_builtins
from sparkwright.base.events import emit
from sparkwright.cluster.kinds import PROOF
from sparkwright.cluster.proving import ProofInputs, ProofMade, ProofTask
from sparkwright.cluster.running import Batch, Cluster, TaskRequest
from sparkwright.cluster.sharing import packed_trees
from sparkwright.native.model import Cost
from sparkwright.probe import Proof
from sparkwright.probe.environment import environment_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.carries import Carry
    from sparkwright.cluster.messages import TaskDone
    from sparkwright.probe import Prover

_EXPECTED_S = 10.0  # nothing is learned of probes: most of a run is the import of the tree


@dataclass(frozen=True)
class ProofRequest:
    """A carry to prove; see `Prover.key`."""

    prover: Prover
    carry: Carry
    paths: tuple[str, ...]
    absorbed: bool

    @property
    def portable(self) -> bool:
        """Tell if another machine can run the probe: it needs the trees and the environment alone."""
        probe = self.carry.at(self.prover.version).spec.probe
        return probe is not None and not probe.needs and self.carry.spec.source is None


@dataclass(frozen=True, kw_only=True)
class ClusterProver(Cluster):
    """Proves carries on other machines."""

    def prove(self, requests: Sequence[ProofRequest]) -> dict[str, Proof]:
        """Return proofs of *requests*, at least one and all portable, by the carries' names.

        Each is recorded here unless it is broken, as a proof that is made here.

        Raises:
            ClusterError: no machine can be had, several were lost over one proof, or one did not arrive.
        """
        repository = requests[0].prover.repository
        trees = sorted({tree for one in requests for tree in (one.prover.pristine, one.prover.merged)})
        wanted = {one.carry.name: one for one in requests}
        proofs: dict[str, Proof] = {}

        def take(request: TaskRequest, made: ProofMade, reply: TaskDone) -> bool:
            proof, one = convert(made.proof, Proof), wanted[request.name]
            if not one.prover.adopt(proof, one.carry, one.paths, absorbed=one.absorbed):
                return False
            proofs[request.name] = proof
            emit(
                "proof.finished",
                carry=request.name,
                machine=reply.machine,
                verdict=str(proof.verdict),
                seconds=round(reply.seconds, 3),
            )
            return True

        self.run(
            Batch(
                PROOF, [_request(one) for one in requests], ProofMade, take,
                trees=packed_trees(self.store, repository, trees),
                shared=ProofInputs(environment=environment_key()), title="prove", unit="carries",
            )
        )  # fmt: skip
        return proofs


def _request(one: ProofRequest) -> TaskRequest:
    carry, prover = one.carry.at(one.prover.version), one.prover
    if carry.spec.probe is None or carry.probe_path is None:
        raise ValueError(f"{carry.name} has no probe")
    asked = ProofTask(
        name=carry.name,
        carry={name: value for name, value in to_builtins(carry.spec).items() if value != ""},
        files={path.name: path.read_bytes() for path in (carry.probe_path, *carry.probe_helpers)},
        pristine=prover.pristine,
        merged=prover.merged,
        version=prover.version,
        paths=one.paths,
        absorbed=one.absorbed,
    )
    return TaskRequest(carry.name, asked, Cost(seconds=_EXPECTED_S, mib=carry.spec.probe.memory_mib))
