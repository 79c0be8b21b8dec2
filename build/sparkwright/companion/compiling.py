"""Compile and link described modules with the machinery of `sparkwright.native`.

FlashInfer's commands are taken over word by word, but for paths, dependency files, and options that keep this
machine's paths out of the result and its symbol table small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sparkwright.base.errors import NativeBuildError
from sparkwright.companion.asking import Command, DescribedModule, Description, GeneratorSite
from sparkwright.companion.tree import DATA, GENERATED, HEADERS, SOURCES, generated_folder
from sparkwright.native.build import Builder, Configured, compile_units, link_objects
from sparkwright.native.model import WORK, Configuration, Inputs, Link, Toolchain, Unit
from sparkwright.native.units import UnitFiles

_LANGUAGES: dict[str, Literal["CUDA", "CXX"]] = {".cu": "CUDA", ".cpp": "CXX", ".cc": "CXX"}
_DEPFILE = frozenset({"-MMD", "--generate-dependencies-with-compile"})
_MAP = f"-ffile-prefix-map={WORK}=/sparkwright"
_CODE = re.compile(r"\bcode=\[?([\w,]+)\]?")
_EMPTY_TREE = b""


@dataclass(frozen=True)
class CompiledModule:
    """A finished library in the store.

    Attributes:
        sha256: digest of the file.
        size: in bytes.
        arches: number of units that compile to each device code, such as ``sm_121a``.
    """

    name: str
    sha256: str
    size: int
    arches: Mapping[str, int]


class Places:
    """Paths of one run, and their places in a work folder."""

    def __init__(self, site: GeneratorSite, toolchain: Toolchain, description: Description) -> None:
        """Collect the paths of a run, spelled as given and with links resolved."""
        pairs = [
            (site.flashinfer / DATA, SOURCES),
            (Path(description.tvm_ffi), HEADERS),
            (toolchain.cuda, "cuda"),
            (Path(description.python_include), "python"),
            *((folder, "build") for folder in site.workspace.glob(".cache/flashinfer/*/*/cached_ops")),
        ]
        if generated := generated_folder(site.workspace):
            pairs.append((generated, GENERATED))
        spelled = {text: place for path, place in pairs for text in (str(path), os.path.realpath(path))}
        self._pairs = sorted(spelled.items(), key=lambda pair: -len(pair[0]))
        self._foreign = (str(site.workspace), str(site.flashinfer), description.tvm_ffi)

    def abstract(self, word: str) -> str:
        """Return *word* of a command with places for paths.

        Raises:
            NativeBuildError: a path of this machine is left.
        """
        for path, place in self._pairs:
            word = word.replace(path, f"{WORK}/{place}")
        if any(path in word for path in self._foreign):
            raise NativeBuildError(
                "a command of FlashInfer cannot be repeated elsewhere",
                because=f"it names {word}",
                next_step="this FlashInfer has another layout: adapt companion/compiling.py to it",
            )
        return word

    def relative(self, path: str) -> str:
        """Return the file at *path* relative to the work folder."""
        return self.abstract(path).removeprefix(f"{WORK}/")


def configure_modules(modules: Iterable[DescribedModule], places: Places, cxx: Path) -> Configuration:
    """Return every unit and link of *modules*.

    Args:
        modules: as FlashInfer describes them.
        places: the paths in their commands.
        cxx: the host's compiler; FlashInfer does not hand it to nvcc where that links.

    Raises:
        NativeBuildError: a module has a step that neither compiles nor links.
    """
    units: list[Unit] = []
    links: list[Link] = []
    for module in modules:
        for command in module.commands:
            kind, language = Path(command.output).suffix, _LANGUAGES.get(Path(command.source).suffix)
            if kind == ".o" and language is not None:
                units.append(_unit(module.name, command, language, places))
            elif kind == ".so":
                links.append(_link(module, command, places, cxx))
            else:
                raise NativeBuildError(
                    f"the module {module.name} cannot be compiled ahead of time",
                    because=f"its build makes {command.output} of {command.source or 'nothing'}",
                    next_step="take it out of the list",
                )
    return Configuration(units=tuple(units), links=tuple(links), generated={})


def _unit(module: str, command: Command, language: Literal["CUDA", "CXX"], places: Places) -> Unit:
    argv = tuple(places.abstract(word) for word in _without_depfile(command.argv))
    cuda = language == "CUDA"
    return Unit(
        target=module,
        source=places.relative(command.source),
        output=places.relative(command.output),
        language=language,
        argv=(*argv, f"-Xcompiler={_MAP}" if cuda else _MAP),
        arches=tuple(dict.fromkeys(code for word in argv for code in _codes(word))) if cuda else (),
    )


def _codes(word: str) -> list[str]:
    found = _CODE.search(word)
    return found[1].split(",") if found else []


def _without_depfile(argv: Sequence[str]) -> list[str]:
    """Return *argv* without the options for a dependency file; `compile_units` adds its own."""
    words, kept = iter(argv), []
    for word in words:
        if word == "-MF":
            next(words, "")
        elif word not in _DEPFILE:
            kept.append(word)
    return kept


def _link(module: DescribedModule, command: Command, places: Places, cxx: Path) -> Link:
    argv = [places.abstract(word) for word in command.argv]
    options = ["-Wl,--strip-all", "-Wl,--no-as-needed"]
    if Path(argv[0]).name == "nvcc":
        options = [f"-Xlinker={option.removeprefix('-Wl,')}" for option in options]
        options += ["-ccbin", str(cxx)]
    objects = [one.output for one in module.commands if one is not command and one.output in command.argv]
    return Link(
        target=module.name,
        output=places.relative(command.output),
        objects=tuple(places.relative(path) for path in objects),
        argv=(argv[0], *options, *argv[1:]),
    )


def compile_modules(
    builder: Builder, inputs: Inputs, configuration: Configuration
) -> dict[str, CompiledModule]:
    """Return each module of *configuration* by its name, from the store or compiled.

    Args:
        builder: the settings of the build.
        inputs: the tree as from `source_tree`, the toolchain and the target.
        configuration: as from `configure_modules`.

    Raises:
        NativeBuildError: the linker fails.
        CompileError, NotEnoughMemoryError, StorageError, ToolError: see `compile_units`.
    """
    files = {path: entry.blob for path, entry in builder.repository.files(inputs.tree).items()}
    known = Configured(configuration, inputs.tree, UnitFiles(files))
    objects = compile_units(builder, inputs, known, configuration.units)
    # A linker reads objects and libraries alone: the sources need not be written out again for each module.
    bare = replace(known, tree=builder.repository.objects.write("tree", _EMPTY_TREE))
    finished = {}
    for link in configuration.links:
        sha256, size = link_objects(builder, inputs, bare, link, objects)
        arches: dict[str, int] = {}
        for unit in configuration.units_of(link.target):
            for arch in unit.arches:
                arches[arch] = arches.get(arch, 0) + 1
        finished[link.target] = CompiledModule(link.target, sha256, size, arches)
    return finished
