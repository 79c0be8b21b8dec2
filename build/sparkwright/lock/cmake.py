"""Read the sources that upstream's CMake project downloads, without running or interpreting CMake.

A download is a command with ``GIT_REPOSITORY`` and ``GIT_TAG``. A value may be a variable that is set once in
the same file, not counting the branch for ROCm. Whatever else looks like a download is a `Problem`, so that a
new form is read by a person.

Of the extensions literal names are read, and what is compiled for ROCm or the CPU alone is skipped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_ROOT = "CMakeLists.txt"
# Read in builds for CPUs only.
_OF_CPU_BUILDS = "cmake/cpu_extension.cmake"

_COMMENT = re.compile(r"#\[(=*)\[.*?\]\1\]|#[^\n]*", re.DOTALL)
_BRANCH = re.compile(r"\b(if|elseif|else|endif)\s*\(", re.IGNORECASE)
_FOR_ROCM = re.compile(r'VLLM_(?:TARGET_DEVICE|GPU_LANG)\s+STREQUAL\s+"(?:rocm|HIP)"')
_DOWNLOAD = re.compile(
    r"\b(?P<command>FetchContent_Declare|FetchContent_Populate|ExternalProject_Add)\s*\((?P<arguments>[^()]*)\)",
    re.IGNORECASE,
)
_SIGN = re.compile(r"\b(GIT_REPOSITORY|GIT_TAG|URL|SVN_REPOSITORY|HG_REPOSITORY|DOWNLOAD|DOWNLOAD_COMMAND)\b")
_OVERRIDE = re.compile(r"\bENV\{(\w+_SRC_DIR)\}")


class Pin(NamedTuple):
    """A git source that the project downloads.

    Attributes:
        override: the variable by which a build tells upstream's CMake where the source lies.
    """

    name: str
    repository: str
    ref: str
    declared_in: str
    override: str


class Problem(NamedTuple):
    """A place that may hold a pin and could not be read: file, line and reason."""

    path: str
    line: int
    why: str


def is_cmake_file(path: str) -> bool:
    """Tell if `read_pins` reads the file at *path* in upstream's tree."""
    return path == _ROOT or (path.startswith("cmake/") and path.endswith(".cmake") and path != _OF_CPU_BUILDS)


def read_pins(files: Mapping[str, str]) -> tuple[list[Pin], list[Problem]]:
    """Return the pins, sorted by name, and the downloads that could not be read as one."""
    if _ROOT not in files:
        return [], [Problem(_ROOT, 0, "the file is missing")]
    texts = sorted((path, text) for path, text in files.items() if is_cmake_file(path))
    found = [one for path, text in texts for one in _read_file(path, text)]
    problems = [one for one in found if isinstance(one, Problem)]
    pins: dict[str, Pin] = {}
    for pin in sorted(one for one in found if isinstance(one, Pin)):
        if pins.setdefault(pin.name, pin) != pin:
            problems.append(Problem(pin.declared_in, 0, f"{pin.name} has several pins"))
            del pins[pin.name]
    return list(pins.values()), problems


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda found: _blank(found[0]), text)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _for_cuda(text: str) -> str:
    """Return *text* with spaces in place of comments and of what is for ROCm alone; offsets give lines."""
    text = _without_comments(text)
    kept, position = [], 0
    stack: list[bool] = []  # for each open `if`: whether its present branch is for ROCm
    for branch in _BRANCH.finditer(text):
        part = text[position : branch.start()]
        kept += [_blank(part) if any(stack) else part, branch[0]]
        position = branch.end()
        word = branch[1].lower()
        if word == "if":
            stack.append(_is_rocm(_until_closed(text, position)))
        elif stack and word == "endif":
            stack.pop()
        elif stack:
            stack[-1] = word == "elseif" and _is_rocm(_until_closed(text, position))
    return "".join([*kept, text[position:]])


def _until_closed(text: str, start: int) -> str:
    """Return what stands in *text* from *start*, behind an opening bracket, to the closing one."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[start:place]
    return text[start:]


def _is_rocm(condition: str) -> bool:
    return _FOR_ROCM.search(condition) is not None and not re.search(r"\b(?:OR|NOT)\b", condition)


def _read_file(path: str, text: str) -> Iterator[Pin | Problem]:
    """Yield each download of a file, as a pin or as a problem."""
    text = _for_cuda(text)
    overrides = sorted(set(_OVERRIDE.findall(text)))
    read: list[tuple[int, int]] = []
    for download in _DOWNLOAD.finditer(text):
        read.append(download.span())
        name, *arguments = [word.strip('"') for word in download["arguments"].split()] or ["?"]
        signs = {word for word in arguments if _SIGN.fullmatch(word)}
        if not signs:
            continue  # a local copy, or a name that is declared elsewhere
        line = text.count("\n", 0, download.start()) + 1
        repository, ref = (_value(text, arguments, key) for key in ("GIT_REPOSITORY", "GIT_TAG"))
        if signs != {"GIT_REPOSITORY", "GIT_TAG"} or repository is None or ref is None:
            yield Problem(path, line, f"{name} has no single GIT_REPOSITORY and GIT_TAG")
        elif len(overrides) != 1:
            yield Problem(path, line, f"{name} has no single *_SRC_DIR variable, but {overrides}")
        else:
            yield Pin(name, repository, ref, path, overrides[0])
    for sign in _SIGN.finditer(text):
        if not any(start <= sign.start() < end for start, end in read):
            yield Problem(path, text.count("\n", 0, sign.start()) + 1, f"{sign[0]} in an unknown command")


def _value(text: str, arguments: list[str], key: str) -> str | None:
    """Return the one value after *key*, looking a variable up in *text*; `None` if there is not just one."""
    if arguments.count(key) != 1 or arguments[-1] == key:
        return None
    value = arguments[arguments.index(key) + 1]
    if variable := re.fullmatch(r"\$\{(\w+)\}", value):
        values = re.findall(rf'\bset\s*\(\s*{variable[1]}\s+"?([^\s"()]+)"?\s*[)C]', text, re.IGNORECASE)
        value = values[0] if len(values) == 1 else "$"
    return None if "$" in value else value


# Extensions, and the files listed of a dependency -------------------------------------------------

_EXTENSION = re.compile(r"\bdefine_(?:gpu_)?extension_target\s*\(((?:[^()]|\([^()]*\))*)\)", re.IGNORECASE)
_REFUSED_GXX = re.compile(
    r'CXX_COMPILER_ID\s+STREQUAL\s+"GNU"\s+AND\s+CMAKE_CXX_COMPILER_VERSION\s+VERSION_LESS\s+"?([0-9.]+)"?'
    r"\s*\)\s*message\s*\(\s*FATAL_ERROR",
    re.IGNORECASE,
)


class CMakeExtension(NamedTuple):
    """An extension that the project can build for CUDA.

    Attributes:
        host_only: whether its language is C++, so that it has no device code.
        abi3: whether it uses the limited API, and is named so.
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
    """
    texts = (_without_comments(text) for path, text in files.items() if is_cmake_file(path))
    stated = (version for text in texts for version in _REFUSED_GXX.findall(text))
    return max(stated, key=lambda version: tuple(map(int, version.split("."))), default="")


def read_extensions(files: Mapping[str, str]) -> dict[str, CMakeExtension]:
    """Return the extensions by target, in the order of the files."""
    found: dict[str, CMakeExtension] = {}
    for path, text in sorted(files.items()):
        if not is_cmake_file(path):
            continue
        for one in _extensions(path, _for_cuda(text)):
            found.setdefault(one.name, one)
    return found


def listed_files(name: str, text: str) -> tuple[str, ...]:
    """Return the files of the source *name* that the CMake file *text* lists, in its order.

    These have to exist when the project is configured. A pattern lists none.
    """
    place = re.escape(f"${{{name}_SOURCE_DIR}}/")
    literal = re.compile(rf"{place}([\w./+-]+\.(?:cc|cpp|cu|cxx|py))(?![\w*])")
    return tuple(dict.fromkeys(literal.findall(_for_cuda(text))))


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


# Paths that the project reads ---------------------------------------------------------------------

# Taken from ``CMakeLists.txt`` and ``cmake/``: every file that they compile, run, include or generate from
# is under ``csrc/`` or ``cmake/`` themselves, but for one script that links DeepGEMM's extension. They
# write only copies for the Python package below ``vllm/``.
#
# ``setup.py`` and ``rust/`` do not decide these extensions. ``setup.py`` starts CMake with the interpreter,
# build type and target device, all of which a native build sets itself, and compiles the Rust parts;
# both still decide other binaries of the wheel, so the wheel's own table counts them as native too.
CMAKE_PATHS = (r"csrc/.*", r"cmake/.*", r"CMakeLists\.txt", r"tools/build_deepgemm_C\.py")
"""Patterns of whole paths, relative to the repository's root."""

_READ = re.compile("|".join(CMAKE_PATHS))


def read_by_cmake(path: str) -> bool:
    """Tell if the extensions are compiled from *path*, relative to the repository's root."""
    return _READ.fullmatch(path) is not None
