"""The steps to native kernels: toolchain, dependencies' sources, and each extension."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import MissingSourceError
from sparkwright.pipeline.job import BuildState, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkwright.lock.native import ExtensionSpec, NativePin
    from sparkwright.native.build import Builder
    from sparkwright.native.model import Inputs, SourceTree
    from sparkwright.pipeline.job import Job
    from sparkwright.pipeline.steps import Step

_TRIED = "sources-tried"
# How long a source that nobody could bring is not asked for again, so that repeated runs stay quick.
_PATIENCE_S = 3600


class _Tried(msgspec.Struct, frozen=True):
    """When sources were asked for last, and why some were missing, by name."""

    at: float
    missing: dict[str, str]


def source_steps(job: Job) -> list[Step]:
    """The steps before the merge, which applies carries to sources too; none for upstream's kernels."""
    return [] if job.native is None else [GatherSources()]


def compile_steps(job: Job) -> list[Step]:
    """The steps between the proofs and the assembly; none for upstream's kernels."""
    if job.native is None:
        return []
    extensions = [CompileExtension(name, spec) for name, spec in job.native.extensions.items()]
    return [PrepareToolchain(), *extensions]


def _pin(job: Job) -> NativePin:
    return require(job.native)


@dataclass(frozen=True)
class GatherSources:
    """The sources that upstream's project would download, by content."""

    name: ClassVar[str] = "dependencies' sources"

    def key(self, job: Job, known: BuildState) -> str | None:
        del known
        return digest_of({name: pin.tree for name, pin in _pin(job).sources.items()})

    def find(self, job: Job, known: BuildState) -> bool:
        from sparkwright.native.sources import find_sources, gather_sources

        lock = job.point.lock
        found = find_sources(lock, job.access)
        if found is None and (missing := self._tried(job)) is not None:
            # What is here, and the earlier reasons for what is not.
            without_network = replace(job.access, settings=replace(job.access.settings, offline=True))
            found = {
                name: msgspec.structs.replace(source, missing=missing.get(name, source.missing))
                for name, source in gather_sources(lock, without_network).items()
            }
        if found is None or (job.options.require_native and _lost(_pin(job), found)):
            return False
        known.sources = found
        return True

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.native.sources import gather_sources

        found = gather_sources(job.point.lock, job.access)
        known.sources = found
        missing = {name: source.missing for name, source in found.items() if source.missing}
        job.store.put_record(_TRIED, self.key(job, known) or "", {"at": time.time(), "missing": missing})
        if job.options.require_native and (lost := _lost(_pin(job), found)):
            raise MissingSourceError(
                f"{', '.join(lost)} cannot be compiled",
                because="; ".join(sorted(set(lost.values()))),
                next_step="name a copy of the source in the variable above, or leave out --require-native: "
                "upstream's binary is taken then, and named so",
            )

    def _tried(self, job: Job) -> dict[str, str] | None:
        """Why sources were missing a short while ago; `None` if it is time to try again."""
        tried = job.store.find_record_as(_Tried, _TRIED, self.key(job, BuildState()) or "")
        return None if tried is None or time.time() - tried.at > _PATIENCE_S else tried.missing


def _lost(native: NativePin, sources: Mapping[str, SourceTree]) -> dict[str, str]:
    """The extensions that cannot be compiled, and why."""
    reasons = {name: _why_not(native, spec, sources) for name, spec in native.extensions.items()}
    return {name: why for name, why in reasons.items() if why}


def _why_not(native: NativePin, spec: ExtensionSpec, sources: Mapping[str, SourceTree]) -> str:
    """Why an extension of that kind cannot be compiled; empty if it can."""
    from sparkwright.native.extensions import sources_of

    wanted = sources_of(spec, native.sources)
    lost = (source for name, source in sources.items() if name in wanted and not source.at_hand)
    return "; ".join(source.missing for source in lost)


@dataclass(frozen=True)
class PrepareToolchain:
    """Compilers, headers and libraries, ready to be used."""

    name: ClassVar[str] = "toolchain"

    def key(self, job: Job, known: BuildState) -> str | None:
        del known
        asked = [job.options.platform, str(job.options.compiling.cuda or "")]
        return digest_of([to_builtins(_pin(job).toolkit), job.point.lock.release.torch, asked])

    def find(self, job: Job, known: BuildState) -> bool:
        from sparkwright.native.toolchain import find_toolchain

        known.toolchain = find_toolchain(
            job.point.lock, job.target, job.access, system=job.options.compiling.cuda
        )
        return known.toolchain is not None

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.native.toolchain import prepare_toolchain

        known.toolchain = prepare_toolchain(
            job.point.lock, job.target, job.access, system=job.options.compiling.cuda
        )


@dataclass(frozen=True)
class CompileExtension:
    """One extension, compiled and linked; or the reason why upstream's is taken."""

    extension: str
    spec: ExtensionSpec

    @property
    def name(self) -> str:
        """The step's name."""
        return f"compile {self.extension}"

    def key(self, job: Job, known: BuildState) -> str | None:
        if known.report is None or known.sources is None:
            return None
        if why := _why_not(_pin(job), self.spec, known.sources):
            return digest_of([self.extension, why])
        if known.toolchain is None:
            return None
        return builder_of(job).key(inputs_of(job, known), self.extension)

    def find(self, job: Job, known: BuildState) -> bool:
        from sparkwright.native.build import forecast
        from sparkwright.native.extensions import find_extension

        why = _why_not(_pin(job), self.spec, require(known.sources))
        if not why and known.toolchain is not None:
            if found := find_extension(job.store, self.key(job, known) or ""):
                known.extensions[self.extension] = found
                return True
            told = forecast(builder_of(job), inputs_of(job, known), self.extension)
            if told is not None and not told.units:
                why = _nothing_for(job)
        if not why or job.options.require_native:
            return False
        known.stock_extensions[self.extension] = why
        return True

    def make(self, job: Job, known: BuildState) -> None:
        from sparkwright.native.build import build_extension, configured
        from sparkwright.native.isolation import require_isolation

        if job.options.compiling.isolate:
            require_isolation()
        builder, inputs = builder_of(job), inputs_of(job, known)
        if configured(builder, inputs).configuration.units_of(self.extension):
            known.extensions[self.extension] = build_extension(builder, inputs, self.extension)
            return
        if job.options.require_native:
            raise MissingSourceError(
                f"{self.extension} cannot be compiled",
                because=_nothing_for(job),
                next_step="leave out --require-native, or choose another architecture",
            )
        known.stock_extensions[self.extension] = _nothing_for(job)

    def detail(self, job: Job, known: BuildState) -> str:
        """What is left to do, for a plan, as far as earlier builds can tell."""
        from sparkwright.native.build import forecast

        if why := known.stock_extensions.get(self.extension):
            return f"upstream's own: {why}"
        if known.toolchain is None or self.extension in known.extensions:
            return ""
        told = forecast(builder_of(job), inputs_of(job, known), self.extension)
        if told is None:
            return "configures, then compiles what is missing"
        return (
            f"{told.missing} of {told.units} units to compile, about {told.seconds / 60:.0f} min of CPU time"
        )


def detail_of(step: Step, job: Job, known: BuildState) -> str:
    """What there is to do in *step*, for a plan; empty for steps of which there is nothing to say."""
    return step.detail(job, known) if isinstance(step, CompileExtension) else ""


def _nothing_for(job: Job) -> str:
    return f"upstream's project compiles nothing of it for {job.point.arch}"


def inputs_of(job: Job, known: BuildState) -> Inputs:
    """All that decides the compiled code: the merged tree, sources with their carries, the toolchain."""
    from sparkwright.native.model import Inputs

    report = require(known.report)
    patched = {source.name: source.tree for source in report.sources}
    sources = {
        name: msgspec.structs.replace(source, tree=patched.get(name, source.tree))
        if source.at_hand
        else source
        for name, source in require(known.sources).items()
    }
    return Inputs(report.tree, sources, require(known.toolchain), job.target)


def builder_of(job: Job) -> Builder:
    """What builds here, as the user chose."""
    from sparkwright.native.build import Builder

    return Builder(
        store=job.store,
        repository=job.repository,
        lock=job.point.lock,
        native=_pin(job),
        logs=job.checkout.root / ".sparkwright" / "compile",
        jobs=job.options.compiling.jobs,
        keep_going=job.options.compiling.keep_going,
        isolation=_isolation(job),
    )


def _isolation(job: Job) -> tuple[str, ...]:
    from sparkwright.native.isolation import isolated

    return isolated(()) if job.options.compiling.isolate else ()
