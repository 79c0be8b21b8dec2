"""Changes of the merge, as changes of the members of upstream's wheel.

The rules for paths are upstream's build: ``setup.py`` reads ``requirements/cuda.txt`` and what that
includes for the wheel's metadata, loads ``tools/build_rust.py`` for its Rust parts, and
hands the rest to CMake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from sparkwright.base.errors import WheelError
from sparkwright.base.members import name_fault
from sparkwright.lock.cmake import CMAKE_PATHS
from sparkwright.wheel.source import StockWheel, entry_of
from sparkwright.wheel.stamp import VERSION_FILE


@dataclass(frozen=True)
class WheelDelta:
    """Changes of members by path; see `delta`."""

    replaced: Mapping[str, bytes]
    added: Mapping[str, bytes]
    removed: frozenset[str]


def delta(upstream: StockWheel, changes: Mapping[str, bytes | None]) -> WheelDelta:
    """Return *changes* as changes of the members of *upstream*'s wheel.

    A path whose new content equals the member's changes nothing.

    Raises:
        WheelError: a change cannot be shipped, and would be lost silently.
    """
    if metadata := of_kind(changes, "metadata"):
        raise WheelError(
            "the wheel's metadata would be wrong",
            because=f"it is taken from upstream's wheel, and the merge changed {', '.join(metadata)}",
            next_step="leave out the carries that change these files",
        )
    members = upstream.archive.members
    replaced: dict[str, bytes] = {}
    added: dict[str, bytes] = {}
    removed: set[str] = set()
    for path in of_kind(changes, "shipped"):
        content = changes[path]
        if path == VERSION_FILE or (path in members and upstream.is_binary(path)):
            raise WheelError(f"{path} cannot be changed", because="upstream's build makes it; git has none")
        if content is None:
            removed.update({path} & set(members))
        elif path not in members:
            added[path] = content
        elif entry_of(path, content).digest != upstream.listed[path].digest:
            replaced[path] = content
    _check_added(upstream, tuple(added))
    return WheelDelta(replaced, added, frozenset(removed))


def _check_added(upstream: StockWheel, added: tuple[str, ...]) -> None:
    """Refuse new files that upstream's ``package_data`` does not seem to include."""
    if unsafe := [fault for name in added if (fault := name_fault(name))]:
        raise WheelError("new files cannot be shipped", because=unsafe[0])
    others = [name for name in added if not name.endswith(".py")]
    folders = {name.rpartition("/")[0] + "/" for name in others}
    shipped = {_data_pattern(name) for name in upstream.archive.members if name.startswith(tuple(folders))}
    if unsure := [name for name in others if _data_pattern(name) not in shipped]:
        raise WheelError(
            "new files cannot be shipped",
            because=f"upstream's wheel holds nothing of their kind beside {', '.join(unsure)}",
            next_step="put them beside files of their kind, or write them as Python",
        )


def _data_pattern(name: str) -> tuple[str, str]:
    """Return the folder and the suffix of *name*, which ``package_data`` patterns match."""
    path = PurePosixPath(name)
    return str(path.parent), path.suffix


# Kinds of paths -----------------------------------------------------------------------------------

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
