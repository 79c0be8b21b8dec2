"""Build one extension from sources into the store: configure, compile the missing units, link.

Start reading at `build_extension`. Every intermediate result is kept: the configuration, each
object, the linked file. So a build that is killed has lost the units that were running, and a
changed file costs the units that include it.

An extension's *native key* is known before anything is configured: where the store has that key, CMake is not
started. Otherwise every object may still be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import NativeBuildError, ProcessError
from sparkwright.base.events import emit, task
from sparkwright.base.machine import look
from sparkwright.base.process.run import run
from sparkwright.git.repository import Repository
from sparkwright.lock.cmake import read_by_cmake
from sparkwright.lock.model import ExtensionSpec, Lock, NativePin, SourcePin
from sparkwright.native.compile import CompileJob, Finished, run_jobs
from sparkwright.native.configure import (
    Reader,
    Workspace,
    asked_of_cmake,
    configuration_key,
    configure,
    find_configuration,
    native_tree,
    open_workspace,
    with_generated,
)
from sparkwright.native.model import Configuration, Cost, Extension, Inputs, Link, Unit
from sparkwright.native.schedule import UnitCosts, Waiting, limits_for
from sparkwright.native.toolchain import configure_environment
from sparkwright.native.units import UnitFiles, find_object, missing_units, record_object
from sparkwright.store.paths import Store

_LOOK_UPS = 8
_LONGEST = 200
"""Characters of a log's name without its ending; file systems take 255 bytes in all."""
_DIGEST_DIGITS = 12


@dataclass(frozen=True)
class Builder:
    """The settings of a build that do not change its result.

    Attributes:
        jobs: most compilers at once; by default as many as cores and memory allow.
        isolation: command prefix of every tool, such as one that removes the network.
        elsewhere: compiles units on other machines; by default they are compiled here.
    """

    store: Store
    repository: Repository
    lock: Lock
    native: NativePin
    logs: Path
    jobs: int | None = None
    isolation: tuple[str, ...] = ()
    elsewhere: CompileElsewhere | None = None

    def tree(self, inputs: Inputs) -> str:
        """Return the git id of the tree that is compiled; see `native_tree`."""
        return native_tree(self.repository, inputs, self.native.sources)

    def key(self, inputs: Inputs, name: str) -> str:
        """Return the native key of the extension called *name*."""
        entries = self.repository.files(inputs.tree)
        blobs = {path: entry.blob for path, entry in entries.items()}
        spec, pins = self.native.extensions[name], self.native.sources
        return extension_key(inputs, name, spec, blobs, asked_of_cmake(inputs, self.lock), pins=pins)


@dataclass(frozen=True)
class Configured:
    """A configuration, and the tree that its commands work on.

    Attributes:
        tree: git id of the compiled tree, generated files included.
    """

    configuration: Configuration
    tree: str
    files: UnitFiles


CompileElsewhere: TypeAlias = Callable[
    [Builder, Inputs, Configured, Sequence[Unit], Mapping[str, Cost], Callable[[str, Cost], None]],
    dict[str, str],
]
"""Compiles units, of the expected costs, and learns what they took: SHA-256 of objects by output path."""


@dataclass(frozen=True)
class Forecast:
    """The expected cost of building an extension, by the costs of earlier builds."""

    units: int
    missing: int
    seconds: float


def configured(builder: Builder, inputs: Inputs) -> Configured:
    """Return the configuration of *inputs*, from the store or by running CMake; raises as `configure`."""
    tree = builder.tree(inputs)
    configuration = configure(
        builder.store, builder.repository, tree, inputs, builder.lock, prefix=builder.isolation
    )
    return _configured(builder, tree, configuration)


def _configured(builder: Builder, tree: str, configuration: Configuration) -> Configured:
    whole = with_generated(builder.repository, tree, configuration)
    return Configured(configuration, whole, UnitFiles.of(builder.repository, whole))


def forecast(builder: Builder, inputs: Inputs, name: str) -> Forecast | None:
    """Return the cost of `build_extension`; `None` before the first configuring. Nothing is run."""
    tree = builder.tree(inputs)
    key = configuration_key(builder.repository, tree, inputs, builder.lock)
    configuration = find_configuration(builder.store, builder.repository, key)
    if configuration is None:
        return None
    known = _configured(builder, tree, configuration)
    units = configuration.units_of(name)
    missing = missing_units(builder.store, units, known.files, inputs.toolchain.key)
    expected = _expected(builder, inputs, known)
    return Forecast(len(units), len(missing), sum(expected[unit.name].seconds for unit in missing))


def known_units(builder: Builder, inputs: Inputs, name: str) -> tuple[Unit, ...] | None:
    """Return the units of the extension *name*; `None` before the first configuring. Nothing is run."""
    key = configuration_key(builder.repository, builder.tree(inputs), inputs, builder.lock)
    found = find_configuration(builder.store, builder.repository, key)
    return None if found is None else found.units_of(name)


def device_code(units: Iterable[Unit]) -> dict[str, int]:
    """Return the number of *units* that compile to each device code, by its name."""
    return dict(sorted(Counter(arch for unit in units for arch in unit.arches).items()))


def build_extension(
    builder: Builder, inputs: Inputs, name: str, *, objects: Mapping[str, str] | None = None
) -> Extension:
    """Return the extension called *name*, from the store or compiled and linked.

    *objects* are SHA-256 that `compile_units` returned before, by output path.
    """
    key = builder.key(inputs, name)
    with builder.store.lock(f"extension-{key[:32]}", f"the extension {name}"):
        found = find_extension(builder.store, key)
        if found is not None:
            return found
        known = configured(builder, inputs)
        units = known.configuration.units_of(name)
        if not units:
            raise NativeBuildError(
                f"{name} cannot be built",
                because=f"upstream's project has no such extension for {inputs.target.arch}",
                next_step="take it out of the lock's [native.extensions], or choose another architecture",
            )
        made = dict(objects or {})
        made |= compile_units(builder, inputs, known, [unit for unit in units if unit.output not in made])
        sha256, size = link_objects(builder, inputs, known, known.configuration.link(name), made)
        built = Extension(target=name, key=key, sha256=sha256, size=size, arches=device_code(units))
        record_extension(builder.store, built)
    emit("native.built", extension=name, key=key, sha256=sha256, size=size)
    return built


def compile_units(
    builder: Builder, inputs: Inputs, known: Configured, units: Sequence[Unit]
) -> dict[str, str]:
    """Return the objects of *units*: output path to SHA-256 in the store; compile only missing ones."""
    find = partial(find_object, builder.store, files=known.files, toolchain_key=inputs.toolchain.key)
    with ThreadPoolExecutor(_LOOK_UPS) as pool:  # a remote tier takes long for each
        # A thread starts without our context, and so without those who listen to events.
        looking = [(unit.output, pool.submit(copy_context().run, find, unit)) for unit in units]
        objects = {output: found for output, future in looking if (found := future.result()) is not None}
    missing = [unit for unit in units if unit.output not in objects]
    if missing and builder.elsewhere is not None:
        expected, learn = _expected(builder, inputs, known), _costs(builder, inputs).learn
        objects |= builder.elsewhere(builder, inputs, known, missing, expected, learn)
    elif missing:
        with open_workspace(builder.store, builder.repository, known.tree, inputs.toolchain) as work:
            objects |= _compile(builder, inputs, known, work, missing)
    return objects


def _compile(
    builder: Builder, inputs: Inputs, known: Configured, work: Workspace, units: Sequence[Unit]
) -> dict[str, str]:
    costs = _costs(builder, inputs)
    reader = Reader(work.root, inputs.toolchain)
    by_name = {unit.name: unit for unit in units}
    objects: dict[str, str] = {}

    def keep(finished: Finished) -> None:
        """Store the object as soon as it is whole, so that it survives a killed build."""
        unit = by_name[finished.job.name]
        objects[unit.output], _ = record_object(
            builder.store,
            unit,
            known.files,
            inputs.toolchain.key,
            reader=reader,
            depfile=depfile_of(work, unit),
            object_path=work.root / unit.output,
            cost=finished.cost,
        )
        costs.learn(unit.name, finished.cost)

    expected = _expected(builder, inputs, known)
    waiting = [Waiting(unit.name, expected[unit.name]) for unit in units]
    limits = limits_for(waiting, look(), builder.jobs)
    env = configure_environment(inputs.toolchain, inputs.target, work.root, builder.lock)
    prefix, logs = builder.isolation, builder.logs
    jobs = [
        compile_job(
            work, unit, env, prefix=prefix, log=logs / log_name(unit.name), expected=expected[unit.name]
        )
        for unit in units
    ]
    run_jobs(jobs, on_done=keep, limits=limits)
    return objects


def _costs(builder: Builder, inputs: Inputs) -> UnitCosts:
    return UnitCosts(builder.store, inputs.target, builder.native.costs)


def _expected(builder: Builder, inputs: Inputs, known: Configured) -> dict[str, Cost]:
    """Return the expected cost of every unit, by name; the sizes of sources help where nothing is known."""
    units, blobs = known.configuration.units, known.files.blobs
    sources = sorted({unit.source for unit in units} & blobs.keys())
    asked = "".join(f"{blobs[source]}\n" for source in sources).encode()
    sizes = builder.repository.command("cat-file", "--batch-check=%(objectsize)", stdin=asked).text.split()
    return _costs(builder, inputs).expected(units, dict(zip(sources, map(int, sizes), strict=True)))


def depfile_of(work: Workspace, unit: Unit) -> Path:
    """Return the dependency file that `compile_job` has the compiler write."""
    return work.root / f"{unit.output}.d"


def compile_job(
    work: Workspace, unit: Unit, env: Mapping[str, str], *, prefix: Sequence[str], log: Path, expected: Cost
) -> CompileJob:
    """Return the call of the compiler for *unit* in *work*, with the folder of its output made."""
    output = work.root / unit.output
    output.parent.mkdir(parents=True, exist_ok=True)
    dependencies = ["-MD", "-MF", str(depfile_of(work, unit)), "-MT", "object"]
    argv = (*prefix, *work.expand(unit.argv), *dependencies)
    return CompileJob(unit.name, argv, work.build, env, output, log, expected)


def log_name(unit: str) -> str:
    """Return the name of the log of the unit called *unit*, short enough for a file system.

    A library of FlashInfer is named after all its arguments, and its units after it.
    """
    name = unit.replace("/", ".")
    if len(name) > _LONGEST:
        half = _LONGEST // 2
        name = f"{name[:half]}.{digest_of(unit)[:_DIGEST_DIGITS]}.{name[-half:]}"
    return f"{name}.log"


def link_objects(
    builder: Builder, inputs: Inputs, known: Configured, link: Link, objects: Mapping[str, str]
) -> tuple[str, int]:
    """Return SHA-256 and size of the extension that *link* makes of *objects*, in the store."""
    store = builder.store
    with (
        task(f"linking {link.target}"),
        open_workspace(store, builder.repository, known.tree, inputs.toolchain) as work,
    ):
        for path in link.objects:
            store.copy_out(objects[path], work.root / path)
        env = configure_environment(inputs.toolchain, inputs.target, work.root, builder.lock)
        try:
            run([*builder.isolation, *work.expand(link.argv)], cwd=work.build, env=env)
        except ProcessError as error:
            raise NativeBuildError(
                f"linking {link.target} failed",
                because=error.because,
                next_step="a carry that adds a source or a symbol may be at fault",
            ) from error
        output = work.root / link.output
        sha256, size = sha256_file(output), output.stat().st_size
        store.adopt_file(output, sha256, verified=True)
    return sha256, size


# Finished extensions, by native key ---------------------------------------------------------------

_EXTENSION = "extension"


def extension_key(
    inputs: Inputs,
    name: str,
    spec: ExtensionSpec,
    native_blobs: Mapping[str, str],
    rules: object,
    *,
    pins: Mapping[str, SourcePin],
) -> str:
    """Return the native key: two machines with the same key make interchangeable binaries.

    *rules* are all else that decides command lines: the rules' numbers, flags, options. Of *native_blobs*,
    ids by path, those count that CMake reads.
    """
    return digest_of(
        {
            "name": name,
            "rules": rules,
            "files": sorted((path, blob) for path, blob in native_blobs.items() if read_by_cmake(path)),
            "sources": sorted((source, inputs.sources[source].tree) for source in sources_of(spec, pins)),
            "toolchain": inputs.toolchain.key,
            "target": [inputs.target.machine, inputs.target.arch],
        }
    )


def sources_of(spec: ExtensionSpec, pins: Mapping[str, SourcePin]) -> set[str]:
    """Return the sources that an extension is compiled from, with the sources mounted in them."""
    found, new = set[str](), set(spec.sources)
    while new:
        found |= new
        new = {name for name, pin in pins.items() if pin.mount.partition(":")[0] in new} - found
    return found


def find_extension(store: Store, key: str) -> Extension | None:
    """Return the extension of that native key, if the store has its file."""
    found = store.find_record_as(Extension, _EXTENSION, key)
    if found is None or found.key != key or not store.find_file(found.sha256, size=found.size):
        return None
    return found


def record_extension(store: Store, extension: Extension) -> None:
    """Record *extension*, whose file is in the store, under its native key."""
    store.put_record(_EXTENSION, extension.key, to_builtins(extension))
