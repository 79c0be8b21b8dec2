"""Run a carry's probe on both trees, and give the two runs one verdict."""

from __future__ import annotations

import contextlib
import fnmatch
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import BusyError, ConfigError, SparkwrightError, StorageError, ToolError
from sparkwright.base.events import emit, task
from sparkwright.carries.model import Carry, ProbeSpec
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergedSource
from sparkwright.probe.environment import (
    describe_environment,
    part_of,
    prepare_environment,
    share_bytecode,
    tree_folder,
)
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import (
    PROOF_FORMAT,
    ProbeRun,
    ProbeVerdict,
    Proof,
    Touched,
    named_modules,
    proof_key,
    read_proofs,
)
from sparkwright.probe.runner import (
    PACKAGE,
    ProbeInput,
    ProbeReport,
    ProbeResource,
    harness_sources,
    run_probe,
)
from sparkwright.store.paths import Store

_KIND = "proof"
_OWN = "source"  # where vLLM's tree lies in a build's folder


def judge(pristine: ProbeRun, merged: ProbeRun, *, absorbed: bool = False) -> ProbeVerdict:
    """Return what a pair of runs means, of a carry in the merged tree or of one that upstream *absorbed*."""
    if "error" in {pristine.verdict, merged.verdict}:
        return ProbeVerdict.BROKEN
    if absorbed and pristine.verdict == "fails":
        return ProbeVerdict.NOT_ABSORBED
    if merged.verdict == "fails":
        return ProbeVerdict.REFUTED
    return ProbeVerdict.PROVED if pristine.verdict == "fails" else ProbeVerdict.NOT_NEEDED


class _Bench(NamedTuple):
    """The setup of both runs.

    Attributes:
        stands: the tree without the carry and the one with it, each with what the child is told besides.
        versions: what matters to a verdict, for the record.
    """

    python: Path
    stands: Sequence[tuple[Path, ProbeInput | None]]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Prover:
    """Finds or makes proofs for one pair of trees.

    Attributes:
        sources: dependencies' sources that carries change, with the carries in them.
        facilities: what probes may need from the outside, by name.
        pool: makes runs, where many carries are proved; else each pair of runs has one of its own.
    """

    store: Store
    repository: Repository
    pristine: str
    merged: str
    version: str
    offline: bool = False
    sources: Sequence[MergedSource] = ()
    facilities: Mapping[str, ProbeResource] = field(default_factory=dict)
    pool: ProbePool | None = None

    def key(self, carry: Carry, paths: Sequence[str], *, absorbed: bool = False) -> str:
        """Return the key of the proof of *carry*, which changes *paths* in the merged tree.

        With *absorbed*, it is of a proof that upstream does not have the defect any more.
        """
        carry = carry.at(self.version)
        return self._key(carry, self._touched(carry, paths), absorbed=absorbed)

    def find(
        self, carry: Carry, paths: Sequence[str], *, absorbed: bool = False, recorded: bool = False
    ) -> Proof | None:
        """Return a proof that holds: one beside the carry or, unless *recorded*, the store's; see `key`."""
        if carry.spec.probe is None:
            return None
        known = read_proofs(carry.folder)
        if recorded and not known:
            return None
        key = self.key(carry, paths, absorbed=absorbed)
        for proof in known:
            if (proof.key, proof.carry) == (key, carry.name):
                return proof
        return None if recorded else self.store.find_record_as(Proof, _KIND, key)

    def prove(self, carry: Carry, paths: Sequence[str], *, absorbed: bool = False) -> Proof:
        """Run the probe of *carry* on both trees, whatever is recorded; see `key`.

        Where something that the probe needs from the outside cannot be had, the proof is broken.
        """
        with contextlib.ExitStack() as stack:
            pool = self.pool or stack.enter_context(ProbePool(self.store, preload=False))
            return replace(self, pool=pool).begin(carry, paths, absorbed=absorbed)()

    def begin(self, carry: Carry, paths: Sequence[str], *, absorbed: bool = False) -> Callable[[], Proof]:
        """Start what `prove` does where there is a pool; return a function that waits for the proof."""
        if self.pool is None:
            return partial(self.prove, carry, paths, absorbed=absorbed)
        carry = carry.at(self.version)
        spec, probe = carry.spec.probe, carry.probe_path
        if spec is None or probe is None:
            raise ConfigError(
                f"carry {carry.name} cannot be proved",
                because="it has no probe",
                next_step="write one: docs/adding-a-carry.md shows how",
            )
        bench = self._bench(carry, spec)
        if isinstance(bench, str):
            broken = ProbeReport(ProbeRun(verdict="error", message=bench), frozenset(), 0.0)
            return lambda: self._proof(carry, paths, (broken, broken), {}, absorbed=absorbed)
        pool, python = self.pool, bench.python
        if not spec.needs:
            pool.start_server(python, spec.triton)
        call = partial(
            run_probe, self.store, python, probe, spec, version=self.version, stop=pool.stop, pool=pool
        )
        sources = {path.name: sha256_bytes(path.read_bytes()) for path in (probe, *carry.probe_helpers)}
        alike = [str(python), str(probe), sources, to_builtins(spec), self.version]
        started = [
            pool.submit(
                digest_of([*alike, str(tree), subject and subject.to_json().decode()]),
                spec.memory_mib,
                partial(call, tree, subject=subject),
            )
            for tree, subject in bench.stands
        ]

        def finish() -> Proof:
            with task(f"prove {carry.name}"):
                pristine, merged = (future.result() for future in started)
            return self._proof(carry, paths, (pristine, merged), bench.versions, absorbed=absorbed)

        return finish

    def _proof(
        self,
        carry: Carry,
        paths: Sequence[str],
        runs: tuple[ProbeReport, ProbeReport],
        versions: Mapping[str, str],
        *,
        absorbed: bool,
    ) -> Proof:
        """Return the proof that both *runs* make, recorded unless it is broken."""
        pristine, merged = runs
        if carry.spec.probe is not None and not carry.spec.probe.needs:
            # A file that the carry deletes cannot be imported any more.
            left = self.repository.files(self.merged)
            merged = _insist_on_loading(merged, [path for path in paths if path in left])
        touched = self._touched(carry, paths)
        proof = Proof(
            format=PROOF_FORMAT,
            carry=carry.name,
            key=self._key(carry, touched, absorbed=absorbed),
            verdict=judge(pristine.run, merged.run, absorbed=absorbed),
            pristine=pristine.run,
            merged=merged.run,
            touched=touched,
            environment=dict(versions),
        )
        emit(
            "probe.judged",
            carry=carry.name,
            verdict=str(proof.verdict),
            seconds=[pristine.seconds, merged.seconds],
        )
        if proof.verdict is not ProbeVerdict.BROKEN:  # a run that failed to start disproves no earlier proof
            self.store.put_record(_KIND, proof.key, to_builtins(proof))
        return proof

    def _bench(self, carry: Carry, spec: ProbeSpec) -> _Bench | str:
        """Return what the runs are made with, or why what the probe needs from the outside cannot be had."""
        if not spec.needs:
            return self._importing()
        try:
            return self._configuring(carry, spec)
        except (BusyError, StorageError):
            raise  # they are not about the probe
        except SparkwrightError as error:
            return str(error)

    def _importing(self) -> _Bench:
        """Return the setup of a probe that imports vLLM."""
        python = prepare_environment(self.store, offline=self.offline)
        trees = self.pristine, self.merged
        folders = [tree_folder(self.store, self.repository, tree, under=PACKAGE) for tree in trees]
        share_bytecode(self.store, self.repository, trees, under=PACKAGE)
        return _Bench(python, [(folder, None) for folder in folders], describe_environment(python))

    def _configuring(self, carry: Carry, spec: ProbeSpec) -> _Bench:
        """Return the setup of a probe that runs tools on the tree, in our own interpreter, without torch.

        A change to a dependency's source is tried where it will be used: in the merged tree of vLLM,
        with that source as it is pinned and as it is with the carries.
        """
        for name in spec.needs:
            if name not in self.facilities:
                raise ToolError(
                    f"the probe needs {name!r}",
                    because="nothing provides it here",
                    next_step="prove it where kernels are compiled: --kernels native",
                )
        facilities: dict[str, ProbeResource] = {name: self.facilities[name] for name in spec.needs}
        inputs = tuple(dict.fromkeys(name for entry in facilities.values() for name in entry.inputs))

        def folder(tree: str) -> Path:
            return tree_folder(self.store, self.repository, tree, under="")

        own = [folder(part_of(self.repository, tree, inputs)) for tree in (self.pristine, self.merged)]
        place = _OWN
        others: dict[str, dict[str, Path]] = {}
        if carry.spec.source is not None:
            source = self._source(carry)
            if source is None:
                raise ToolError(f"the source of {carry.spec.source} is not in the store")
            place, others = f"deps/{source.name}", {_OWN: {"here": own[1], "pristine": own[1]}}
            own = [folder(source.pristine), folder(source.tree)]
        described = {name: entry.describe() for name, entry in facilities.items()}
        versions = {"python": platform.python_version()}
        for entry in facilities.values():
            versions |= entry.versions()
        stands = [
            (here, ProbeInput(described, {place: {"here": here, "pristine": own[0]}, **others}))
            for here in own
        ]
        return _Bench(Path(sys.executable), stands, versions)

    def _source(self, carry: Carry) -> MergedSource | None:
        """Return the dependency's source that *carry* changes, where the store has it."""
        return next((source for source in self.sources if source.name == carry.spec.source), None)

    def _key(self, carry: Carry, touched: tuple[Touched, ...], *, absorbed: bool) -> str:
        spec, probe = carry.spec.probe, carry.probe_path
        if spec is None or probe is None:
            raise ConfigError(f"carry {carry.name} has no probe")
        settings: dict[str, Any] = {"triton": spec.triton}
        if absorbed:
            settings["absorbed"] = True
        if spec.helpers:
            settings["helpers"] = {path.name: sha256_bytes(path.read_bytes()) for path in carry.probe_helpers}
        if spec.needs:
            known = self.facilities
            settings["needs"] = {name: known[name].key if name in known else None for name in spec.needs}
        modules = [path.read_bytes() for path in (probe, *carry.probe_helpers)]
        return proof_key(modules[0], harness_sources(spec, modules), settings, touched)

    def _touched(self, carry: Carry, paths: Sequence[str]) -> tuple[Touched, ...]:
        """Return the files that the proof of *carry*, which changes *paths*, hangs on."""
        if carry.spec.source is None:
            return self._of(carry, paths, self.pristine, self.merged)
        found = self._of(carry, (), self.merged, self.merged)
        if (source := self._source(carry)) is not None:
            found += self._of(carry, paths, source.pristine, source.tree, prefix=f"{source.name}:")
        return found

    def _of(
        self, carry: Carry, paths: Sequence[str], pristine: str, merged: str, *, prefix: str = ""
    ) -> tuple[Touched, ...]:
        """Return those in one pair of trees: *paths*, the probe's imports, and the files that it declares."""
        wanted = set(paths)
        if carry.probe_path is not None:
            for path in (carry.probe_path, *carry.probe_helpers):
                wanted |= named_modules(path.read_bytes(), PACKAGE)
        for pattern in carry.spec.probe.reads if carry.spec.probe is not None else ():
            for tree in (pristine, merged):
                wanted.update(fnmatch.filter(self.repository.files(tree), pattern))
        before, after = (self.repository.files(tree, wanted) for tree in (pristine, merged))
        return tuple(
            Touched(
                path=f"{prefix}{path}",
                pristine=before[path].blob if path in before else None,
                merged=after[path].blob if path in after else None,
            )
            for path in sorted({*paths, *before, *after})
        )


def _insist_on_loading(report: ProbeReport, paths: Sequence[str]) -> ProbeReport:
    """Turn a pass into an error when a changed module was never imported: it proves nothing about it."""
    modules = {path for path in paths if path.startswith(f"{PACKAGE}/") and path.endswith(".py")}
    missing = sorted(modules - report.loaded)
    if report.run.verdict == "passes" and missing:
        message = f"the probe never imported {missing[0]}, which the carry changes"
        return ProbeReport(ProbeRun(verdict="error", message=message), report.loaded, report.seconds)
    return report
