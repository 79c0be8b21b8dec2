"""Read the extensions of upstream's CMake project, and the files that it lists of a dependency.

As in `sparkwright.lock.cmake` nothing is run and no expression is evaluated: literal names are read, and
what is compiled for ROCm or the CPU alone is skipped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sparkwright.lock.cmake import is_cmake_file, without_comments

_BRANCH = re.compile(r"\b(if|elseif|else|endif)\s*\(((?:[^()]|\([^()]*\))*)\)", re.IGNORECASE)
_ROCM = re.compile(r'VLLM_(?:TARGET_DEVICE|GPU_LANG)\s+STREQUAL\s+"(?:rocm|HIP)"')
_EXTENSION = re.compile(r"\bdefine_(?:gpu_)?extension_target\s*\(((?:[^()]|\([^()]*\))*)\)", re.IGNORECASE)
_REFUSED_GXX = re.compile(
    r'CXX_COMPILER_ID\s+STREQUAL\s+"GNU"\s+AND\s+CMAKE_CXX_COMPILER_VERSION\s+VERSION_LESS\s+"?([0-9.]+)"?'
    r"\s*\)\s*message\s*\(\s*FATAL_ERROR",
    re.IGNORECASE,
)


class CMakeExtension(NamedTuple):
    """An extension that the project can build for CUDA.

    Attributes:
        destination: its folder in the wheel.
        host_only: whether its language is C++, so that it has no device code.
        abi3: whether it uses the limited API, and is named so.
        declared_in: the CMake file that defines it.
    """

    name: str
    destination: str
    host_only: bool
    abi3: bool
    declared_in: str

    @property
    def member(self) -> str:
        """Its name in the wheel."""
        return f"{self.destination}/{self.name}.abi3.so"


def oldest_gxx(files: Mapping[str, str]) -> str:
    """Return the oldest version of g++ with which the project lets itself be configured for CUDA.

    The highest of the versions below which a file ends with an error; empty where none does.

    Args:
        files: text by path in upstream's tree; see `is_cmake_file`.
    """
    texts = (without_comments(text) for path, text in files.items() if is_cmake_file(path))
    stated = (version for text in texts for version in _REFUSED_GXX.findall(text))
    return max(stated, key=lambda version: tuple(map(int, version.split("."))), default="")


def read_extensions(files: Mapping[str, str]) -> dict[str, CMakeExtension]:
    """Return the extensions by target, in the order of the files.

    Args:
        files: text by path in upstream's tree; see `is_cmake_file`.
    """
    found: dict[str, CMakeExtension] = {}
    for path, text in sorted(files.items()):
        if not is_cmake_file(path):
            continue
        for one in _extensions(path, _for_cuda(without_comments(text))):
            found.setdefault(one.name, one)
    return found


def listed_files(name: str, text: str) -> tuple[str, ...]:
    """Return the files of the source *name* that the CMake file *text* lists, in its order.

    These have to exist when the project is configured. A pattern lists none.
    """
    place = re.escape(f"${{{name}_SOURCE_DIR}}/")
    literal = re.compile(rf"{place}([\w./+-]+\.(?:cc|cpp|cu|cxx|py))(?![\w*])")
    return tuple(dict.fromkeys(literal.findall(_for_cuda(without_comments(text)))))


def _extensions(path: str, text: str) -> Iterator[CMakeExtension]:
    for call in _EXTENSION.finditer(text):
        name, *arguments = call[1].replace('"', " ").split() or [""]
        values = dict(itertools.pairwise(arguments))
        if "$" not in name and "DESTINATION" in values:
            yield CMakeExtension(
                name=name,
                destination=values["DESTINATION"],
                host_only=values.get("LANGUAGE") == "CXX",
                abi3="USE_SABI" in values,
                declared_in=path,
            )


def _for_cuda(text: str) -> str:
    """Return *text* without the branches for ROCm alone."""
    kept, position = [], 0
    stack: list[bool] = []  # for each open `if`: whether its present branch is for ROCm
    for branch in _BRANCH.finditer(text):
        if not any(stack):
            kept.append(text[position : branch.start()])
        position = branch.end()
        word = branch[1].lower()
        if word == "if":
            stack.append(_is_rocm(branch[2]))
        elif stack and word == "endif":
            stack.pop()
        elif stack:
            stack[-1] = word == "elseif" and _is_rocm(branch[2])
    return "".join([*kept, text[position:]])


def _is_rocm(condition: str) -> bool:
    return _ROCM.search(condition) is not None and not re.search(r"\b(?:OR|NOT)\b", condition)
