"""The list of a series' FlashInfer kernels: which there are, and which of them a recipe needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError
from sparkwright.lock.model import Package, named

COMPANION_FORMAT = 1

Argument = str | int | bool


class KernelModule(Model, frozen=True):
    """One library of FlashInfer, as one of its generators makes it.

    Attributes:
        generator: the function that describes it, ``module:function``; empty where arguments are not known:
            recipes need it, and no companion has it.
        arguments: its arguments; a text that starts with ``torch.`` is a dtype.
        arches: the architectures that it is for, such as ``12.1a``; every one if there are none.
    """

    why: Annotated[str, Meta(min_length=1)]
    generator: Annotated[str, Meta(pattern=r"^([\w.]+:\w+)?\Z")] = ""
    arguments: dict[str, Argument] = field(default_factory=dict)
    arches: tuple[str, ...] = ()

    def is_for(self, arch: str) -> bool:
        """Tell if the module can be compiled for *arch*."""
        return not self.arches or arch in self.arches


class CompanionSpec(Model, frozen=True):
    """The kernels of a series.

    Attributes:
        flashinfer: the wheel ``flashinfer-python`` of the series; it has generators and sources.
        tvm_ffi: the wheel ``apache-tvm-ffi`` by machine: headers, and the library that kernels call.
        paths: folders below ``flashinfer/data`` that hold the sources.
        leave_out: folders below these that no module of the list reads.
        imports: small wheels that FlashInfer imports and the environment for probes lacks.
        modules: modules by their name in `recipes`.
        recipes: names of modules by recipe; ``*`` stands for every recipe.
    """

    format: int
    flashinfer: Package
    tvm_ffi: dict[str, Package]
    paths: tuple[str, ...]
    modules: dict[str, KernelModule]
    recipes: dict[str, tuple[str, ...]]
    leave_out: tuple[str, ...] = ()
    imports: tuple[Package, ...] = ()

    @property
    def version(self) -> str:
        """The version of FlashInfer."""
        return self.flashinfer.version

    def tvm_ffi_for(self, machine: str) -> Package:
        """Return the wheel of ``apache-tvm-ffi`` for *machine*.

        Raises:
            UnknownNameError: the list names none.
        """
        return named(self.tvm_ffi, machine, "apache-tvm-ffi for machines")

    def needed(self, arch: str, recipe: str) -> list[str]:
        """Return the names of all modules that *recipe* needs on *arch*, those without a generator too."""
        return self.chosen(arch, recipes=[recipe], stated=False)

    def chosen(
        self, arch: str, *, recipes: Iterable[str] = (), modules: Iterable[str] = (), stated: bool = True
    ) -> list[str]:
        """Return the names of modules to compile for *arch*, in the list's order.

        Args:
            arch: the card's architecture, such as ``12.1a``.
            recipes: take what these need; with neither recipes nor modules, what any recipe needs.
            modules: take these besides.
            stated: leave out what has no generator, and so cannot be compiled ahead of time.

        Raises:
            UnknownNameError: there is no such recipe or module, or a named module is not for *arch* or has no
                generator.
        """
        recipes, modules = list(recipes), list(modules)
        if not recipes and not modules:
            recipes = list(self.recipes)
        wanted = {name for recipe in recipes for name in self._needed(recipe)}
        for name in modules:
            self._require(name, arch)
        return [
            name
            for name, module in self.modules.items()
            if name in modules
            or (name in wanted and module.is_for(arch) and (module.generator or not stated))
        ]

    def _require(self, name: str, arch: str) -> None:
        module = named(self.modules, name, "modules of FlashInfer")
        if not module.is_for(arch):
            raise UnknownNameError(
                f"{name} is not for {arch}",
                because=f"the list has it for {', '.join(module.arches)}",
                next_step="leave it out, or choose another architecture",
            )
        if not module.generator:
            raise UnknownNameError(
                f"{name} cannot be compiled ahead of time",
                because=f"the list has no generator for it: {module.why}",
                next_step="leave it out: FlashInfer compiles it when it is first used",
            )

    def _needed(self, recipe: str) -> tuple[str, ...]:
        every = self.recipes.get("*", ())
        return every + (() if recipe == "*" else self.recipes.get(recipe, ()))


def load_companion(path: Path) -> CompanionSpec:
    """Return the list in the file at *path*.

    Raises:
        ConfigError: there is none, or it does not match the format.
        UnknownNameError: a recipe names a module that the list lacks.
    """
    spec = load_toml(path, CompanionSpec, newest_format=COMPANION_FORMAT)
    for recipe, wanted in spec.recipes.items():
        if lost := [name for name in wanted if name not in spec.modules]:
            raise UnknownNameError(
                f"{path.name} is incomplete",
                because=f"the recipe {recipe} names {', '.join(lost)}, which is no module of it",
                next_step="add the module, or take the name out",
            )
    return spec
