"""The CUDA toolkit in its classic layout, made of packages, and the stand-in for torch in CMake.

Programs are the compiling machine's, headers and libraries the target's. Everything is a hard
link into the unpacked packages, so that a tool which looks up its own path finds this folder.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparkwright.base.errors import ToolError
from sparkwright.base.process import run

TORCH_VARIABLE = "SPARKWRIGHT_TORCH"
"""The variable with the path of the target's torch, read by the stand-in."""

_DRIVER = {"libcuda.so": "libcuda.so.1", "libnvidia-ml.so": "libnvidia-ml.so.1"}
_PROGRAMS = ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
_NO_COPY = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def make_farm(
    folder: Path,
    *,
    programs: Iterable[Path],
    libraries: Iterable[Path],
    machine: str,
    stand_ins: Iterable[str],
    cc: Path,
) -> None:
    """Lay a toolkit out in the new *folder*.

    Args:
        folder: the new folder.
        programs: toolkit folders (``bin``, ``include``, ``nvvm``) for the compiling machine.
        libraries: toolkit folders (``include``, ``lib``) for the target; their headers take precedence.
        machine: the target's.
        stand_ins: sonames that are only linked against.
        cc: C compiler for the target.

    Raises:
        ToolError: a program that every CUDA compilation needs is in none of them.
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

    Args:
        folder: the new folder.
        torch: the target's torch, whose ``cpp_extension.py`` is parsed and not run.
        version: its version.
        packages: folders with pure Python packages that upstream's generators import.

    Raises:
        ToolError: torch does not state its compiler flags.
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
        next_step="this torch has another layout: adapt native/farm.py to it",
    )
