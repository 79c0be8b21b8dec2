"""The effect of a changed path of upstream's repository on a wheel made from upstream's.

The rules are upstream's build: ``setup.py`` reads ``requirements/cuda.txt`` and what that
includes for the wheel's metadata, loads ``tools/build_rust.py`` for its Rust parts, and
hands the rest to CMake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from sparkwright.lock.native_paths import CMAKE_PATHS

Kind = Literal["native", "metadata", "shipped", "not-shipped"]
"""The part of the wheel that a path decides: compiled code, METADATA, other files, or nothing."""

# The first pattern that matches the whole path decides.
_TABLE: tuple[tuple[str, Kind], ...] = (
    *((pattern, "native") for pattern in CMAKE_PATHS),
    (r"setup\.py", "native"),
    (r"rust/.*", "native"),
    (r"build_rust\.sh", "native"),
    (r"tools/build_rust\.py", "native"),
    (r"rust-toolchain(\.toml)?", "native"),
    (r"requirements/build/.*", "native"),
    # Nothing in setup.py reads these: they equip upstream's own testing and linting.
    (r"requirements/(test|lint|docs)(/.*|\.(in|txt))", "not-shipped"),
    (r"requirements/.*", "metadata"),
    (r"pyproject\.toml", "metadata"),
    (r"setup\.cfg", "metadata"),
    (r"MANIFEST\.in", "metadata"),
    (r"LICENSE", "metadata"),
    (r"vllm/.*", "shipped"),
    (r".*", "not-shipped"),
)
_COMPILED = tuple((re.compile(pattern), kind) for pattern, kind in _TABLE)


def classify(path: str) -> Kind:
    """Return the kind of *path*, relative to the repository's root."""
    return next(kind for pattern, kind in _COMPILED if pattern.fullmatch(path))


def of_kind(paths: Iterable[str], kind: Kind) -> tuple[str, ...]:
    """Return those of *paths* that are of that *kind*, sorted."""
    return tuple(sorted(path for path in paths if classify(path) == kind))


# The sources of a binary's code, among the native inputs. The first pattern that matches the member
# decides. Besides these, every binary depends on the build files: CMake's files, setup.py, requirements.
_SOURCES: tuple[tuple[str, str], ...] = (
    (
        r"vllm/(vllm-rs|_rust_tool_parser\..*)",
        r"rust/.*|build_rust\.sh|tools/build_rust\.py|rust-toolchain.*",
    ),
    # Whole dependencies with separate sources.
    (r"vllm/(vllm_flash_attn|third_party/deep_gemm)/.*|vllm/_flashmla_.*", r"(?!)"),
    (r"vllm/_qutlass_C\..*", r"csrc/qutlass.*"),
    (r".*", r"csrc/.*"),
)


def compiled_from(member: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths*, native inputs, whose code goes into the binary *member*; sorted.

    Build files such as ``CMakeLists.txt`` never count: a binary that was built in another way still does
    the same.
    """
    sources = next(sources for pattern, sources in _SOURCES if re.fullmatch(pattern, member))
    return tuple(sorted(path for path in paths if re.fullmatch(sources, path)))
