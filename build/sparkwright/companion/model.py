"""The list of a series' FlashInfer kernels: which there are, and which of them a recipe needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError
from sparkwright.lock.native import Package, named

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COMPANION_FORMAT = 1

Argument = str | int | bool


class KernelModule(Model, frozen=True):
    """One library of FlashInfer, as one of its generators makes it.

    Attributes:
        generator: the function that describes it, ``module:function``.
        arguments: its arguments; a text that starts with ``torch.`` is a dtype.
        arches: the architectures that it is for, such as ``12.1a``; every one if there are none.
        why: what calls it.
    """

    generator: Annotated[str, Meta(pattern=r"^[\w.]+:\w+\Z")]
    why: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Argument] = field(default_factory=dict)
    arches: tuple[str, ...] = ()

    def is_for(self, arch: str) -> bool:
        """Tell if the module can be compiled for *arch*."""
        return not self.arches or arch in self.arches


class CompanionSpec(Model, frozen=True):
    """The kernels of a series.

    Attributes:
        format: version of the file's format.
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

    def chosen(self, arch: str, *, recipes: Iterable[str] = (), modules: Iterable[str] = ()) -> list[str]:
        """Return the names of modules to compile for *arch*, in the list's order.

        Args:
            arch: the card's architecture, such as ``12.1a``.
            recipes: take what these need; with neither recipes nor modules, what any recipe needs.
            modules: take these besides.

        Raises:
            UnknownNameError: there is no such recipe or module, or a named module is not for *arch*.
        """
        recipes, modules = list(recipes), list(modules)
        if not recipes and not modules:
            recipes = list(self.recipes)
        wanted = {name for recipe in recipes for name in self._needed(recipe)}
        for name in modules:
            if not named(self.modules, name, "modules of FlashInfer").is_for(arch):
                raise UnknownNameError(
                    f"{name} is not for {arch}",
                    because=f"the list has it for {', '.join(self.modules[name].arches)}",
                    next_step="leave it out, or choose another architecture",
                )
        fitting = {name for name in wanted if self.modules[name].is_for(arch)}
        return [name for name in self.modules if name in fitting or name in modules]

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
