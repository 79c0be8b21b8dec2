"""The steps to native kernels: dependencies' sources, the toolchain, the units, and each extension."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import MissingSourceError
from sparkwright.base.events import warn
from sparkwright.lock.bump import bump_command
from sparkwright.lock.model import NativePin
from sparkwright.native.build import (
    Builder,
    build_extension,
    compile_units,
    configured,
    device_code,
    find_extension,
    forecast,
    known_units,
    sources_of,
)
from sparkwright.native.host import isolated, require_isolation
from sparkwright.native.model import Extension, Inputs, SourceTree, Toolchain
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.remote_units import compile_elsewhere
from sparkwright.pipeline.state import BuildState, Step, Take, require

_TRIED = "sources-tried"
# A source that could not be fetched is not requested again for so long, so that repeated runs stay quick.
_RETRY_AFTER_S = 3600


class _Tried(msgspec.Struct, frozen=True):
    """Time of the last attempt to fetch sources, and the reasons for missing ones by name."""

    at: float
    missing: dict[str, str]


def gather(job: Job) -> Step[dict[str, SourceTree]]:
    """Fetch the sources that upstream's CMake project would download, by content."""
    native, lock = require(job.native), job.spec.lock
    pins = {name: [pin.tree, pin.candidate and pin.candidate.tree] for name, pin in native.sources.items()}
    key = digest_of(pins)

    def find() -> dict[str, SourceTree] | None:
        from sparkwright.native.sources import find_sources, gather_sources

        found = find_sources(lock, job.access)
        tried = job.store.find_record_as(_Tried, _TRIED, key)
        if found is None and tried is not None and time.time() - tried.at <= _RETRY_AFTER_S:
            # The sources that the store holds, and the earlier reasons for the others.
            without_network = replace(job.access, settings=replace(job.access.settings, offline=True))
            found = {
                # One that is here by now is the pin: a reason would make it a candidate.
                name: msgspec.structs.replace(
                    source, missing=source.missing and tried.missing.get(name, source.missing)
                )
                for name, source in gather_sources(lock, without_network).items()
            }
        lost = found is None or (job.options.require_native and _lost(native, found))
        return None if lost else found

    def make() -> dict[str, SourceTree]:
        from sparkwright.native.sources import gather_sources

        found = gather_sources(lock, job.access)
        missing = {name: source.missing for name, source in found.items() if source.missing}
        job.store.put_record(_TRIED, key, {"at": time.time(), "missing": missing})
        if job.options.require_native and (lost := _lost(native, found)):
            needed = {source.name for name in lost for source in _sources_of(native, name, found)}
            absent = [name for name in missing if name in needed and native.sources[name].paths]
            raise MissingSourceError(
                f"{', '.join(lost)} cannot be compiled",
                because="; ".join(sorted(set(lost.values()))),
                next_step=f"clone {', '.join(absent)}, and run '{bump_command(lock, absent)}', or "
                "leave out --require-native: upstream's binary is taken then, and named so",
            )
        return found

    return Step("dependencies' sources", key, find, make)


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
    wanted = sources_of(native.extensions[extension], native.sources)
    return [source for name, source in sources.items() if name in wanted]


def _claim(native: NativePin, source: str, extension: str) -> str:
    # Part of the record in the wheel.
    pin = native.sources[source]
    candidate = require(pin.candidate)
    # The ref of a pin without a tree can be a guess: that of the candidate.
    instead = "" if candidate.ref == pin.ref else f" in place of {pin.ref[:12]}"
    return f"{source} {candidate.ref[:12]}{instead} is {candidate.claim(extension)}"


def prepare(job: Job) -> Step[Toolchain]:
    """Lay out compilers, headers and libraries."""
    from sparkwright.native.toolchain import find_toolchain, prepare_toolchain

    lock = job.spec.lock
    key = digest_of([to_builtins(require(job.native).toolkit), lock.release.torch, job.options.platform])
    arguments = lock, job.target, job.access
    return Step("toolchain", key, lambda: find_toolchain(*arguments), lambda: prepare_toolchain(*arguments))


def compile_kernels(job: Job, state: BuildState, names: Sequence[str]) -> Step[dict[str, str]]:
    """Compile the units of the extensions *names* together: the longest one alone takes minutes.

    The result are the objects that were missing, SHA-256 by output path: none once all are linked.
    """
    native = require(job.native)
    wanted = [name for name in names if not _why_not(native, name, state.sources or {})]
    keys = [_extension_key(job, state, name) for name in wanted]
    key = None if None in keys else digest_of(keys)

    def missing() -> list[str]:
        pairs = zip(wanted, keys, strict=True)
        unmade = [name for name, one in pairs if find_extension(job.store, one or "") is None]
        return [name for name in unmade if not _has_no_units(job, state, name)]

    def find() -> dict[str, str] | None:
        return None if missing() else {}

    def make() -> dict[str, str]:
        if job.options.compiling.isolate:
            require_isolation()
        builder, inputs = builder_of(job), inputs_of(job, state)
        known = configured(builder, inputs)
        units = {name: known.configuration.units_of(name) for name in missing()}
        for name, ones in units.items():
            if why := not_native(device_code(ones), job.target.arch):
                warn(f"{name}: {why}")  # before the hours that compiling takes
        with job.store.lock(f"units-{require(key)[:32]}", "the units of kernels"):
            return compile_units(builder, inputs, known, [unit for ones in units.values() for unit in ones])

    return Step("compile units", key, find, make)


def _extension_key(job: Job, state: BuildState, name: str) -> str | None:
    if state.report is None or state.sources is None:
        return None
    if why := _why_not(require(job.native), name, state.sources):
        return digest_of([name, why])
    if state.toolchain is None:
        return None
    return builder_of(job).key(inputs_of(job, state), name)


def _has_no_units(job: Job, state: BuildState, name: str) -> bool:
    """Tell if upstream's project is known to compile nothing of the extension for the card."""
    return known_units(builder_of(job), inputs_of(job, state), name) == ()


def compile_extension(job: Job, state: BuildState, name: str) -> Step[Extension | str]:
    """Compile and link one extension; the result is the reason where upstream's is taken."""
    key = _extension_key(job, state, name)

    def find() -> Extension | str | None:
        why = _why_not(require(job.native), name, require(state.sources))
        if not why and state.toolchain is not None:
            if found := find_extension(job.store, key or ""):
                return found
            why = _nothing_for(job) if _has_no_units(job, state, name) else ""
        return None if job.options.require_native else why or None

    def make() -> Extension | str:
        if job.options.compiling.isolate:
            require_isolation()
        builder, inputs = builder_of(job), inputs_of(job, state)
        if configured(builder, inputs).configuration.units_of(name):
            return build_extension(builder, inputs, name, objects=state.objects)
        if job.options.require_native:
            raise MissingSourceError(
                f"{name} cannot be compiled",
                because=_nothing_for(job),
                next_step="leave out --require-native, or choose another architecture",
            )
        return _nothing_for(job)

    return Step(f"compile {name}", key, find, make, partial(_about, job, state, name, key))


def _about(
    job: Job, state: BuildState, name: str, key: str | None, found: Extension | str | None
) -> dict[str, object]:
    """Tell the work that is left, as far as earlier builds allow an estimate, and the device code."""
    if isinstance(found, str):
        return {"code": {}, "detail": f"upstream's own: {found}"}
    detail = ""
    code = None if found is None else found.arches
    if found is None and key is not None and state.toolchain is not None:
        builder, inputs = builder_of(job), inputs_of(job, state)
        units, left = known_units(builder, inputs, name), forecast(builder, inputs, name)
        code = None if units is None else device_code(units)
        detail = "configures, then compiles what is missing"
        if left is not None:
            minutes = f"about {left.seconds / 60:.0f} min of CPU time"
            detail = f"{left.missing} of {left.units} units to compile, {minutes}"
    return {"detail": detail, "code": code, "warning": not_native(code or {}, job.target.arch)}


def take_extensions(job: Job, state: BuildState, take: Take) -> None:
    """Take the extensions; those without device code first, which show a fault of the machine early."""
    native = require(job.native)
    host = [name for name, spec in native.extensions.items() if spec.host_only]
    device = [name for name in native.extensions if name not in host]
    for name in (*host, *device):
        if device and name == device[0]:
            objects = take(compile_kernels(job, state, device))
            state.objects |= objects or {}
        found = take(compile_extension(job, state, name))
        if isinstance(found, str):
            state.stock_extensions[name] = found
        elif found is not None:
            state.extensions[name] = found
            if attested := _attested(native, name, require(state.sources)):
                state.attested[name] = attested


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
        native=require(job.native),
        logs=job.checkout.folder / ".sparkwright" / "compile",
        jobs=job.options.compiling.jobs,
        isolation=isolated(()) if job.options.compiling.isolate else (),
        elsewhere=None if job.cluster is None else partial(compile_elsewhere, job.cluster),
    )


# Extensions without code for the card itself ------------------------------------------------------

# Upstream's project takes the architecture that is asked for, and the projects inside it narrow it by lists
# of their own: FlashAttention 2 of 0.24.0 is compiled for 8.0 and PTX where 9.0a is asked for.


def not_native(code: Mapping[str, int], arch: str) -> str:
    """Return how a card runs an extension that has no code for the card itself.

    *code* are numbers of units by device code, such as ``sm_80``; *arch* is the card, such as ``9.0a``.

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
