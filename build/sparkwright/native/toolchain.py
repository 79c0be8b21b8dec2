"""The toolchain of native builds, made of the lock's packages and the machine's compiler.

Start reading at `prepare_toolchain`. Unpacked packages are shared by all runs; the toolkit made of them is
one folder of the store, named by the digest of all its inputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ToolError
from sparkwright.base.events import task
from sparkwright.lock import Lock, require_native
from sparkwright.lock.native import NativePin, Package, named
from sparkwright.native.farm import TORCH_VARIABLE, make_farm, make_stand_in
from sparkwright.native.host import (
    HostCompiler,
    PythonHeaders,
    find_compiler,
    find_python_headers,
    this_machine,
)
from sparkwright.native.model import Target, Toolchain
from sparkwright.native.packages import find_package, program_in, unpack_package
from sparkwright.store import Store
from sparkwright.upstream import Access

# Part of the key: raised when the layout made of the packages, or its use, changes.
_RULES = 1
# Inspects finished binaries, or runs the commands that CMake wrote; neither decides the compiled code.
_NOT_DECIDING = frozenset({"cuobjdump", "ninja"})
_GENERATORS = ("jinja2", "markupsafe")
_NO_TORCH = "no-torch"
"""The empty folder that takes torch's place where nothing includes it."""
# The time that compilers use for __DATE__ and the like (reproducible-builds.org).
_EPOCH = "946684800"


@dataclass(frozen=True)
class _Recipe:
    """The parts of a toolchain, before any of it is fetched.

    Attributes:
        native: the lock's tables.
        target: the machine and card of the build.
        python: interpreter that CMake runs its scripts with.
        torchless: whether nothing that is compiled includes or links torch.
    """

    native: NativePin
    target: Target
    python: Path
    compiler: HostCompiler
    headers: PythonHeaders
    torchless: bool = False

    @property
    def programs(self) -> Mapping[str, Package]:
        """Packages for this machine that are needed, by the lock's names."""
        return named(self.native.toolkit.builder, this_machine(), "toolkit for compiling on machines")

    @property
    def libraries(self) -> dict[str, Package]:
        """Packages for the target that are needed, by the lock's names."""
        table = named(self.native.toolkit.target, self.target.machine, "libraries for the target")
        return {name: package for name, package in table.items() if name != "torch" or not self.torchless}

    @property
    def key(self) -> str:
        """Digest of all parts by content or version, without paths."""
        packages = {**self.programs, **self.libraries}
        return digest_of(
            {
                "rules": _RULES,
                "target": self.target.machine,
                "packages": {
                    name: [package.sha256, sorted(package.folders)]
                    for name, package in packages.items()
                    if name not in _NOT_DECIDING
                },
                # Nothing installed is taken; with these, objects that were compiled before are found.
                "toolkit": None,
                "torch": None,
                "tools": {},
                "link-only": sorted(self.native.toolkit.link_only),
                "compiler": self.compiler.banners,
                "python": self.headers.version,
                **({"torchless": True} if self.torchless else {}),
            }
        )

    @property
    def parts(self) -> dict[str, str]:
        """Name and version of each part, for people."""
        parts = {name: package.version for name, package in {**self.programs, **self.libraries}.items()}
        return parts | self.compiler.banners | {"python": self.headers.version}


def prepare_toolchain(
    lock: Lock,
    target: Target,
    access: Access,
    *,
    python: Path | None = None,
    torchless: bool = False,
) -> Toolchain:
    """Return the toolchain for *target*; fetch, unpack and lay out its missing parts.

    Args:
        lock: the pin with its ``[native]`` tables.
        target: the machine and card of the build.
        access: the store and the network settings.
        python: interpreter that CMake runs its scripts with; by default this one.
        torchless: for kernels that are not vLLM's: leave torch out, most of what is fetched, and take any
            g++ that nvcc takes, whichever vLLM's own sources want.

    Raises:
        ToolError: a compiler or Python's headers are not installed.
        NotInStoreError: the network is off, and the store lacks a package.
        FetchError, DigestError, ArchiveError: see `sparkwright.native.packages.unpack_package`.
    """
    recipe = _recipe(lock, target, python, torchless=torchless)
    wanted = {**recipe.programs, **recipe.libraries}
    with task(f"toolchain for {target.machine}", total=len(wanted), unit="packages") as progress:
        folders = {}
        for name, package in wanted.items():
            folders[name] = unpack_package(access, package)
            progress.advance()
        return _toolchain(recipe, folders, _made(access.store, recipe, folders))


def find_toolchain(
    lock: Lock, target: Target, access: Access, *, python: Path | None = None
) -> Toolchain | None:
    """Return the result of `prepare_toolchain` if nothing has to be fetched or made for it, else `None`."""
    try:
        recipe = _recipe(lock, target, python)
    except ToolError:
        return None
    wanted = {**recipe.programs, **recipe.libraries}
    found = {name: find_package(access.store, package) for name, package in wanted.items()}
    folders = {name: folder for name, folder in found.items() if folder is not None}
    place = _place(access.store, recipe)
    if len(folders) < len(wanted) or not access.store.claim(place):
        return None
    return _toolchain(recipe, folders, place)


def _recipe(lock: Lock, target: Target, python: Path | None, *, torchless: bool = False) -> _Recipe:
    native = require_native(lock)
    python = python or Path(sys.executable)
    oldest = "" if torchless else native.oldest_gxx
    compiler, headers = find_compiler(target, oldest), find_python_headers(python)
    return _Recipe(native, target, python, compiler, headers, torchless=torchless)


def _place(store: Store, recipe: _Recipe) -> Path:
    return store.toolchains / "made" / recipe.key[:32]


def _made(store: Store, recipe: _Recipe, folders: Mapping[str, Path]) -> Path:
    """Return the folder with the toolkit and the stand-in for torch made of the packages in *folders*."""
    place = _place(store, recipe)
    if store.claim(place):
        return place
    with store.lock(f"toolchain-{recipe.key[:16]}", "laying out the toolchain"):
        if place.is_dir():
            return place
        with store.scratch() as scratch:
            made = scratch / "made"
            made.mkdir()
            make_farm(
                made / "cuda",
                programs=_toolkit_roots(recipe, recipe.programs, folders),
                libraries=_toolkit_roots(recipe, recipe.libraries, folders),
                machine=recipe.target.machine,
                stand_ins=recipe.native.toolkit.link_only,
                cc=recipe.compiler.cc,
            )
            if recipe.torchless:
                (made / _NO_TORCH).mkdir()
            else:
                make_stand_in(
                    made / "stand-in",
                    torch=folders["torch"] / "torch",
                    version=recipe.native.toolkit.target[recipe.target.machine]["torch"].version,
                    packages=[folders[name] for name in _GENERATORS if name in folders],
                )
            return store.publish_folder(made, place)


def _toolkit_roots(recipe: _Recipe, table: Mapping[str, Package], folders: Mapping[str, Path]) -> list[Path]:
    """Return the toolkit folders among the unpacked packages of *table*."""
    inner = f"nvidia/cu{recipe.native.toolkit.cuda.split('.')[0]}"
    return [root for name in table if (root := folders[name] / inner).is_dir()]


def _toolchain(recipe: _Recipe, folders: Mapping[str, Path], place: Path) -> Toolchain:
    return Toolchain(
        cuda=place / "cuda",
        torch=place / _NO_TORCH if recipe.torchless else folders["torch"] / "torch",
        stand_in=place / "stand-in",
        cc=recipe.compiler.cc,
        cxx=recipe.compiler.cxx,
        cmake=program_in(folders["cmake"], "cmake"),
        ninja=program_in(folders["ninja"], "ninja"),
        cuobjdump=program_in(folders["cuobjdump"], "cuobjdump"),
        python=recipe.python,
        python_include=recipe.headers.folder,
        cross=recipe.target.machine != this_machine(),
        key=recipe.key,
        parts=recipe.parts,
        headers=recipe.compiler.headers,
        packages={
            one.filename: one.sha256 for one in [*recipe.programs.values(), *recipe.libraries.values()]
        },
    )


def toolchain_file(toolchain: Toolchain, target: Target, work: Path) -> str:
    """Return the text of a CMake toolchain file (cmake-toolchains(7)) for a build in the folder *work*."""
    settings: dict[str, str | Path] = {
        "CMAKE_C_COMPILER": toolchain.cc,
        "CMAKE_CXX_COMPILER": toolchain.cxx,
        "CMAKE_CUDA_COMPILER": work / "cuda" / "bin" / "nvcc",
        "CMAKE_CUDA_HOST_COMPILER": toolchain.cxx,
    }
    if toolchain.cross:
        settings |= {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": target.machine,
            # Without one, FindPython takes no interpreter for usable; the host's own is.
            "CMAKE_CROSSCOMPILING_EMULATOR": "/usr/bin/env",
            "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
            "CMAKE_FIND_ROOT_PATH_MODE_LIBRARY": "BOTH",
            "CMAKE_FIND_ROOT_PATH_MODE_INCLUDE": "BOTH",
            "CMAKE_FIND_ROOT_PATH_MODE_PACKAGE": "BOTH",
        }
    return "".join(f'set({name} "{value}")\n' for name, value in settings.items())


def configure_environment(toolchain: Toolchain, target: Target, work: Path, lock: Lock) -> dict[str, str]:
    """Return the whole environment of a build in the folder *work*: only PATH is inherited.

    Args:
        toolchain: the compilers and libraries.
        target: the machine and card of the build.
        work: the work folder; see `sparkwright.native`.
        lock: names the variables for the folders of dependencies' sources.
    """
    scratch = work / "build"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LC_ALL": "C",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": _EPOCH,
        # torch's FindCUDA looks below the first when it compiles for another machine.
        "CUDA_TOOLKIT_ROOT": str(work / "cuda"),
        "CUDA_HOME": str(work / "cuda"),
        "CUDACXX": str(work / "cuda" / "bin" / "nvcc"),
        "CUDAHOSTCXX": str(toolchain.cxx),
        "TORCH_CUDA_ARCH_LIST": target.arch,
        "PYTHONPATH": str(toolchain.stand_in),
        "PYTHONDONTWRITEBYTECODE": "1",
        TORCH_VARIABLE: str(work / "torch"),
        **{source.override: str(work / "deps" / name) for name, source in lock.sources.items()},
    }
