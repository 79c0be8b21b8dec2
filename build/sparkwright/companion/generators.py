"""Ask FlashInfer's own generators for sources and commands of kernels, without a GPU.

The sources become a tree in the store's repository, as `sparkwright.native` lays them out.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import NativeBuildError, ProcessError
from sparkwright.base.events import task
from sparkwright.base.process.run import run
from sparkwright.companion.model import CompanionSpec, KernelModule
from sparkwright.git.trees import FileEntry, import_files, patch_tree
from sparkwright.native.model import Target, Toolchain
from sparkwright.upstream.archive import REGULAR
from sparkwright.upstream.releases import Access

_LIMIT_S = 900.0
# Variables that change an answer of FlashInfer's, or the compiler's.
_DECIDING = ("FLASHINFER_", "CUDA_", "NVCC_", "PYTHON", "TORCH_CUDA_ARCH_LIST")


@dataclass(frozen=True)
class Command:
    """One command of the build file that FlashInfer writes for ninja."""

    source: str
    output: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class DescribedModule:
    """A library as a generator describes it.

    Attributes:
        name: FlashInfer's name for it, by which it looks for the finished file.
        commands: the commands that make it, compilers first.
    """

    name: str
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class Description:
    """The answer of the generators.

    Attributes:
        modules: the modules, in the order of the question.
        python_include: folder of Python's headers in their commands.
        tvm_ffi: folder of the package ``tvm_ffi`` in their commands: the environment's, whose headers are not
            the ones that are compiled with.
    """

    modules: tuple[DescribedModule, ...]
    python_include: str
    tvm_ffi: str


@dataclass(frozen=True)
class GeneratorSite:
    """The place where generators run.

    Attributes:
        python: an interpreter that has torch, for any machine, and tvm_ffi.
        imports: unpacked wheels that FlashInfer imports besides.
        tvm_ffi: the unpacked wheel of ``apache-tvm-ffi``, of which only headers are used.
        workspace: FlashInfer's folder for generated sources, empty before.
        headers: unpacked wheels of CUDA's headers that the toolkit lacks.
    """

    python: Path
    flashinfer: Path
    imports: tuple[Path, ...]
    tvm_ffi: Path
    workspace: Path
    headers: tuple[Path, ...] = ()


def describe_modules(
    spec: CompanionSpec,
    modules: Mapping[str, KernelModule],
    site: GeneratorSite,
    target: Target,
    toolchain: Toolchain,
) -> Description:
    """Return *modules* as FlashInfer's generators describe them.

    Sources that they write are in the workspace of *site* afterwards.

    Raises:
        NativeBuildError: a generator fails, or describes something that cannot be compiled from sources.
    """
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (site.flashinfer, *site.imports))),
        "FLASHINFER_CUDA_ARCH_LIST": target.arch,
        "FLASHINFER_WORKSPACE_BASE": str(site.workspace),
        # A companion in the environment does not matter: everything is described, nothing is loaded.
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        "CUDA_HOME": str(toolchain.cuda),
        # FlashInfer hands CC to nvcc as the host's compiler.
        "CC": str(toolchain.cxx),
        "CXX": str(toolchain.cxx),
    }
    try:
        answer = _ask(modules, site.python, variables)
    except ProcessError as error:
        raise NativeBuildError(
            f"FlashInfer {spec.version} did not describe its kernels",
            because=error.because,
            next_step=f"{site.python} needs torch and what FlashInfer imports; name another with --python",
        ) from error
    if answer["version"] != spec.version:
        raise NativeBuildError(
            "the kernels would be those of another FlashInfer",
            because=f"{answer['version']} answered, and the list is for {spec.version}",
            next_step="run with an interpreter whose environment sets no other FlashInfer in front",
        )
    described = tuple(_described(name, one, toolchain.ninja) for name, one in answer["modules"].items())
    return Description(described, answer["include"], answer["tvm_ffi"])


def _ask(modules: Mapping[str, KernelModule], python: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    asked = {name: [module.generator, module.arguments] for name, module in modules.items()}
    script = Path(str(resources.files("sparkwright.companion").joinpath("child.py")))
    own = {name: value for name, value in os.environ.items() if not name.startswith(_DECIDING)}
    with task(f"ask FlashInfer for {len(modules)} kernel modules"):
        done = run(
            [python, "-s", script],
            stdin=json.dumps(asked).encode(),
            env={**own, "PYTHONDONTWRITEBYTECODE": "1", "FLASHINFER_LOGGING_LEVEL": "error", **variables},
            timeout=_LIMIT_S,
        )
    answer: dict[str, Any] = json.loads(done.text.splitlines()[-1])
    return answer


def _described(name: str, answer: Mapping[str, Any], ninja: Path) -> DescribedModule:
    if answer["embeds"]:
        raise NativeBuildError(
            f"the module {name} cannot be compiled ahead of time",
            because="it embeds device code that FlashInfer makes by other means",
            next_step="take it out of the list",
        )
    try:
        listed = json.loads(run([ninja, "-f", answer["ninja"], "-t", "compdb"]).text)
    except ProcessError as error:
        raise NativeBuildError(
            f"the build file of FlashInfer's module {name} cannot be read",
            because=error.because,
            next_step="take the module out of the list",
        ) from error
    commands = (Command(one["file"], one["output"], tuple(shlex.split(one["command"]))) for one in listed)
    return DescribedModule(answer["name"], tuple(commands))


# Sources ---------------------------------------------------------------------------------------------


DATA = "flashinfer/data"
"""Folder of the sources in FlashInfer's wheel."""
TVM_FFI = "tvm_ffi"
"""Folder of the headers' package in the wheel of ``apache-tvm-ffi``."""
SOURCES, GENERATED, HEADERS = "source/data", "source/generated", "deps/tvm-ffi"
"""Places of FlashInfer's files, of those that generators write, and of the headers, in a work folder."""

_KIND = "companion-tree"
_RULES = 1
_HEADERS = (".h", ".hpp", ".cuh")


def source_tree(access: Access, spec: CompanionSpec, site: GeneratorSite) -> str:
    """Return the git id of the tree to compile: FlashInfer's sources, headers of tvm_ffi, generated files.

    Raises:
        NativeBuildError: a generated file holds a path of this machine.
    """
    base = _base_tree(access, spec, site)
    generated = {f"{GENERATED}/{name}": entry for name, entry in _generated(site)}
    return patch_tree(access.repository, base, generated)


def generated_folder(workspace: Path) -> Path | None:
    """Return the folder that generators wrote sources to, or `None` where they wrote none."""
    return next(iter(sorted(workspace.glob(".cache/flashinfer/*/*/generated"))), None)


def _base_tree(access: Access, spec: CompanionSpec, site: GeneratorSite) -> str:
    """Return the tree without generated files; it is imported once for each list and version."""
    found = _files(site.tvm_ffi / TVM_FFI)
    headers = sorted((name, entry) for name, entry in found if name.endswith(_HEADERS))
    # Every module has this folder among those that its units search.
    for root in site.headers:
        for folder in sorted(root.glob("**/include")):
            headers += [(f"include/{name}", entry) for name, entry in _files(folder)]
    digests = [[name, digest_of(entry.data.decode(errors="replace"))] for name, entry in headers]
    key = digest_of([_RULES, spec.flashinfer.sha256, spec.paths, spec.leave_out, digests])
    ref = f"refs/sparkwright/companions/{key[:40]}"
    record = access.store.find_record(_KIND, key) or {}
    if isinstance(known := record.get("tree"), str) and access.repository.has(ref):
        return known
    with task(f"import the sources of FlashInfer {spec.version}"):
        files = {f"{SOURCES}/{name}": entry for name, entry in _sources(spec, site.flashinfer / DATA)}
        files |= {f"{HEADERS}/{name}": entry for name, entry in headers}
        tree = import_files(access.repository, files.items())
    access.repository.keep(ref, access.repository.commit(tree, message="FlashInfer's sources"))
    access.store.put_record(_KIND, key, {"tree": tree})
    return tree


def _sources(spec: CompanionSpec, data: Path) -> Iterator[tuple[str, FileEntry]]:
    left_out = tuple(f"{name}/" for name in spec.leave_out)
    for folder in spec.paths:
        for name, entry in _files(data / folder):
            if not (place := f"{folder}/{name}").startswith(left_out):
                yield place, entry


def _files(folder: Path) -> Iterator[tuple[str, FileEntry]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), FileEntry(REGULAR, path.read_bytes())


def _generated(site: GeneratorSite) -> Iterator[tuple[str, FileEntry]]:
    folder = generated_folder(site.workspace)
    if folder is None:
        return
    here = os.fsencode(site.workspace)
    for name, entry in _files(folder):
        if here in entry.data:
            raise NativeBuildError(
                f"FlashInfer's generated file {name} cannot be compiled reproducibly",
                because="it holds the path of the folder that it was generated in",
                next_step="take its module out of the list",
            )
        yield name, entry
