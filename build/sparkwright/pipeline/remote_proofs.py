"""Prove carries on other machines: their proofs are recorded here, as those that are made here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.errors import ClusterError
from sparkwright.base.events import emit
from sparkwright.carries import Carry, CarrySpec
from sparkwright.carries.model import FileName, Name
from sparkwright.distributed import Done, Task, share_json
from sparkwright.distributed.cluster import Cluster
from sparkwright.pipeline.packs import packed
from sparkwright.pipeline.trial import Trial
from sparkwright.probe import Proof, Prover, prepare_environment
from sparkwright.probe.environment import environment_key
from sparkwright.store import Store
from sparkwright.upstream import Access

_EXPECTED_S = 10.0  # nothing is learned of probes: most of a run is the import of the tree


class ProofRequest(Model, frozen=True):
    """A carry to prove.

    Attributes:
        carry: its `CarrySpec` at that version, JSON-ready, without what it leaves empty.
        files: its probe and the modules that this may import, by name.
        pristine, merged: git ids of the trees.
        version: upstream's version that both are of.
        paths: files that the carry changes.
        absorbed: what is proved is that upstream does not have the defect any more.
        environment: key of the environment for probes.
    """

    name: Name
    carry: dict[str, Any]
    files: dict[FileName, bytes]
    pristine: str
    merged: str
    version: str
    paths: tuple[str, ...]
    absorbed: bool
    environment: str


def prove_remotely(cluster: Cluster, trials: Sequence[Trial]) -> dict[str, Proof]:
    """Return proofs of those of *trials* that need no more than the trees, by the carries' names.

    Each is recorded here unless it is broken.

    Raises:
        ClusterError: no machine can be had, several were lost over one proof, or one did not arrive.
    """
    wanted = {one.carry.name: one for one in trials if _portable(one)}
    proofs: dict[str, Proof] = {}

    def take(done: Done) -> bool:
        proof, one = convert(done.value, Proof), wanted[done.name]
        if not one.prover.adopt(proof, one.carry, one.paths, absorbed=not one.in_tree):
            return False
        proofs[done.name] = proof
        emit(
            "proof.finished",
            carry=done.name,
            machine=done.machine,
            verdict=str(proof.verdict),
            seconds=round(done.seconds, 3),
        )
        return True

    if wanted:
        tasks = [_task(cluster.store, one) for one in wanted.values()]
        cluster.run(tasks, take, title="prove", unit="carries")
    return proofs


def _portable(one: Trial) -> bool:
    probe = one.carry.at(one.prover.version).spec.probe
    return probe is not None and not probe.needs and one.carry.spec.source is None


def _task(store: Store, one: Trial) -> Task:
    carry, prover = one.carry.at(one.prover.version), one.prover
    if carry.spec.probe is None or carry.probe_path is None:
        raise ValueError(f"{carry.name} has no probe")
    request = ProofRequest(
        name=carry.name,
        carry={name: value for name, value in to_builtins(carry.spec).items() if value != ""},
        files={path.name: path.read_bytes() for path in (carry.probe_path, *carry.probe_helpers)},
        pristine=prover.pristine,
        merged=prover.merged,
        version=prover.version,
        paths=one.paths,
        absorbed=not one.in_tree,
        environment=environment_key(),
    )
    packs = packed(store, prover.repository, [prover.pristine, prover.merged])
    return Task(
        name=carry.name,
        words=("task", "proof"),
        files=(share_json(store, request), *packs),
        seconds=_EXPECTED_S,
        mib=carry.spec.probe.memory_mib,
    )


def prove(request: ProofRequest, access: Access) -> Proof:
    """Run the probe of a carry on both trees, on this machine.

    Raises:
        ClusterError: the environment for probes is another one here.
    """
    require_environment(access.store, request.environment)
    folder = Path(request.name)
    folder.mkdir()
    for name, data in request.files.items():
        (folder / name).write_bytes(data)
    carry = Carry(convert(request.carry, CarrySpec), folder.absolute())
    prover = Prover(access.store, access.repository, request.pristine, request.merged, request.version)
    return prover.prove(carry, request.paths, absorbed=request.absorbed)


def require_environment(store: Store, key: str) -> Path:
    """Make the environment for probes, which has to have the *key*; return its interpreter.

    Raises:
        ClusterError: it is another environment than that of the machine that asks.
        EnvironmentSetupError, NotInStoreError: it cannot be made.
    """
    if environment_key() != key:
        raise ClusterError(
            "its environment for probes is another one",
            because="its Python, machine or requirements differ",
            next_step="install the Python of the machine that asks there",
        )
    return prepare_environment(store)
