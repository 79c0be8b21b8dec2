"""Lay out the tree that is compiled, run CMake on it once, and keep its compile and link commands as data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import NativeBuildError, ProcessError
from sparkwright.base.events import task
from sparkwright.base.process.run import run
from sparkwright.git.repository import Repository, TreeEntry
from sparkwright.git.trees import FileEntry, check_out, patch_tree
from sparkwright.lock.model import Lock, SourcePin
from sparkwright.native.model import WORK, Configuration, Inputs, Link, Toolchain, Unit
from sparkwright.native.toolchain import configure_environment, toolchain_file
from sparkwright.store.paths import Store

CMAKE_INPUTS = ("CMakeLists.txt", "cmake", "csrc")
"""The files of upstream's CMake project. ``setup.py`` and ``rust`` decide other parts of the wheel."""

_FOLDER = "40000"
_LINKED = ("cuda", "torch", "python")
_HASHED = ("source", "deps")
# Of the compiler and the C library; no package owns /usr/local/include.
_SYSTEM = re.compile(r"/usr/(include|lib/gcc(-cross)?|\w+-linux-gnu\w*)/")


def native_tree(repository: Repository, inputs: Inputs, pins: Mapping[str, SourcePin]) -> str:
    """Return the git id of the compiled tree: ``source/`` and one folder for each dependency in ``deps/``.

    It names every byte of the sources that a build reads, whatever their origin.
    """
    top = repository.objects.node(inputs.tree)
    entries = {f"source/{name}": top[name] for name in CMAKE_INPUTS if name in top}
    # A mounted source goes into the folder of another one, so that one has to be there first.
    for name in sorted(inputs.sources, key=lambda name: (bool(pins[name].mount), name)):
        source, mount = inputs.sources[name], pins[name].mount
        place = mount.replace(":", "/", 1) if mount else name
        entries[f"deps/{place}"] = TreeEntry(_FOLDER, source.tree)
    tree: str | None = None
    for path, entry in entries.items():
        tree = repository.objects.edit(tree, {path: entry})
    return tree or repository.objects.write("tree", b"")


@dataclass(frozen=True)
class Workspace:
    """A folder laid out for a build; see `sparkwright.native`."""

    root: Path
    toolchain: Toolchain

    @property
    def source(self) -> Path:
        """The native inputs of the merged tree."""
        return self.root / "source"

    @property
    def build(self) -> Path:
        """Objects and extensions; every command runs here."""
        return self.root / "build"

    def expand(self, argv: tuple[str, ...]) -> list[str]:
        """Return a recorded command with this folder in place of its placeholder."""
        return [part.replace(WORK, str(self.root)) for part in argv]

    def abstract(self, text: str) -> str:
        """Return *text* with the placeholder for this folder, and for the targets of its links."""
        for place, name in self._places():
            text = text.replace(place, f"{WORK}/{name}" if name else WORK)
        return text

    def _places(self) -> list[tuple[str, str]]:
        """Return the paths of this folder's parts in a tool's output, with their names, longest first."""
        links = [(os.path.realpath(path), name) for name, path in _links(self.toolchain).items()]
        return sorted([(str(self.root), ""), *links], key=lambda place: -len(place[0]))


def _links(toolchain: Toolchain) -> dict[str, Path]:
    return {"cuda": toolchain.cuda, "torch": toolchain.torch, "python": toolchain.python_include}


@contextlib.contextmanager
def open_workspace(
    store: Store, repository: Repository, tree: str, toolchain: Toolchain
) -> Iterator[Workspace]:
    """Yield a scratch folder with *tree*'s files and links to *toolchain*; remove it after the block.

    *tree* is as from `native_tree`, with generated files where there are any.
    """
    with store.scratch() as scratch:
        # Tools resolve links in paths that they print; without any there is only one name for a file.
        root = scratch.resolve() / "work"
        check_out(repository, tree, root)
        for name, path in _links(toolchain).items():
            (root / name).symlink_to(path.resolve())
        (root / "deps").mkdir(exist_ok=True)
        (root / "build").mkdir()
        yield Workspace(root, toolchain)


@dataclass(frozen=True)
class Reader:
    """Classifier of the files that a compiler reads in one work folder: hashed, of the toolchain, or neither.

    The toolchain's key covers every file of the toolchain, so those are not recorded one by one. Compilers
    spell such files in several ways: through the links of the work folder, or (GCC, where that is shorter)
    with all links resolved.

    Attributes:
        work: the work folder, with no link in its path.
        toolchain: the targets of ``cuda/``, ``torch/`` and ``python/`` in it.
        told: units that caused a warning, because they read an uncovered file.
    """

    work: Path
    toolchain: Toolchain
    told: list[str] = field(default_factory=list, compare=False)

    def hashed(self, path: str) -> str | None:
        """Return *path* relative to the work folder if it is in a tree of sources there, else `None`.

        A file that is reached through a link has two names and counts as neither.
        """
        place = os.path.normpath(path)
        if not place.startswith(self._hashed) or os.path.realpath(path) != place:
            return None
        return place[len(self._root) :]

    def covered(self, path: str) -> bool:
        """Tell if the toolchain's key covers the file at *path*."""
        if ".." in path:
            path = os.path.realpath(path)
        if path.startswith(self._covered) or _SYSTEM.match(path):
            return True
        return os.path.realpath(path).startswith(self._covered)

    def absolute(self, path: str) -> str:
        """Return *path* as seen from the folder that commands run in."""
        return os.path.join(self._root, "build", path)  # noqa: PTH118 - a thousand for each unit

    @cached_property
    def _root(self) -> str:
        return f"{self.work}/"

    @cached_property
    def _hashed(self) -> tuple[str, ...]:
        return tuple(f"{self._root}{name}/" for name in _HASHED)

    @cached_property
    def _covered(self) -> tuple[str, ...]:
        chain = self.toolchain
        linked = (os.path.realpath(path) for path in (chain.cuda, chain.torch, chain.python_include))
        folders = (*linked, *chain.headers)
        return (*(f"{self._root}{name}/" for name in _LINKED), *(f"{path}/" for path in folders))


# Running CMake ------------------------------------------------------------------------------------

# Configuring takes ten seconds and depends on little: the CMake files, the scripts that generate
# kernels, and the names of the sources. So its result is a record, and after an edit of a kernel only
# the compiler runs.

# Part of the configurations' keys: raised when CMake's output is read differently.
_READING = 1
_COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".inl"})
_SECONDS = 600
TOOLCHAIN_FILE = "toolchain.cmake"
_CODE = re.compile(r"code=\[?([\w,]+)\]?")


def asked_of_cmake(inputs: Inputs, lock: Lock) -> str:
    """Return the digest of CMake's whole input and of the rules for its output, without this machine's paths.

    The toolchain's parts are covered by its own key.
    """
    places = [
        field.name for field in fields(Toolchain) if isinstance(getattr(inputs.toolchain, field.name), Path)
    ]
    nowhere: dict[str, Any] = {name: Path(name) for name in places}
    chain = replace(inputs.toolchain, **nowhere)
    work, target = Path(WORK), inputs.target
    environment = configure_environment(chain, target, work, lock)
    variables = {name: value for name, value in environment.items() if name != "PATH"}
    return digest_of(
        [_READING, configure_command(chain, WORK), toolchain_file(chain, target, work), variables]
    )


def configuration_key(repository: Repository, tree: str, inputs: Inputs, lock: Lock) -> str:
    """Return the digest of the inputs of configuring *tree*.

    Of the compiler's inputs only the names count: CMake lists them and reads none of them.
    """
    files = [
        [path, "" if PurePosixPath(path).suffix in _COMPILED else entry.blob]
        for path, entry in sorted(repository.files(tree).items())
    ]
    return digest_of(
        {"asked": asked_of_cmake(inputs, lock), "files": files, "toolchain": inputs.toolchain.key}
    )


def find_configuration(store: Store, repository: Repository, key: str) -> Configuration | None:
    """Return the recorded configuration of that key, or `None`."""
    found = store.find_record_as(Configuration, "configuration", key)
    if found is None or (found.generated and not repository.has(_generated_ref(key))):
        return None
    return found


def with_generated(repository: Repository, tree: str, configuration: Configuration) -> str:
    """Return *tree* with the files that configuring wrote into it."""
    entries: dict[str, TreeEntry | None] = {
        path: TreeEntry("100644", blob) for path, blob in configuration.generated.items()
    }
    return repository.objects.edit(tree, entries) or tree


def configure(
    store: Store, repository: Repository, tree: str, inputs: Inputs, lock: Lock, *, prefix: Sequence[str] = ()
) -> Configuration:
    """Return the configuration of *tree*, from the store or by running CMake.

    *tree* is as from `native_tree`; *prefix* stands before CMake's command, such as one that removes the
    network.
    """
    key = configuration_key(repository, tree, inputs, lock)
    found = find_configuration(store, repository, key)
    if found is not None:
        return found
    with task("configuring"), open_workspace(store, repository, tree, inputs.toolchain) as work:
        before = _states(work)
        _run_cmake(work, inputs, lock, prefix)
        commands = json.loads((work.build / "compile_commands.json").read_text(encoding="utf-8"))
        made = _collect(work, before)
        whole = patch_tree(repository, tree, made)
        blobs = repository.files(whole, made)
        made_configuration = Configuration(
            units=tuple(_units(work, commands, lock)),
            links=tuple(_links_of(work, commands, lock)),
            generated={path: entry.blob for path, entry in sorted(blobs.items())},
        )
    if made:
        repository.keep(_generated_ref(key), repository.commit(whole, message="generated sources"))
    store.put_record("configuration", key, to_builtins(made_configuration))
    return made_configuration


def _generated_ref(key: str) -> str:
    return f"refs/sparkwright/configurations/{key[:40]}"


def _run_cmake(work: Workspace, inputs: Inputs, lock: Lock, prefix: Sequence[str]) -> None:
    chain, target = inputs.toolchain, inputs.target
    (work.build / TOOLCHAIN_FILE).write_text(toolchain_file(chain, target, work.root), encoding="utf-8")
    try:
        run(
            [*prefix, *configure_command(chain, work.root)],
            cwd=work.build,
            env=configure_environment(chain, target, work.root, lock),
            timeout=_SECONDS,
        )
    except ProcessError as error:
        raise NativeBuildError(
            "configuring the kernels failed",
            because=error.because,
            next_step="'sparkwright doctor' checks the compilers; a carry of scope build may be at fault",
        ) from error


def configure_command(chain: Toolchain, root: Path | str) -> list[str]:
    """Return the CMake command for the work folder *root*, with `TOOLCHAIN_FILE` in its ``build/``.

    It configures a release build, as upstream's wheels are, keeps this machine's paths out of objects and
    extensions, and downloads nothing.
    """
    mapped = f"-ffile-prefix-map={root}=/sparkwright"
    cache = {
        "CMAKE_TOOLCHAIN_FILE": f"{root}/build/{TOOLCHAIN_FILE}",
        "CMAKE_MAKE_PROGRAM": chain.ninja,
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        "CMAKE_SKIP_RPATH": "ON",
        "CMAKE_CXX_FLAGS": mapped,
        "CMAKE_CUDA_FLAGS": f"-Xcompiler={mapped}",
        # Debian's linkers leave out a library that defines no needed symbol, as the stand-in for the
        # driver's does; and without its name in the extension, nothing loads it before it is called.
        "CMAKE_MODULE_LINKER_FLAGS": "-Wl,--strip-all -Wl,--no-as-needed",
        "CUDAToolkit_ROOT": f"{root}/cuda",
        # CUTLASS's own project would set it: Machete's kernels are generated by what is under its python/.
        "CUTLASS_DIR": f"{root}/deps/cutlass",
        "CUTLASS_INCLUDE_DIR": f"{root}/deps/cutlass/include",
        "CUTLASS_TOOLS_UTIL_INCLUDE_DIR": f"{root}/deps/cutlass/tools/util/include",
        "Caffe2_DIR": f"{root}/torch/share/cmake/Caffe2",
        "FETCHCONTENT_BASE_DIR": f"{root}/build/fetched",
        "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
        "Python_EXECUTABLE": chain.python,
        "Python_INCLUDE_DIR": f"{root}/python",
        "Torch_DIR": f"{root}/torch/share/cmake/Torch",
        "VLLM_PYTHON_EXECUTABLE": chain.python,
        "VLLM_TARGET_DEVICE": "cuda",
    }
    command = [str(chain.cmake), "-G", "Ninja", "-S", f"{root}/source", "-B", f"{root}/build"]
    return command + [f"-D{name}={value}" for name, value in cache.items()]


def _extensions(lock: Lock) -> Iterable[str]:
    return lock.native.extensions if lock.native is not None else ()


def _target_of(output: str) -> str:
    """Return the extension that an object belongs to, by CMake's folder for it."""
    return next(part[:-4] for part in PurePosixPath(output).parts if part.endswith(".dir"))


def _units(work: Workspace, commands: Sequence[Mapping[str, Any]], lock: Lock) -> Iterable[Unit]:
    wanted = set(_extensions(lock))
    for command in commands:
        target = _target_of(command["output"])
        if target not in wanted:
            continue
        argv = tuple(_abstract(work, part) for part in shlex.split(command["command"]))
        yield Unit(
            target=target,
            source=_relative(work, work.build / command["file"]),
            output=f"build/{_abstract(work, command['output'])}",
            language="CUDA" if command["file"].endswith(".cu") else "CXX",
            argv=argv,
            arches=_arches(argv),
        )


def _abstract(work: Workspace, word: str) -> str:
    """Return *word* of a command without the path of the work folder.

    The object of a source that is not below the project's own gets that source's whole path below CMake's
    folder for the target. It loses the work folder: a build elsewhere would not have a folder of that name.
    """
    return work.abstract(word).replace(f".dir{WORK}/", ".dir/")


def _relative(work: Workspace, path: Path) -> str:
    return path.relative_to(work.root).as_posix()


def _arches(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the device code that nvcc compiles to, each once, in the command's order."""
    codes = [code for part in argv if (found := _CODE.search(part)) for code in found[1].split(",")]
    return tuple(dict.fromkeys(codes))


def _links_of(work: Workspace, commands: Sequence[Mapping[str, Any]], lock: Lock) -> Iterable[Link]:
    known = {_target_of(command["output"]) for command in commands}
    for target in sorted(known & set(_extensions(lock))):
        lines = run([work.toolchain.ninja, "-t", "commands", target], cwd=work.build).text.splitlines()
        words = [_abstract(work, word) for word in shlex.split(lines[-1])]
        # CMake wraps a link as ``: && command && :`` to allow steps before and after it.
        argv = tuple(word for word in words if word not in {":", "&&"})
        output = argv[argv.index("-o") + 1]
        objects = tuple(f"build/{word}" for word in argv if word.endswith(".o"))
        yield Link(target=target, output=f"build/{output}", objects=objects, argv=argv)


def _states(work: Workspace) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file in ``source/``."""
    found = {}
    for path in work.source.rglob("*"):
        if path.is_file():
            state = path.stat()
            found[_relative(work, path)] = (state.st_size, state.st_mtime_ns)
    return found


def _collect(work: Workspace, before: dict[str, tuple[int, int]]) -> dict[str, FileEntry]:
    """Return the files in ``source/`` that configuring wrote, with their content."""
    return {
        path: FileEntry("100644", (work.root / path).read_bytes())
        for path, state in _states(work).items()
        if before.get(path) != state
    }
