"""The list of a series' FlashInfer kernels, and which of them the server of a recipe asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, field, structs

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError, unknown_name
from sparkwright.lock.model import Package
from sparkwright.recipes.recipe import Recipe, recipes

COMPANION_FORMAT = 1

Argument = str | int | bool


class ModuleCost(Model, frozen=True):
    """The CPU time and memory of compiling a module, unit by unit.

    Attributes:
        units: number of its units.
        measured: number of those that were measured; the others are taken to be like them, and where none
            was, like those of another module.
        seconds: CPU time of a unit, the mean.
        mib: peak memory of the largest unit.
        shapes: names of the modules that were measured, where the entry stands for one of each shape; of the
            others no unit was.
    """

    units: int
    measured: int
    seconds: float
    mib: int
    shapes: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """CPU time of all units in minutes."""
        return self.units * self.seconds / 60


class KernelModule(Model, frozen=True):
    """One library of FlashInfer, as one of its generators makes it.

    Attributes:
        generator: the function that describes it, ``module:function``; empty where arguments are not known:
            recipes need it, and no companion has it.
        arguments: its arguments; a text that starts with ``torch.`` is a dtype.
        arches: the architectures that it is for, such as ``12.1a``; every one if there are none.
        cost: what it took to compile; `None` where it was never compiled.
    """

    why: Annotated[str, Meta(min_length=1)]
    generator: Annotated[str, Meta(pattern=r"^([\w.]+:\w+)?\Z")] = ""
    arguments: dict[str, Argument] = field(default_factory=dict)
    arches: tuple[str, ...] = ()
    cost: ModuleCost | None = None

    def is_for(self, arch: str) -> bool:
        """Tell if the module can be compiled for *arch*."""
        return not self.arches or arch in self.arches


class ModelShape(Model, frozen=True):
    """The values of a checkpoint's configuration that decide which kernels its server calls.

    Attributes:
        experts: it is a mixture of experts.
        head: elements of a head of its attention; 0 where that is never FlashInfer's, as of MLA.
        queries: heads of queries for each head of keys.
        page: tokens of a page of its cache as vLLM gives it to FlashInfer; 0 where that is not known.
        needs: names of further modules that it needs where its attention is FlashInfer's.
    """

    experts: bool = False
    head: int = 0
    queries: int = 0
    page: int = 0
    needs: tuple[str, ...] = ()


class DrafterShape(Model, frozen=True):
    """The same of a drafter.

    Attributes:
        steps: whether the target verifies 1 to 1 + K tokens by kernels of its own shape.
        needs: names of modules of its own attention, where that of the target is FlashInfer's.
    """

    steps: bool = True
    needs: tuple[str, ...] = ()


_Shape = TypeVar("_Shape", ModelShape, DrafterShape)


class Needs(Model, frozen=True):
    """Names of modules by what calls them; ``{cache}``, ``{head}`` and the like are filled in.

    Attributes:
        every: sampling, of every server.
        linear: layers of NVFP4 weights.
        experts: experts of NVFP4 weights, where the recipe names no other backend for them.
        attention: FlashInfer's attention, by type of the cache.
    """

    every: tuple[str, ...]
    linear: tuple[str, ...]
    experts: tuple[str, ...]
    attention: dict[str, tuple[str, ...]]


class CompanionSpec(Model, frozen=True):
    """The kernels of a series.

    Attributes:
        flashinfer: the wheel ``flashinfer-python`` of the series; it has generators and sources.
        tvm_ffi: the wheel ``apache-tvm-ffi`` by machine: headers, and the library that kernels call.
        paths: folders below ``flashinfer/data`` that hold the sources.
        leave_out: folders below these that no module of the list reads.
        imports: small wheels that FlashInfer imports and the environment for probes lacks.
        headers: wheels of CUDA's headers, below ``include``, that the lock's toolkit lacks.
        modules: modules by name; one with braces in its name stands for one of each shape.
        needs: which of them a server asks for.
        models: shapes by a part of the checkpoint's name in lower case, the longest that fits.
        drafters: the same of drafters.
        series: the list's own, whose recipes are served; by the name of its file.
    """

    format: int
    flashinfer: Package
    tvm_ffi: dict[str, Package]
    paths: tuple[str, ...]
    modules: dict[str, KernelModule]
    needs: Needs
    models: dict[str, ModelShape] = field(default_factory=dict)
    drafters: dict[str, DrafterShape] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    imports: tuple[Package, ...] = ()
    headers: tuple[Package, ...] = ()
    series: str = ""

    @property
    def version(self) -> str:
        """The version of FlashInfer."""
        return self.flashinfer.version

    def tvm_ffi_for(self, machine: str) -> Package:
        """Return the wheel of ``apache-tvm-ffi`` for *machine*.

        Raises:
            UnknownNameError: the list names none.
        """
        if machine not in self.tvm_ffi:
            raise unknown_name("apache-tvm-ffi in the list for the machine", machine, sorted(self.tvm_ffi))
        return self.tvm_ffi[machine]

    def served(self) -> dict[str, Recipe]:
        """Return the recipes that ship for the series and whose models are known, by name."""
        return {
            name: recipe
            for name, recipe in recipes().items()
            if self.series in recipe.series and self.knows(recipe)
        }

    def knows(self, recipe: Recipe) -> bool:
        """Tell if the model of *recipe* is known, so that `needed` has all that its server asks for."""
        return _of(self.models, recipe.model) is not None

    def needed(self, arch: str, recipe: Recipe | None) -> dict[str, KernelModule]:
        """Return what the server of *recipe* asks for on *arch*, with what has no generator, by name.

        `None` stands for a recipe of which nothing is known.
        """
        found = {name: self.modules[name] for name in self.needs.every}
        if recipe is not None:
            found |= self._called(recipe)
        return {name: module for name, module in found.items() if module.is_for(arch)}

    def chosen(
        self, arch: str, *, served: Iterable[Recipe] = (), names: Iterable[str] = (), stated: bool = True
    ) -> dict[str, KernelModule]:
        """Return the modules to compile for *arch*, by name.

        Args:
            arch: the card's architecture, such as ``12.1a``.
            served: take what these recipes need; without them and names, what any recipe of the series does.
            names: take these modules besides.
            stated: leave out what has no generator, and so cannot be compiled ahead of time.

        Raises:
            UnknownNameError: a named module is in no list, not for *arch*, or has no generator.
        """
        asked = {name: self._named(name) for name in names}
        served = list(served) or ([] if asked else self.served().values())
        found: dict[str, KernelModule] = {}
        for recipe in served:
            found |= self.needed(arch, recipe)
        for name, module in asked.items():
            _require(name, module, arch)
        return {name: one for name, one in (found | asked).items() if one.generator or not stated}

    def _called(self, recipe: Recipe) -> dict[str, KernelModule]:
        """Return the modules that the server of *recipe* calls and others do not."""
        model = _of(self.models, recipe.model) or ModelShape()
        found: dict[str, KernelModule] = {}

        def call(names: Iterable[str], **shape: object) -> None:
            for name in names:
                filled = name.format(**shape)
                found[filled] = _filled(self.modules[name], filled, shape)

        if _precision(recipe) == "nvfp4":
            call(self.needs.linear)
            if model.experts and "moe-backend" not in recipe.flags:
                call(self.needs.experts)
        cache = str(recipe.flags.get("kv-cache-dtype", ""))
        cache = "fp8" if cache.startswith("fp8") else cache
        named_elsewhere = recipe.flags.get("attention-backend", "FLASHINFER") != "FLASHINFER"
        if named_elsewhere or not model.head or cache not in self.needs.attention:
            return found
        shape = structs.asdict(model)
        drafter = _of(self.drafters, recipe.drafter) or DrafterShape()
        drafts = int(recipe.speculative.get("num_speculative_tokens", 0)) if drafter.steps else 0
        for name in self.needs.attention[cache]:
            if "{tokens}" not in name:
                call([name], **shape)
            elif model.page:
                for tokens in range(1, drafts + 2):
                    call([name], **shape, tokens=tokens)
        call([*model.needs, *drafter.needs])
        return found

    def _named(self, name: str) -> KernelModule:
        """Return the module *name*, of the list or of a shape that a recipe of the series has."""
        known = {name: module for name, module in self.modules.items() if "{" not in name}
        for recipe in self.served().values():
            known |= self._called(recipe)
        if name not in known:
            raise unknown_name("FlashInfer module in the list", name, sorted(known))
        return known[name]


def _filled(module: KernelModule, name: str, shape: Mapping[str, Any]) -> KernelModule:
    """Return *module* as *name*, with *shape* in place of its arguments in braces."""
    arguments = {
        key: shape[value[1:-1]] if isinstance(value, str) and value.startswith("{") else value
        for key, value in module.arguments.items()
    }
    cost = module.cost
    if cost is not None and cost.shapes and name not in cost.shapes:
        cost = structs.replace(cost, measured=0)
    return structs.replace(module, arguments=arguments, why=module.why.format(**shape), cost=cost)


def _require(name: str, module: KernelModule, arch: str) -> None:
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


def _of(shapes: Mapping[str, _Shape], checkpoint: str) -> _Shape | None:
    """Return the shape whose part of a checkpoint's name is the longest in that of *checkpoint*."""
    name = checkpoint.rpartition("/")[2].lower()
    return shapes.get(max((part for part in shapes if part in name), key=len, default=""))


def _precision(recipe: Recipe) -> str:
    """Return the precision of the weights, by the recipe or by the checkpoint's name."""
    if recipe.about is not None:
        return recipe.about.precision
    return "nvfp4" if "nvfp4" in recipe.model.lower() else ""


def load_companion(path: Path) -> CompanionSpec:
    """Return the list in the file at *path*, whose name is that of its series.

    Raises:
        ConfigError: there is none, or it does not match the format.
        UnknownNameError: something needs a module that the list lacks.
    """
    spec = load_toml(path, CompanionSpec, newest_format=COMPANION_FORMAT)
    needs = spec.needs
    wanted = [*needs.every, *needs.linear, *needs.experts]
    wanted += [name for names in needs.attention.values() for name in names]
    shapes: list[ModelShape | DrafterShape] = [*spec.models.values(), *spec.drafters.values()]
    wanted += [name for shape in shapes for name in shape.needs]
    if lost := [name for name in wanted if name not in spec.modules]:
        raise UnknownNameError(
            f"{path.name} is incomplete",
            because=f"it needs {', '.join(lost)}, which is no module of it",
            next_step="add the module, or take the name out",
        )
    return structs.replace(spec, series=path.stem)
