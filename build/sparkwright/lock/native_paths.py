"""The paths of upstream's repository that its CMake project reads.

Taken from ``CMakeLists.txt`` and ``cmake/``: every file that they compile, run, include or generate from
is under ``csrc/`` or ``cmake/`` themselves, but for one script that links DeepGEMM's extension. They
write only copies for the Python package below ``vllm/``.

``setup.py`` and ``rust/`` do not decide these extensions. ``setup.py`` starts CMake with the interpreter,
build type and target device, all of which a native build sets itself, and compiles the Rust parts;
both still decide other binaries of the wheel, so the wheel's own table counts them as native too.
"""

from __future__ import annotations

import re

CMAKE_PATHS = (r"csrc/.*", r"cmake/.*", r"CMakeLists\.txt", r"tools/build_deepgemm_C\.py")
"""Patterns of whole paths, relative to the repository's root."""

_READ = re.compile("|".join(CMAKE_PATHS))


def read_by_cmake(path: str) -> bool:
    """Tell if the extensions are compiled from *path*, relative to the repository's root."""
    return _READ.fullmatch(path) is not None
