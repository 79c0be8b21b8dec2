"""Run a carry's probe on both trees and say what the two runs mean together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkwright.config import to_builtins
from sparkwright.errors import ConfigError
from sparkwright.events import emit, task
from sparkwright.probe.environment import describe_environment, prepare_environment
from sparkwright.probe.proof import (
    PROOF_FORMAT,
    Proof,
    Run,
    Touched,
    Verdict,
    named_modules,
    proof_key,
    read_proof,
)
from sparkwright.probe.runner import Report, harness_sources, run_probe
from sparkwright.probe.trees import tree_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sparkwright.carry import Carry
    from sparkwright.git import Repository
    from sparkwright.store import Store

__all__ = ["Prover", "judge"]

_PACKAGE = "vllm"
_KIND = "proof"


def judge(pristine: Run, merged: Run) -> Verdict:
    """What a pair of runs means."""
    if "error" in {pristine.verdict, merged.verdict}:
        return Verdict.BROKEN
    if merged.verdict == "fails":
        return Verdict.REFUTED
    return Verdict.PROVED if pristine.verdict == "fails" else Verdict.NOT_NEEDED


@dataclass(frozen=True)
class Prover:
    """Finds or makes proofs for one pair of trees.

    Attributes:
        store: where checked-out trees, environments and earlier proofs are.
        repository: where the trees' objects are.
        pristine: id of the pristine tree.
        merged: id of the merged tree.
        version: the upstream version that both are of.
        offline: whether the environment may not be made.
    """

    store: Store
    repository: Repository
    pristine: str
    merged: str
    version: str
    offline: bool = False

    def key(self, carry: Carry, paths: Sequence[str]) -> str:
        """The key of the proof of *carry*, which changes *paths* in the merged tree."""
        return self._key(carry, self._touched(carry, paths))

    def find(self, carry: Carry, paths: Sequence[str]) -> Proof | None:
        """A proof that still holds: the one recorded beside the carry, or the store's."""
        if carry.spec.probe is None:
            return None
        key = self.key(carry, paths)
        recorded = read_proof(carry.folder)
        if recorded is not None and recorded.key == key and recorded.carry == carry.name:
            return recorded
        kept = self.store.find_record(_KIND, key)
        if kept is None:
            return None
        import msgspec

        try:
            return msgspec.convert(kept, Proof)
        except msgspec.ValidationError:
            return None  # damaged: as good as none

    def prove(self, carry: Carry, paths: Sequence[str]) -> Proof:
        """Run the probe of *carry* on both trees, whatever is recorded.

        Raises:
            ConfigError: the carry has no probe.
        """
        spec, probe = carry.spec.probe, carry.probe_path
        if spec is None or probe is None:
            raise ConfigError(
                f"carry {carry.name} cannot be proved",
                because="it has no probe",
                next_step="write one: docs/adding-a-carry.md shows how",
            )
        python = prepare_environment(self.store, offline=self.offline)
        folders = [
            tree_folder(self.store, self.repository, tree, under=_PACKAGE, like=like)
            for tree, like in ((self.pristine, None), (self.merged, self.pristine))
        ]
        pristine, merged = self._run_both(
            carry.name, partial(run_probe, self.store, python, probe, spec), folders
        )
        # A file that the carry deletes cannot be imported any more.
        left = self.repository.files(self.merged)
        merged = _insist_on_loading(merged, [path for path in paths if path in left])
        touched = self._touched(carry, paths)
        proof = Proof(
            format=PROOF_FORMAT,
            carry=carry.name,
            key=self._key(carry, touched),
            verdict=judge(pristine.run, merged.run),
            pristine=pristine.run,
            merged=merged.run,
            touched=touched,
            environment=describe_environment(python),
        )
        emit(
            "probe.judged",
            carry=carry.name,
            verdict=str(proof.verdict),
            seconds=[pristine.seconds, merged.seconds],
        )
        if proof.verdict is not Verdict.BROKEN:  # what could not run says nothing about an earlier proof
            self.store.put_record(_KIND, proof.key, to_builtins(proof))
        return proof

    def _run_both(self, name: str, run: Callable[..., Report], folders: Sequence[Path]) -> list[Report]:
        """One run in each of *folders* at the same time; an interrupt ends them instead of waiting."""
        stop = threading.Event()
        with task(f"prove {name}"), ThreadPoolExecutor(max_workers=2) as pool:
            started = [
                # A thread starts without our context, and so without those who listen to events.
                pool.submit(copy_context().run, partial(run, folder, version=self.version, stop=stop))
                for folder in folders
            ]
            try:
                return [one.result() for one in started]
            except BaseException:
                stop.set()
                raise

    def _key(self, carry: Carry, touched: tuple[Touched, ...]) -> str:
        spec, probe = carry.spec.probe, carry.probe_path
        if spec is None or probe is None:
            raise ConfigError(f"carry {carry.name} has no probe")
        return proof_key(probe.read_bytes(), harness_sources(), {"triton": spec.triton}, touched)

    def _touched(self, carry: Carry, paths: Sequence[str]) -> tuple[Touched, ...]:
        pristine, merged = self.repository.files(self.pristine), self.repository.files(self.merged)
        named: set[str] = set()
        if carry.probe_path is not None:
            named = named_modules(carry.probe_path.read_bytes(), _PACKAGE, {*pristine, *merged})
        return tuple(
            Touched(
                path=path,
                pristine=pristine[path].blob if path in pristine else None,
                merged=merged[path].blob if path in merged else None,
            )
            for path in sorted(named | set(paths))
        )


def _insist_on_loading(report: Report, paths: Sequence[str]) -> Report:
    """Turn a pass into an error when a changed module was never imported: it proves nothing about it."""
    modules = {path for path in paths if path.startswith(f"{_PACKAGE}/") and path.endswith(".py")}
    missing = sorted(modules - report.loaded)
    if report.run.verdict == "passes" and missing:
        message = f"the probe never imported {missing[0]}, which the carry changes"
        return Report(Run(verdict="error", message=message), report.loaded, report.seconds)
    return report
