"""The toolchain of native builds, made of the lock's packages and the machine's compiler.

Start reading at `prepare_toolchain`. Unpacked packages are shared by all runs; the toolkit made of them is
one folder of the store, named by the digest of all its inputs.

The toolkit has its classic layout: programs are the compiling machine's, headers and libraries the target's.
Everything is a hard link into the unpacked packages, so that a tool which looks up its own path finds this
folder.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ToolError
from sparkwright.base.events import task
from sparkwright.base.process.run import run
from sparkwright.lock.check import require_native
from sparkwright.lock.model import Lock, NativePin, Package, named
from sparkwright.native.host import (
    HostCompiler,
    PythonHeaders,
    find_compiler,
    find_python_headers,
    this_machine,
)
from sparkwright.native.model import Target, Toolchain
from sparkwright.native.packages import find_package, program_in, unpack_package
from sparkwright.store.paths import Store
from sparkwright.upstream.releases import Access

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
    """The parts of a toolchain, before any of it is fetched."""

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
    def packages(self) -> dict[str, Package]:
        """All packages that are needed, by the lock's names."""
        return {**self.programs, **self.libraries}

    @property
    def key(self) -> str:
        """Digest of all parts by content or version, without paths."""
        return digest_of(
            {
                "rules": _RULES,
                "target": self.target.machine,
                "packages": {
                    name: [package.sha256, sorted(package.folders)]
                    for name, package in self.packages.items()
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
        parts = {name: package.version for name, package in self.packages.items()}
        return parts | self.compiler.banners | {"python": self.headers.version}


def prepare_toolchain(lock: Lock, target: Target, access: Access, *, torchless: bool = False) -> Toolchain:
    """Return the toolchain for *target*; fetch, unpack and lay out its missing parts.

    Args:
        lock: the pin with its ``[native]`` tables.
        target: the machine and card of the build.
        access: the store and the network settings.
        torchless: for kernels that are not vLLM's: leave torch out, most of what is fetched, and take any
            g++ that nvcc takes, whichever vLLM's own sources want.
    """
    recipe = _recipe(lock, target, torchless=torchless)
    packages = recipe.packages
    with task(f"toolchain for {target.machine}", total=len(packages), unit="packages") as progress:
        folders = {}
        for name, package in packages.items():
            folders[name] = unpack_package(access, package)
            progress.advance()
        return _toolchain(recipe, folders, _made(access.store, recipe, folders))


def find_toolchain(lock: Lock, target: Target, access: Access) -> Toolchain | None:
    """Return the result of `prepare_toolchain` if nothing has to be fetched or made for it, else `None`."""
    try:
        recipe = _recipe(lock, target)
    except ToolError:
        return None
    found = {name: find_package(access.store, package) for name, package in recipe.packages.items()}
    folders = {name: folder for name, folder in found.items() if folder is not None}
    place = _place(access.store, recipe)
    if len(folders) < len(found) or not access.store.claim(place):
        return None
    return _toolchain(recipe, folders, place)


def _recipe(lock: Lock, target: Target, *, torchless: bool = False) -> _Recipe:
    native = require_native(lock)
    python = Path(sys.executable)
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
            make_toolkit(
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
        python=recipe.python,
        python_include=recipe.headers.folder,
        cross=recipe.target.machine != this_machine(),
        key=recipe.key,
        parts=recipe.parts,
        headers=recipe.compiler.headers,
        packages={
            one.filename: one.sha256 for one in (*recipe.programs.values(), *recipe.libraries.values())
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

    *lock* names the variables for the folders of dependencies' sources.
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


# The layout ---------------------------------------------------------------------------------------

TORCH_VARIABLE = "SPARKWRIGHT_TORCH"
"""The variable with the path of the target's torch, read by the stand-in."""

_DRIVER = {"libcuda.so": "libcuda.so.1", "libnvidia-ml.so": "libnvidia-ml.so.1"}
_PROGRAMS = ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
_NO_COPY = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def make_toolkit(
    folder: Path,
    *,
    programs: Iterable[Path],
    libraries: Iterable[Path],
    machine: str,
    stand_ins: Iterable[str],
    cc: Path,
) -> None:
    """Lay out a CUDA toolkit in the new *folder*.

    *programs* are toolkit folders (``bin``, ``include``, ``nvvm``) for the compiling machine, *libraries*
    (``include``, ``lib``) for the target, whose headers take precedence; *stand_ins* are sonames that are
    only linked against.
    """
    folder.mkdir(parents=True)
    for root in libraries:
        link_tree(root / "include", folder / "include")
        link_tree(root / "lib", folder / "lib64")
    for root in programs:
        for name in ("bin", "include", "nvvm"):
            link_tree(root / name, folder / name)
    if lacking := [name for name in _PROGRAMS if not (folder / name).is_file()]:
        raise ToolError(
            "the packages of the lock are no whole CUDA toolkit",
            because=f"{', '.join(lacking)} is in none of them",
            next_step="look at [native.toolkit.builder] in the lock",
        )
    for soname in stand_ins:
        _stand_in_library(cc, folder / "lib64" / soname, soname)
    _unversioned_names(folder / "lib64")
    (folder / "lib64" / "stubs").mkdir(parents=True)
    for name, soname in _DRIVER.items():
        _stand_in_library(cc, folder / "lib64" / "stubs" / name, soname)
    (folder / "lib").symlink_to("lib64")
    for name in target_folders(machine):
        (folder / "targets" / name).mkdir(parents=True)
        for inner, to in (("include", "include"), ("lib", "lib64"), ("lib64", "lib64")):
            (folder / "targets" / name / inner).symlink_to(f"../../{to}")


def target_folders(machine: str) -> tuple[str, ...]:
    """Return the names of a toolkit's folder for *machine*: nvcc calls Arm servers ``sbsa``."""
    return (f"{machine}-linux", "sbsa-linux") if machine == "aarch64" else (f"{machine}-linux",)


def link_tree(source: Path, target: Path) -> None:
    """Hard-link every file below *source* into *target*; existing files stay."""
    for parent, _, names in os.walk(source):
        place = target / os.path.relpath(parent, source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not (place / name).exists():
                _link(os.path.join(parent, name), place / name)  # noqa: PTH118 - thousands of files


def _link(source: str, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
        shutil.copy2(source, target)  # a file system without hard links


def _stand_in_library(cc: Path, path: Path, soname: str) -> None:
    """Make an empty library that the linker accepts as *soname*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-Wl,--build-id=none"]
    run([cc, *options, "-o", path, "-x", "c", os.devnull])


def _unversioned_names(folder: Path) -> None:
    """Link ``libX.so`` to each ``libX.so.N``: linkers look for that name and wheels lack it."""
    for path in sorted(folder.glob("lib*.so.*")):
        plain = folder / re.sub(r"\.so\..*", ".so", path.name)
        if not plain.exists():
            plain.symlink_to(path.name)


def make_stand_in(folder: Path, *, torch: Path, version: str, packages: Iterable[Path] = ()) -> None:
    """Make a Python path in the new *folder* for CMake's queries of torch, and for its generators.

    The target's *torch* is parsed and not run; *packages* are folders with pure Python packages that the
    generators import.
    """
    flags = _common_nvcc_flags(torch / "utils" / "cpp_extension.py")
    texts: Mapping[str, str] = {
        "torch/__init__.py": (
            '"""Stands in for the target\'s torch, which need not run here: it answers CMake."""\n\n'
            f"import os\n\n__version__ = {version!r}\n"
            f'__file__ = os.path.join(os.environ["{TORCH_VARIABLE}"], "__init__.py")\n\n'
            "from torch import utils\n"
        ),
        "torch/utils/__init__.py": (
            "import os\n\n"
            f'cmake_prefix_path = os.path.join(os.environ["{TORCH_VARIABLE}"], "share", "cmake")\n'
        ),
        "torch/utils/cpp_extension.py": f"COMMON_NVCC_FLAGS = {flags!r}\n",
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for package in packages:
        link_tree(package, folder)


def _common_nvcc_flags(source: Path) -> list[str]:
    """Return the value of ``COMMON_NVCC_FLAGS`` in torch's *source* file."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="COMMON_NVCC_FLAGS")], value=value):
                return list(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="COMMON_NVCC_FLAGS"), value=ast.expr() as value):
                return list(ast.literal_eval(value))
            case _:
                pass
    raise ToolError(
        "torch does not state its flags for nvcc",
        because=f"{source} has no COMMON_NVCC_FLAGS",
        next_step="this torch has another layout: adapt native/toolchain.py to it",
    )
