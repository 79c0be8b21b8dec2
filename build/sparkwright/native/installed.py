"""A CUDA toolkit, a torch and build tools that are installed on this machine, as an option."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import ToolError
from sparkwright.base.process import run
from sparkwright.lock.native import Toolkit
from sparkwright.native.farm import target_folders
from sparkwright.native.host import this_machine, version_of
from sparkwright.native.model import Target

_OLDEST = {"cmake": (3, 26), "ninja": (1, 10)}
_TIMEOUT_S = 60.0
# The programs and files of nvcc besides headers: together with those they decide the compiled code.
_DECIDING = (
    "bin/nvcc",
    "bin/nvcc.profile",
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/ptxas",
    "bin/nvlink",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
)
_HEADERS = tuple(f"include/{name}.h" for name in ("cuda_runtime", "cublas_v2", "cusolverDn", "cusparse"))
_TORCH_SCRIPT = """\
import importlib.metadata as m, importlib.util as u, json
spec = u.find_spec("torch")
where = list(spec.submodule_search_locations or []) if spec else []
found = m.distribution("torch") if where else None
print(json.dumps([where, found.version if found else "", str(found.locate_file("")) if found else ""]))
"""


@dataclass(frozen=True)
class InstalledToolkit:
    """A CUDA toolkit in its classic layout.

    Attributes:
        version: nvcc's, in full.
        digest: digest of all its programs and headers that compilations use.
    """

    folder: Path
    version: str
    digest: str


@dataclass(frozen=True)
class InstalledTorch:
    """An installed torch.

    Attributes:
        digest: digest of its RECORD, which lists each file by digest (PEP 376).
    """

    folder: Path
    digest: str


def find_toolkit(folder: Path, target: Target, toolkit: Toolkit) -> InstalledToolkit:
    """Return the CUDA toolkit in *folder*, if it has the lock's version and all parts for *target*.

    Args:
        folder: in its classic layout, such as ``/usr/local/cuda-13.0``.
        target: the machine and card of the build.
        toolkit: the lock's.

    Raises:
        ToolError: it does not exist, has another version, or is incomplete.
    """
    folder = folder.expanduser().absolute()
    libraries = _library_folder(folder, target)
    sonames = ("libcudart.so", *toolkit.link_only)
    plain = [libraries / f"{soname.split('.so')[0]}.so" for soname in sonames]
    wanted = [*(folder / name for name in (*_DECIDING, *_HEADERS)), *plain]
    lacking = [str(path.relative_to(folder)) for path in wanted if not path.exists()]
    if lacking:
        raise ToolError(
            f"{folder} is no whole CUDA toolkit for {target.machine}",
            because=f"it lacks {', '.join(lacking)}",
            next_step=f"install all of CUDA {toolkit.cuda}, or omit it to use the lock's packages",
        )
    output = run([folder / "bin" / "nvcc", "--version"], timeout=_TIMEOUT_S).text
    found = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    version = found[1] if found else "unknown"
    if not version.startswith(f"{toolkit.cuda}."):
        raise ToolError(
            f"the CUDA toolkit in {folder} is not the one that the lock names",
            because=f"its nvcc is {version}, and the lock has {toolkit.cuda}",
            next_step=f"install CUDA {toolkit.cuda}, or omit it to use the lock's packages",
        )
    return InstalledToolkit(folder, version, _digest(folder, plain[0]))


def _library_folder(folder: Path, target: Target) -> Path:
    """Return the folder with the libraries for *target* of the toolkit in *folder*."""
    if target.machine == this_machine():
        return folder / "lib64"
    places = [folder / "targets" / name / "lib" for name in target_folders(target.machine)]
    return next((place for place in places if place.is_dir()), places[0])


def _digest(folder: Path, library: Path) -> str:
    files = {name: folder / name for name in _DECIDING} | {"libcudart.so": library}
    include = folder / "include"
    for parent, folders, names in os.walk(include, followlinks=True):
        folders.sort()
        files |= {str(Path(parent, name).relative_to(folder)): Path(parent, name) for name in names}
    return digest_of({name: sha256_file(path) for name, path in files.items()})


def find_torch(python: Path, version: str) -> InstalledTorch | None:
    """Return the torch *version* that is installed for the interpreter *python*, without importing it."""
    done = run([python, "-I", "-c", _TORCH_SCRIPT], accept=range(256), timeout=_TIMEOUT_S)
    if done.status:
        return None
    where, found, root = json.loads(done.text)
    if len(where) != 1 or found.split("+")[0] != version:
        return None
    records = list(Path(root).glob(f"torch-{found}.dist-info/RECORD"))
    headers = Path(where[0], "include", "ATen", "ATen.h")
    if len(records) != 1 or not headers.is_file():
        return None
    return InstalledTorch(Path(where[0]), sha256_file(records[0]))


def find_tool(name: str) -> tuple[Path, str] | None:
    """Return the program ``cmake`` or ``ninja`` on PATH with its version, if it is new enough."""
    found = shutil.which(name)
    if found is None:
        return None
    version = version_of(run([found, "--version"], accept=range(256), timeout=_TIMEOUT_S).text)
    return (Path(found), ".".join(map(str, version))) if version >= _OLDEST[name] else None
