"""From a series' list to finished libraries: fetch FlashInfer, ask its generators, compile, link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.companion.asking import GeneratorSite, describe_modules
from sparkwright.companion.compiling import CompiledModule, Places, compile_modules, configure_modules
from sparkwright.companion.model import CompanionSpec
from sparkwright.companion.tree import source_tree
from sparkwright.lock.check import require_native
from sparkwright.lock.model import Lock
from sparkwright.native.build import Builder
from sparkwright.native.model import Configuration, Inputs, Target, Toolchain
from sparkwright.native.packages import unpack_package
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.upstream.releases import Access


@dataclass(frozen=True)
class CompanionJob:
    """One build of kernels.

    Attributes:
        access: the store, its repository, the network settings.
        lock: the pin of the series: its toolkit compiles.
        spec: the series' list of kernels.
        target: the machine and card.
        modules: names in `spec`, as from `CompanionSpec.chosen`.
        python: interpreter for generators; see `GeneratorSite`.
        logs: folder for one log a unit.
        jobs: most compilers at once; by default as many as cores and memory allow.
        keep_going: whether to compile the other units when one fails.
    """

    access: Access
    lock: Lock
    spec: CompanionSpec
    target: Target
    modules: Sequence[str]
    python: Path
    logs: Path
    jobs: int | None = None
    keep_going: bool = False


@dataclass(frozen=True)
class CompiledKernels:
    """The result of `compile_kernels`.

    Attributes:
        modules: finished libraries by FlashInfer's names for them.
        listed: the list's name of each, by FlashInfer's.
        configuration: the commands that made them.
        tree: git id of the compiled sources.
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
            workspace=scratch.resolve() / "generators",
        )
        described = describe_modules(spec, job.modules, site, target, toolchain)
        tree = source_tree(access, spec, site)
        places = Places(site, toolchain, described)
        configuration = configure_modules(described.modules, places, toolchain.cxx)
    builder = Builder(
        store=access.store,
        repository=access.repository,
        lock=job.lock,
        native=require_native(job.lock),
        logs=job.logs,
        jobs=job.jobs,
        keep_going=job.keep_going,
    )
    inputs = Inputs(tree=tree, sources={}, toolchain=toolchain, target=target)
    listed = dict(zip((one.name for one in described.modules), job.modules, strict=True))
    done = compile_modules(builder, inputs, configuration)
    return CompiledKernels(done, listed, configuration, tree, toolchain)
