"""The steps to native kernels: dependencies' sources, the toolchain, and each extension."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import MissingSourceError
from sparkwright.base.events import warn
from sparkwright.lock.bump import bump_command
from sparkwright.lock.native import NativePin
from sparkwright.native.build import Builder, UnitCompiler
from sparkwright.native.model import Extension, Inputs, SourceTree
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require

_TRIED = "sources-tried"
# A source that could not be fetched is not requested again for so long, so that repeated runs stay quick.
_RETRY_AFTER_S = 3600


class _Tried(msgspec.Struct, frozen=True):
    """Time of the last attempt to fetch sources, and the reasons for missing ones by name."""

    at: float
    missing: dict[str, str]


def _pin(job: Job) -> NativePin:
    return require(job.native)


@dataclass(frozen=True)
class GatherSources:
    """The sources that upstream's CMake project would download, by content."""

    name: ClassVar[str] = "dependencies' sources"

    def key(self, job: Job, state: BuildState) -> str | None:
        del state
        return digest_of(
            {
                name: [pin.tree, pin.candidate and pin.candidate.tree]
                for name, pin in _pin(job).sources.items()
            }
        )

    def find(self, job: Job, state: BuildState) -> bool:
        from sparkwright.native.sources import find_sources, gather_sources

        lock = job.spec.lock
        found = find_sources(lock, job.access)
        if found is None and (missing := self._tried(job)) is not None:
            # The sources that the store holds, and the earlier reasons for the others.
            without_network = replace(job.access, settings=replace(job.access.settings, offline=True))
            found = {
                # One that is here by now is the pin: a reason would make it a candidate.
                name: msgspec.structs.replace(
                    source, missing=source.missing and missing.get(name, source.missing)
                )
                for name, source in gather_sources(lock, without_network).items()
            }
        if found is None or (job.options.require_native and _lost(_pin(job), found)):
            return False
        state.sources = found
        return True

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.native.sources import gather_sources

        found = gather_sources(job.spec.lock, job.access)
        state.sources = found
        missing = {name: source.missing for name, source in found.items() if source.missing}
        job.store.put_record(_TRIED, self.key(job, state) or "", {"at": time.time(), "missing": missing})
        if job.options.require_native and (lost := _lost(_pin(job), found)):
            needed = {source.name for name in lost for source in _sources_of(_pin(job), name, found)}
            absent = [name for name in missing if name in needed and _pin(job).sources[name].paths]
            raise MissingSourceError(
                f"{', '.join(lost)} cannot be compiled",
                because="; ".join(sorted(set(lost.values()))),
                next_step=f"clone {', '.join(absent)}, and run '{bump_command(job.spec.lock, absent)}', or "
                "leave out --require-native: upstream's binary is taken then, and named so",
            )

    def _tried(self, job: Job) -> dict[str, str] | None:
        """Return the reasons for sources missing at a recent attempt; `None` to try again."""
        tried = job.store.find_record_as(_Tried, _TRIED, self.key(job, BuildState()) or "")
        return None if tried is None or time.time() - tried.at > _RETRY_AFTER_S else tried.missing


def _lost(native: NativePin, sources: Mapping[str, SourceTree]) -> dict[str, str]:
    """Return the extensions that cannot be compiled, and why."""
    reasons = {name: _why_not(native, name, sources) for name in native.extensions}
    return {name: why for name, why in reasons.items() if why}


def _why_not(native: NativePin, extension: str, sources: Mapping[str, SourceTree]) -> str:
    """Return why *extension* cannot be compiled; empty if it can."""
    wanted = _sources_of(native, extension, sources)
    reasons = [source.missing for source in wanted if not source.at_hand]
    reasons += [
        f"{source.missing}; {_claim(native, source.name, extension)}"
        for source in wanted
        if source.is_candidate and not require(native.sources[source.name].candidate).covers(extension)
    ]
    return "; ".join(reasons)


def _attested(native: NativePin, extension: str, sources: Mapping[str, SourceTree]) -> str:
    """Return what attests the candidates that *extension* is compiled from; empty for pinned sources."""
    wanted = _sources_of(native, extension, sources)
    return "; ".join(_claim(native, source.name, extension) for source in wanted if source.is_candidate)


def _sources_of(native: NativePin, extension: str, sources: Mapping[str, SourceTree]) -> list[SourceTree]:
    from sparkwright.native.build import sources_of

    wanted = sources_of(native.extensions[extension], native.sources)
    return [source for name, source in sources.items() if name in wanted]


def _claim(native: NativePin, source: str, extension: str) -> str:
    # Part of the record in the wheel.
    pin = native.sources[source]
    candidate = require(pin.candidate)
    # The ref of a pin without a tree can be a guess: that of the candidate.
    instead = "" if candidate.ref == pin.ref else f" in place of {pin.ref[:12]}"
    return f"{source} {candidate.ref[:12]}{instead} is {candidate.claim(extension)}"


@dataclass(frozen=True)
class PrepareToolchain:
    """Compilers, headers and libraries, laid out for a build."""

    name: ClassVar[str] = "toolchain"

    def key(self, job: Job, state: BuildState) -> str | None:
        del state
        return digest_of([to_builtins(_pin(job).toolkit), job.spec.lock.release.torch, job.options.platform])

    def find(self, job: Job, state: BuildState) -> bool:
        from sparkwright.native.toolchain import find_toolchain

        state.toolchain = find_toolchain(job.spec.lock, job.target, job.access)
        return state.toolchain is not None

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.native.toolchain import prepare_toolchain

        state.toolchain = prepare_toolchain(job.spec.lock, job.target, job.access)


@dataclass(frozen=True)
class CompileExtension:
    """One extension, compiled and linked; or the reason for taking upstream's."""

    extension: str

    @property
    def name(self) -> str:
        """Name in plans and logs."""
        return f"compile {self.extension}"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.report is None or state.sources is None:
            return None
        if why := _why_not(_pin(job), self.extension, state.sources):
            return digest_of([self.extension, why])
        if state.toolchain is None:
            return None
        return builder_of(job).key(inputs_of(job, state), self.extension)

    def find(self, job: Job, state: BuildState) -> bool:
        from sparkwright.native.build import find_extension, forecast

        why = _why_not(_pin(job), self.extension, require(state.sources))
        if not why and state.toolchain is not None:
            if found := find_extension(job.store, self.key(job, state) or ""):
                self._take(job, state, found)
                return True
            told = forecast(builder_of(job), inputs_of(job, state), self.extension)
            if told is not None and not told.units:
                why = _nothing_for(job)
        if not why or job.options.require_native:
            return False
        state.stock_extensions[self.extension] = why
        return True

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.native.build import build_extension, configured, device_code
        from sparkwright.native.host import require_isolation

        if job.options.compiling.isolate:
            require_isolation()
        builder, inputs = builder_of(job), inputs_of(job, state)
        configuration = configured(builder, inputs).configuration
        if configuration.units_of(self.extension):
            beside = self._beside(job, state)
            for name in (self.extension, *beside) if self.extension not in state.begun else ():
                if why := not_native(device_code(configuration.units_of(name)), job.target.arch):
                    warn(f"{name}: {why}")  # before the hours that compiling takes
            state.begun.update(beside)
            self._take(job, state, build_extension(builder, inputs, self.extension, beside=beside))
            return
        if job.options.require_native:
            raise MissingSourceError(
                f"{self.extension} cannot be compiled",
                because=_nothing_for(job),
                next_step="leave out --require-native, or choose another architecture",
            )
        state.stock_extensions[self.extension] = _nothing_for(job)

    def _beside(self, job: Job, state: BuildState) -> list[str]:
        """Return the extensions whose units are compiled along with this one's: those with device code.

        One without is compiled alone, as it comes first and shows a fault of the machine early.
        """
        from sparkwright.native.build import find_extension

        native, sources = _pin(job), require(state.sources)
        if native.extensions[self.extension].host_only:
            return []
        return [
            name
            for name, spec in native.extensions.items()
            if not spec.host_only
            and name not in {self.extension, *state.extensions, *state.stock_extensions, *state.begun}
            and not _why_not(native, name, sources)
            and find_extension(job.store, CompileExtension(name).key(job, state) or "") is None
        ]

    def _take(self, job: Job, state: BuildState, built: Extension) -> None:
        state.extensions[self.extension] = built
        if attested := _attested(_pin(job), self.extension, require(state.sources)):
            state.attested[self.extension] = attested

    def detail(self, job: Job, state: BuildState) -> str:
        """Return the work that is left, for a plan, as far as earlier builds allow an estimate."""
        from sparkwright.native.build import forecast

        if why := state.stock_extensions.get(self.extension):
            return f"upstream's own: {why}"
        if state.toolchain is None or self.extension in state.extensions:
            return ""
        told = forecast(builder_of(job), inputs_of(job, state), self.extension)
        if told is None:
            return "configures, then compiles what is missing"
        return (
            f"{told.missing} of {told.units} units to compile, about {told.seconds / 60:.0f} min of CPU time"
        )

    def code(self, job: Job, state: BuildState) -> dict[str, int] | None:
        """Return the number of units by the device code that they compile to; `None` while that is unknown.

        An extension that is upstream's own has none.
        """
        from sparkwright.native.build import known_code

        if self.extension in state.stock_extensions:
            return {}
        if found := state.extensions.get(self.extension):
            return found.arches
        if state.report is None or state.sources is None or state.toolchain is None:
            return None
        return known_code(builder_of(job), inputs_of(job, state), self.extension)


def _nothing_for(job: Job) -> str:
    # Part of the record in the wheel.
    return f"upstream's project compiles nothing of it for {job.spec.arch}"


def inputs_of(job: Job, state: BuildState) -> Inputs:
    """Return the inputs of the compiled code: merged tree, sources with their carries, toolchain."""
    report = require(state.report)
    patched = {source.name: source.tree for source in report.sources}
    sources = {
        name: msgspec.structs.replace(source, tree=patched.get(name, source.tree))
        if source.at_hand
        else source
        for name, source in require(state.sources).items()
    }
    return Inputs(report.tree, sources, require(state.toolchain), job.target)


def builder_of(job: Job) -> Builder:
    """Return the builder with the user's options."""
    return Builder(
        store=job.store,
        repository=job.repository,
        lock=job.spec.lock,
        native=_pin(job),
        logs=job.checkout.folder / ".sparkwright" / "compile",
        jobs=job.options.compiling.jobs,
        keep_going=job.options.compiling.keep_going,
        isolation=_isolation(job),
        elsewhere=_elsewhere(job),
    )


def _elsewhere(job: Job) -> UnitCompiler | None:
    """Return what compiles on other machines, if the user named any."""
    if job.cluster is None:
        return None
    from sparkwright.pipeline.remote_units import RemoteCompiler

    compiling = job.options.compiling
    return RemoteCompiler(
        cluster=job.cluster,
        repository=job.repository,
        lock=job.spec.lock,
        logs=job.checkout.folder / ".sparkwright" / "compile",
        isolate=compiling.isolate,
        keep_going=compiling.keep_going,
    )


def _isolation(job: Job) -> tuple[str, ...]:
    from sparkwright.native.host import isolated

    return isolated(()) if job.options.compiling.isolate else ()


# Extensions without code for the card itself ------------------------------------------------------

# Upstream's project takes the architecture that is asked for, and the projects inside it narrow it by lists
# of their own: FlashAttention 2 of 0.24.0 is compiled for 8.0 and PTX where 9.0a is asked for.


def not_native(code: Mapping[str, int], arch: str) -> str:
    """Return how a card runs an extension that has no code for the card itself.

    Args:
        code: number of units by device code, such as ``sm_80``.
        arch: the card, such as ``9.0a``.

    Returns:
        One sentence; empty for an extension with code for the card, and for one without device code.
    """
    from sparkwright.native.device_code import KernelClass, best_class

    best = best_class(code, arch)
    if not code or best is KernelClass.NATIVE:
        return ""
    consequence = {
        KernelClass.FAMILY: "the card runs code for its family",
        KernelClass.PTX: "the driver compiles it from PTX when it is first used",
        KernelClass.NONE: "nothing of it runs on the card",
    }[best]
    return f"upstream's build makes {', '.join(sorted(code))} of it and nothing for {arch}: {consequence}"


def foreign_extensions(extensions: Mapping[str, Extension], arch: str) -> dict[str, str]:
    """Return, by name, how the card *arch* runs each extension that has no code for the card itself."""
    told = {name: not_native(one.arches, arch) for name, one in extensions.items()}
    return {name: why for name, why in told.items() if why}
