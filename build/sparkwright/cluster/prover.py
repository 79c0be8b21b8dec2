"""Prove carries on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.events import emit
from sparkwright.cluster.messages import ProofInputs, ProofMade, ProofTask, own_code
from sparkwright.cluster.running import run_tasks
from sparkwright.cluster.sharing import packed_tree, share_inputs
from sparkwright.native.model import Cost
from sparkwright.probe import Proof
from sparkwright.probe.environment import environment_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.carries import Carry
    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.probe import Prover
    from sparkwright.store import Store

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


@dataclass(frozen=True)
class ClusterProver:
    """Proves carries on other machines.

    Attributes:
        address: the machines.
        store: the store here.
        patience_s: how long to wait for a machine when none is left.
        silent_s: how long a machine may be silent; see `open_pool`.
    """

    address: ClusterAddress
    store: Store
    patience_s: float = 60.0
    silent_s: float = 60.0

    def prove(self, requests: Sequence[ProofRequest]) -> dict[str, Proof]:
        """Return proofs of *requests*, at least one and all portable, by the carries' names.

        Each is recorded here unless it is broken, as a proof that is made here.

        Raises:
            ClusterError: no machine can be had, several were lost over one proof, or one did not arrive.
        """
        repository = requests[0].prover.repository
        trees = {tree for one in requests for tree in (one.prover.pristine, one.prover.merged)}
        inputs = ProofInputs(
            code=own_code(),
            trees=tuple(packed_tree(self.store, repository, tree) for tree in sorted(trees)),
            environment=environment_key(),
        )
        digest, size = share_inputs(self.store, inputs)
        asked = {one.carry.name: one for one in requests}
        proofs: dict[str, Proof] = {}

        def take(task: ProofTask, reply: ProofMade) -> bool:
            proof, one = msgspec.convert(reply.proof, Proof), asked[task.name]
            if not one.prover.adopt(proof, one.carry, one.paths, absorbed=one.absorbed):
                return False
            proofs[task.name] = proof
            emit(
                "proof.finished",
                carry=task.name,
                machine=reply.machine,
                verdict=str(proof.verdict),
                seconds=round(reply.seconds, 3),
            )
            return True

        run_tasks(
            self.address, self.store, [_task(one, digest, size) for one in requests], take,
            made=ProofMade, title="prove", unit="carries", patience_s=self.patience_s, silent_s=self.silent_s,
        )  # fmt: skip
        return proofs


def _task(one: ProofRequest, inputs: str, inputs_size: int) -> ProofTask:
    carry, prover = one.carry.at(one.prover.version), one.prover
    if carry.spec.probe is None or carry.probe_path is None:
        raise ValueError(f"{carry.name} has no probe")
    return ProofTask(
        inputs=inputs,
        inputs_size=inputs_size,
        expected=Cost(seconds=_EXPECTED_S, mib=carry.spec.probe.memory_mib),
        name=carry.name,
        carry={name: value for name, value in to_builtins(carry.spec).items() if value != ""},
        files={path.name: path.read_bytes() for path in (carry.probe_path, *carry.probe_helpers)},
        pristine=prover.pristine,
        merged=prover.merged,
        version=prover.version,
        paths=one.paths,
        absorbed=one.absorbed,
    )
