"""Prove carries on the machine of a worker."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError
from sparkwright.carries import Carry, CarrySpec
from sparkwright.cluster.kinds import UnfitError
from sparkwright.git import open_repository
from sparkwright.probe import ProbePool, Prover, prepare_environment
from sparkwright.probe.environment import environment_key

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskInputs
    from sparkwright.cluster.serving import Serving


class ProofInputs(Model, frozen=True):
    """The key of the environment for probes, which all proofs share beside the trees."""

    environment: str


class ProofTask(Model, frozen=True):
    """A carry to prove.

    Attributes:
        name: the carry's.
        carry: its `CarrySpec` at that version, JSON-ready, without what it leaves empty.
        files: its probe and the modules that this may import, by name.
        pristine, merged: git ids of the trees.
        version: upstream's version that both are of.
        paths: files that the carry changes.
        absorbed: what is proved is that upstream does not have the defect any more.
    """

    name: str
    carry: dict[str, Any]
    files: dict[str, bytes]
    pristine: str
    merged: str
    version: str
    paths: tuple[str, ...]
    absorbed: bool


class ProofMade(Model, frozen=True):
    """A proof, whatever its verdict: its record."""

    proof: dict[str, Any]


@dataclass(frozen=True)
class LaidProofs:
    """Processes that have imported what probes import, for the proofs of one patchset."""

    serving: Serving
    pool: ProbePool
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, asked: ProofTask, place: Place) -> ProofMade:
        """Run the probe of a carry on both trees."""
        del place  # what a probe writes is in its proof
        store = self.serving.access.store
        with store.scratch() as scratch, contextlib.closing(open_repository(store.git)) as repository:
            folder = scratch / asked.name
            folder.mkdir()
            for name, data in asked.files.items():
                (folder / name).write_bytes(data)
            carry = Carry(convert(asked.carry, CarrySpec), folder)
            prover = Prover(store, repository, asked.pristine, asked.merged, asked.version, pool=self.pool)
            with self._lock:
                finish = prover.begin(carry, asked.paths, absorbed=asked.absorbed)
            proof = finish()
        return ProofMade(proof=to_builtins(proof))


def lay_out_proofs(
    serving: Serving, inputs: ProofInputs, given: TaskInputs, stack: contextlib.ExitStack
) -> LaidProofs:
    """Make the environment for probes, and keep its processes until *stack* is closed.

    Raises:
        UnfitError: it is another environment than that of the machine that asks, or cannot be made.
    """
    del given
    require_environment(serving, inputs.environment)
    return LaidProofs(serving, stack.enter_context(ProbePool(serving.access.store)))


def require_environment(serving: Serving, key: str) -> Path:
    """Make the environment for probes, which has to have the *key*; return its interpreter.

    Raises:
        UnfitError: it is another environment than that of the machine that asks, or cannot be made.
    """
    if environment_key() != key:
        raise UnfitError(
            "its environment for probes is another one",
            "install the Python of the machine that asks there",
        )
    try:
        return prepare_environment(serving.access.store)
    except (EnvironmentSetupError, NotInStoreError) as error:
        raise UnfitError(f"{error.what}: {error.because}", error.next_step) from error
