"""Make a companion: fetch FlashInfer, ask its generators, compile, link, pack, audit.

Modules are compiled with the machinery of `sparkwright.native`. FlashInfer's commands are taken over word by
word, but for paths, dependency files, and options that keep this machine's paths out of the result and its
symbol table small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import NativeBuildError
from sparkwright.base.events import emit
from sparkwright.base.machine import MachineSnapshot
from sparkwright.companion.generators import (
    DATA,
    GENERATED,
    HEADERS,
    SOURCES,
    Command,
    DescribedModule,
    Description,
    GeneratorSite,
    describe_modules,
    generated_folder,
    source_tree,
)
from sparkwright.companion.inspection import CompanionAudit, audit_companion
from sparkwright.companion.model import CompanionSpec, KernelModule
from sparkwright.companion.wheel import CompanionContent, CompanionWheel, CompiledModule, write_companion
from sparkwright.lock.check import require_native
from sparkwright.lock.model import Lock, named
from sparkwright.native.build import Builder, Configured, compile_units, link_objects
from sparkwright.native.inspection import Surroundings, inspector_of
from sparkwright.native.model import WORK, Configuration, Inputs, Link, Target, Toolchain, Unit
from sparkwright.native.packages import unpack_package
from sparkwright.native.schedule import default_reserve_mib
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.native.units import UnitFiles
from sparkwright.upstream.releases import Access
from sparkwright.wheel.names import parse_name

_LANGUAGES: dict[str, Literal["CUDA", "CXX"]] = {".cu": "CUDA", ".cpp": "CXX", ".cc": "CXX"}
_DEPFILE = frozenset({"-MMD", "--generate-dependencies-with-compile"})
_MAP = f"-ffile-prefix-map={WORK}=/sparkwright"
_CODE = re.compile(r"\bcode=\[?([\w,]+)\]?")
_EMPTY_TREE = b""


class Places:
    """Paths of one run, and their places in a work folder."""

    def __init__(self, site: GeneratorSite, toolchain: Toolchain, description: Description) -> None:
        """Collect the paths of a run, spelled as given and with links resolved."""
        pairs = [
            (site.flashinfer / DATA, SOURCES),
            (Path(description.tvm_ffi), HEADERS),
            (toolchain.cuda, "cuda"),
            (Path(description.python_include), "python"),
            *((folder, "build") for folder in site.workspace.glob(".cache/flashinfer/*/*/cached_ops")),
        ]
        if generated := generated_folder(site.workspace):
            pairs.append((generated, GENERATED))
        spelled = {text: place for path, place in pairs for text in (str(path), os.path.realpath(path))}
        self._pairs = sorted(spelled.items(), key=lambda pair: -len(pair[0]))
        self._foreign = (str(site.workspace), str(site.flashinfer), description.tvm_ffi)

    def abstract(self, word: str) -> str:
        """Return *word* of a command with places for paths."""
        for path, place in self._pairs:
            word = word.replace(path, f"{WORK}/{place}")
        if any(path in word for path in self._foreign):
            raise NativeBuildError(
                "a command of FlashInfer cannot be repeated elsewhere",
                because=f"it names {word}",
                next_step="this FlashInfer has another layout: adapt companion/build.py to it",
            )
        return word

    def relative(self, path: str) -> str:
        """Return the file at *path* relative to the work folder."""
        return self.abstract(path).removeprefix(f"{WORK}/")


def configure_modules(modules: Iterable[DescribedModule], places: Places, cxx: Path) -> Configuration:
    """Return every unit and link of *modules*.

    FlashInfer does not hand *cxx*, the host's compiler, to nvcc where that links.
    """
    units: list[Unit] = []
    links: list[Link] = []
    for module in modules:
        for command in module.commands:
            kind, language = Path(command.output).suffix, _LANGUAGES.get(Path(command.source).suffix)
            if kind == ".o" and language is not None:
                units.append(_unit(module.name, command, language, places))
            elif kind == ".so":
                links.append(_link(module, command, places, cxx))
            else:
                raise NativeBuildError(
                    f"the module {module.name} cannot be compiled ahead of time",
                    because=f"its build makes {command.output} of {command.source or 'nothing'}",
                    next_step="take it out of the list",
                )
    return Configuration(units=tuple(units), links=tuple(links), generated={})


def _unit(module: str, command: Command, language: Literal["CUDA", "CXX"], places: Places) -> Unit:
    argv = tuple(places.abstract(word) for word in _without_depfile(command.argv))
    cuda = language == "CUDA"
    codes = (code for word in argv for found in _CODE.findall(word)[:1] for code in found.split(","))
    return Unit(
        target=module,
        source=places.relative(command.source),
        output=places.relative(command.output),
        language=language,
        argv=(*argv, f"-Xcompiler={_MAP}" if cuda else _MAP),
        arches=tuple(dict.fromkeys(codes)) if cuda else (),
    )


def _without_depfile(argv: Sequence[str]) -> list[str]:
    """Return *argv* without the options for a dependency file; `compile_units` adds its own."""
    words, kept = iter(argv), []
    for word in words:
        if word == "-MF":
            next(words, "")
        elif word not in _DEPFILE:
            kept.append(word)
    return kept


def _link(module: DescribedModule, command: Command, places: Places, cxx: Path) -> Link:
    argv = [places.abstract(word) for word in command.argv]
    options = ["-Wl,--strip-all", "-Wl,--no-as-needed"]
    if Path(argv[0]).name == "nvcc":
        options = [f"-Xlinker={option.removeprefix('-Wl,')}" for option in options]
        options += ["-ccbin", str(cxx)]
    objects = [one.output for one in module.commands if one is not command and one.output in command.argv]
    return Link(
        target=module.name,
        output=places.relative(command.output),
        objects=tuple(places.relative(path) for path in objects),
        argv=(argv[0], *options, *argv[1:]),
    )


def compile_modules(
    builder: Builder, inputs: Inputs, configuration: Configuration
) -> dict[str, CompiledModule]:
    """Return each module of *configuration* by its name, from the store or compiled.

    Raises:
        NativeBuildError: the linker fails.
        CompileError, NotEnoughMemoryError, StorageError, ToolError: see `compile_units`.
    """
    files = {path: entry.blob for path, entry in builder.repository.files(inputs.tree).items()}
    known = Configured(configuration, inputs.tree, UnitFiles(files))
    objects = compile_units(builder, inputs, known, configuration.units)
    # A linker reads objects and libraries alone: the sources need not be written out again for each module.
    bare = replace(known, tree=builder.repository.objects.write("tree", _EMPTY_TREE))
    finished = {}
    for link in configuration.links:
        sha256, size = link_objects(builder, inputs, bare, link, objects)
        arches: dict[str, int] = {}
        for unit in configuration.units_of(link.target):
            for arch in unit.arches:
                arches[arch] = arches.get(arch, 0) + 1
        finished[link.target] = CompiledModule(link.target, sha256, size, arches)
    return finished


def split_by_memory(
    modules: Mapping[str, KernelModule], machine: MachineSnapshot
) -> tuple[dict[str, KernelModule], dict[str, KernelModule]]:
    """Return the modules of which each unit fits the memory of *machine*, and the others."""
    free_mib = machine.available_mib - default_reserve_mib(machine)
    fitting = {name: one for name, one in modules.items() if one.cost is None or one.cost.mib <= free_mib}
    return fitting, {name: one for name, one in modules.items() if name not in fitting}


# From a list to libraries ----------------------------------------------------------------------------


@dataclass(frozen=True)
class CompanionJob:
    """One build of kernels.

    Attributes:
        lock: the pin of the series: its toolkit compiles.
        modules: what is compiled, as from `CompanionSpec.chosen`.
        python: interpreter for generators; see `GeneratorSite`.
        logs: folder for one log a unit.
        jobs: most compilers at once; by default as many as cores and memory allow.
    """

    access: Access
    lock: Lock
    spec: CompanionSpec
    target: Target
    modules: Mapping[str, KernelModule]
    python: Path
    logs: Path
    jobs: int | None = None


@dataclass(frozen=True)
class CompiledKernels:
    """The result of `compile_kernels`.

    Attributes:
        modules: finished libraries by FlashInfer's names for them.
        listed: the list's name of each, by FlashInfer's.
    """

    modules: dict[str, CompiledModule]
    listed: dict[str, str]
    configuration: Configuration
    tree: str
    toolchain: Toolchain


def compile_kernels(job: CompanionJob) -> CompiledKernels:
    """Return the finished libraries of *job*; each unit comes from the store where it was compiled before.

    Raises:
        NativeBuildError: FlashInfer's generators fail or ask for something unknown, or a linker fails.
        CompileError: a compiler refuses a unit.
        NotEnoughMemoryError: a unit needs more memory than there is.
        SparkwrightError: a package cannot be fetched, or a compiler is missing.
    """
    access, spec, target = job.access, job.spec, job.target
    toolchain = prepare_toolchain(job.lock, target, access, torchless=True)
    with access.store.scratch() as scratch:
        site = GeneratorSite(
            python=job.python,
            flashinfer=unpack_package(access, spec.flashinfer),
            imports=tuple(unpack_package(access, package) for package in spec.imports),
            tvm_ffi=unpack_package(access, spec.tvm_ffi_for(target.machine)),
            headers=tuple(unpack_package(access, package) for package in spec.headers),
            workspace=scratch.resolve() / "generators",
        )
        described = describe_modules(spec, job.modules, site, target, toolchain)
        tree = source_tree(access, spec, site)
        places = Places(site, toolchain, described)
        configuration = configure_modules(described.modules, places, toolchain.cxx)
    listed = dict(zip((one.name for one in described.modules), job.modules, strict=True))
    costs = {
        unit.name: (cost.seconds, cost.mib)
        for unit in configuration.units
        if (cost := job.modules[listed[unit.target]].cost) is not None
    }
    builder = Builder(
        store=access.store,
        repository=access.repository,
        lock=job.lock,
        # Without its costs, a first build starts more compilers than memory holds.
        native=structs.replace(require_native(job.lock), costs=costs),
        logs=job.logs,
        jobs=job.jobs,
    )
    inputs = Inputs(tree=tree, sources={}, toolchain=toolchain, target=target)
    done = compile_modules(builder, inputs, configuration)
    return CompiledKernels(done, listed, configuration, tree, toolchain)


# From libraries to a wheel ---------------------------------------------------------------------------


_RUNTIME = "cuda-runtime"
"""The lock's name of the only library of CUDA that FlashInfer's modules are linked against."""


def make_companion(job: CompanionJob, out: Path) -> tuple[CompanionWheel, CompanionAudit]:
    """Return the companion of *job* in the folder *out*, and the audit that it passed.

    Raises:
        AuditError: it failed its audit; it is removed.
        SparkwrightError: see `compile_kernels` and `write_companion`.
    """
    kernels = compile_kernels(job)
    content = CompanionContent(
        spec=job.spec,
        target=job.target,
        cuda=require_native(job.lock).toolkit.cuda,
        modules=kernels.modules,
        record=record_of(kernels, job.spec, job.target),
        licences=_licences(job.access, job.spec),
    )
    wheel = write_companion(job.access.store, content, out)
    audit = audited(job.access, job.lock, job.spec, wheel.path)
    emit("companion.audited", filename=audit.filename, checks={one.name: one.verdict for one in audit.checks})
    try:
        audit.require()
    except Exception:
        wheel.path.unlink(missing_ok=True)
        raise
    return wheel, audit


def audited(access: Access, lock: Lock, spec: CompanionSpec, wheel: Path) -> CompanionAudit:
    """Return the audit of *wheel*, against the CUDA runtime and the ``apache-tvm-ffi`` of its machine.

    Raises:
        ArchiveError: it is damaged.
        WheelError: it is no companion.
        UnknownNameError: the lock or the list lacks its machine.
        SparkwrightError: a package cannot be fetched.
    """
    native = require_native(lock)
    machine = parse_name(wheel.name).machine
    runtime = named(native.toolkit.target, machine, "libraries for the target")
    folders = [unpack_package(access, package) for name, package in runtime.items() if name == _RUNTIME]
    folders.append(unpack_package(access, spec.tvm_ffi_for(machine)))
    libraries = [lib for folder in folders for lib in sorted(folder.glob("**/lib")) if lib.is_dir()]
    surroundings = Surroundings.of(libraries, native.toolkit.link_only)
    return audit_companion(wheel, inspector_of(native, access), surroundings)


def record_of(kernels: CompiledKernels, spec: CompanionSpec, target: Target) -> dict[str, Any]:
    """Return what *kernels* were made from, and for what: sources, compilers, modules, recipes' needs."""
    units = kernels.configuration.units
    headers = spec.tvm_ffi_for(target.machine)
    return {
        "format": 1,
        "flashinfer": {
            "version": spec.version,
            "filename": spec.flashinfer.filename,
            "sha256": spec.flashinfer.sha256,
        },
        "tvm_ffi": {
            "version": headers.version,
            "filename": headers.filename,
            "sha256": headers.sha256,
        },
        # By the list's names, so that a reader without the list can tell if the companion is enough.
        "recipes": {
            "*": [*spec.needed(target.arch, None)],
            **{name: [*spec.needed(target.arch, recipe)] for name, recipe in spec.served().items()},
        },
        "tree": kernels.tree,
        "target": {"machine": target.machine, "arch": target.arch},
        "toolchain": {
            "key": kernels.toolchain.key,
            "packages": dict(sorted(kernels.toolchain.packages.items())),
        },
        "modules": {
            name: {
                "listed": kernels.listed[name],
                "sha256": one.sha256,
                "size": one.size,
                "arches": dict(sorted(one.arches.items())),
                "units": [unit.source for unit in units if unit.target == name],
                "commands": digest_of([list(unit.argv) for unit in units if unit.target == name]),
            }
            for name, one in sorted(kernels.modules.items())
        },
    }


def _licences(access: Access, spec: CompanionSpec) -> dict[str, bytes]:
    """Return the licence texts of FlashInfer's wheel, which the compiled sources are under."""
    folder = unpack_package(access, spec.flashinfer)
    found = sorted(folder.glob("flashinfer_python-*.dist-info/licenses/**/*"))
    return {path.name: path.read_bytes() for path in found if path.is_file()}
