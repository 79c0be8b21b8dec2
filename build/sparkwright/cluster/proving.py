"""Prove carries on the machine of a worker."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError
from sparkwright.carries import Carry, CarrySpec
from sparkwright.cluster.messages import ProofMade
from sparkwright.cluster.serving import UnfitError
from sparkwright.git import open_repository
from sparkwright.probe import ProbePool, Prover, prepare_environment
from sparkwright.probe.environment import environment_key

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.cluster.messages import ProofInputs, ProofTask
    from sparkwright.cluster.serving import Serving


@dataclass(frozen=True)
class LaidProofs:
    """Processes that have imported what probes import, for the proofs of one patchset."""

    serving: Serving
    pool: ProbePool
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, asked: ProofTask, log: Path) -> ProofMade:
        """Run the probe of a carry on both trees."""
        del log  # what a probe writes is in its proof
        store, started = self.serving.access.store, time.monotonic()
        with store.scratch() as scratch, contextlib.closing(open_repository(store.git)) as repository:
            folder = scratch / asked.name
            folder.mkdir()
            for name, data in asked.files.items():
                (folder / name).write_bytes(data)
            carry = Carry(msgspec.convert(asked.carry, CarrySpec), folder)
            prover = Prover(store, repository, asked.pristine, asked.merged, asked.version, pool=self.pool)
            with self._lock:
                finish = prover.begin(carry, asked.paths, absorbed=asked.absorbed)
            proof = finish()
        return ProofMade(
            name=asked.name,
            machine=self.serving.machine,
            seconds=time.monotonic() - started,
            proof=to_builtins(proof),
        )


def lay_out_proofs(serving: Serving, inputs: ProofInputs, stack: contextlib.ExitStack) -> LaidProofs:
    """Make the environment for probes, and keep its processes until *stack* is closed.

    Raises:
        UnfitError: it is another environment than that of the machine that asks, or cannot be made.
    """
    if environment_key() != inputs.environment:
        raise UnfitError(
            "its environment for probes is another one",
            "install the Python of the machine that asks there",
        )
    try:
        prepare_environment(serving.access.store)
    except (EnvironmentSetupError, NotInStoreError) as error:
        raise UnfitError(f"{error.what}: {error.because}", error.next_step) from error
    return LaidProofs(serving, stack.enter_context(ProbePool(serving.access.store)))
