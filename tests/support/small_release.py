"""A release of vLLM in miniature: an sdist, two wheels, and the lock that is right about them."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

from sparkwright.lock.model import LOCK_FORMAT, Artifact, Dependency, Lock, Release

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MACHINES = ("aarch64", "x86_64")

_CMAKE = """\
cmake_minimum_required(VERSION 3.26)
# FetchContent_Declare(commented GIT_REPOSITORY https://example.org/no.git GIT_TAG v0)
if (NOT VLLM_TARGET_DEVICE STREQUAL "cuda")
  include(${CMAKE_CURRENT_LIST_DIR}/cmake/cpu_extension.cmake)
endif()
include(FetchContent)
set(CUTLASS_REVISION "v4.4.2")
if (DEFINED ENV{VLLM_CUTLASS_SRC_DIR})
  FetchContent_Declare(cutlass SOURCE_DIR $ENV{VLLM_CUTLASS_SRC_DIR})
else()
  FetchContent_Declare(cutlass
    GIT_REPOSITORY https://example.org/cutlass.git
    GIT_TAG ${CUTLASS_REVISION})  # kept in sync
endif()
if (VLLM_GPU_LANG STREQUAL "CUDA")
  include(cmake/external_projects/quack.cmake)
endif()
"""
_QUACK = """\
if(DEFINED ENV{QUACK_SRC_DIR})
  set(QUACK_SRC_DIR $ENV{QUACK_SRC_DIR})
else()
  set(_REPO "https://example.org/quack.git")
  set(_TAG "89abcdef0123456789abcdef0123456789abcdef")
  FetchContent_Populate(quack GIT_REPOSITORY "${_REPO}" GIT_TAG "${_TAG}")
endif()
"""


def version_file(version: str, commit: str) -> str:
    return f"__version__ = version = '{version}'\n\n__commit_id__ = commit_id = 'g{commit[:9]}'\n"


def metadata(version: str, torch: str) -> str:
    return (
        f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n"
        "Project-URL: Homepage, https://example.org/vllm-project/vllm\n"
        f"Requires-Python: <3.15,>=3.10\nRequires-Dist: torch=={torch}\n"
        "Requires-Dist: torchaudio==9.9; extra == 'audio'\n\nvLLM\n"
    )


def sdist_files(version: str = "1.2.0", commit: str = COMMIT, torch: str = "2.11.0") -> dict[str, bytes]:
    """Path to bytes, without the top folder."""
    texts = {
        "PKG-INFO": metadata(version, torch),
        "pyproject.toml": (
            f'[build-system]\nrequires = ["cmake>=3.26", "torch == {torch}"]\n'
            '[project]\nname = "vllm"\nrequires-python = ">=3.10,<3.15"\n'
            '[project.urls]\nHomepage = "https://example.org/vllm-project/vllm"\n'
        ),
        "requirements/cuda.txt": f"-r common.txt\n# torch==0.0\ntorch=={torch} # exact\ntorchvision==9.9\n",
        "requirements/build/cuda.txt": f"cmake\ntorch=={torch}+cu130\n",
        "vllm/__init__.py": "",
        "vllm/_version.py": version_file(version, commit),
        "CMakeLists.txt": _CMAKE,
        "cmake/cpu_extension.cmake": (
            "FetchContent_Declare(onednn GIT_REPOSITORY https://example.org/o.git GIT_TAG v1)\n"
        ),
        "cmake/external_projects/quack.cmake": _QUACK,
    }
    return {path: text.encode() for path, text in texts.items()}


def make_sdist(files: dict[str, bytes], version: str = "1.2.0") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(f"vllm-{version}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def make_wheel(machine: str, version: str = "1.2.0", commit: str = COMMIT, torch: str = "2.11.0") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/_version.py", version_file(version, commit))
        archive.writestr(f"vllm-{version}.dist-info/METADATA", metadata(version, torch))
        archive.writestr(
            f"vllm-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: cp38-abi3-linux_{machine}\n"
        )
    return buffer.getvalue()


def artifact(filename: str, data: bytes) -> Artifact:
    return Artifact(filename=filename, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


@dataclass(frozen=True)
class SmallRelease:
    """A release: its files by name, as an index offers them, its tree, and its lock."""

    version: str
    files: dict[str, bytes]
    tree: dict[str, bytes]
    lock: Lock


def make_release(
    version: str = "1.2.0",
    commit: str = COMMIT,
    torch: str = "2.11.0",
    git: str = "https://example.org/vllm-project/vllm.git",
    *,
    tree: dict[str, bytes] | None = None,
    wheel: Callable[[str, str], bytes] | None = None,
) -> SmallRelease:
    """Return a release of *tree*, whose wheels *wheel* makes by machine and file name."""
    tree = sdist_files(version, commit, torch) if tree is None else tree
    sdist_name = f"vllm-{version}.tar.gz"
    files = {sdist_name: make_sdist(tree, version)}
    wheels = {}
    for machine in MACHINES:
        name = f"vllm-{version}-cp38-abi3-manylinux_2_28_{machine}.whl"
        files[name] = wheel(machine, name) if wheel else make_wheel(machine, version, commit, torch)
        wheels[machine] = artifact(name, files[name])
    lock = Lock(
        format=LOCK_FORMAT,
        release=Release(version=version, commit=commit, git=git, requires_python=">=3.10,<3.15", torch=torch),
        sdist=artifact(sdist_name, files[sdist_name]),
        wheels=wheels,
        sources={
            "cutlass": Dependency(
                repository="https://example.org/cutlass.git",
                ref="v4.4.2",
                declared_in="CMakeLists.txt",
                override="VLLM_CUTLASS_SRC_DIR",
            ),
            "quack": Dependency(
                repository="https://example.org/quack.git",
                ref="89abcdef0123456789abcdef0123456789abcdef",
                declared_in="cmake/external_projects/quack.cmake",
                override="QUACK_SRC_DIR",
            ),
        },
    )
    return SmallRelease(version, files, tree, lock)
