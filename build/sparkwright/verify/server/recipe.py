"""What is served, and how: a model, a drafter, flags and environment, as TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import field

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
TINY = "tiny:"  # begins what stands for a generated model: "tiny:target", "tiny:drafter"
_SHIPPED = Path(__file__).parents[1] / "recipes"
_OURS = frozenset({"host", "port", "served-model-name", "speculative-config", "model", "api-key"})

Runner = Literal["", "v1", "v2"]


class Recipe(Model, frozen=True):
    """How a server is started.

    Attributes:
        format: of this file.
        name: short, unique; it is also the name under which the model is served.
        title: for people.
        model: a Hugging Face id, a folder, or ``tiny:target`` for the generated one.
        drafter: the same, or empty where the target drafts for itself or nothing drafts.
        flags: of ``vllm serve`` without their dashes; `True` and `False` become ``--x`` and ``--no-x``,
            tables become JSON.
        environment: variables that the server gets on top of ours.
        speculative: keys of ``--speculative-config`` as vLLM spells them, but for the drafter's place.
        weights: how the checkpoint is quantized, in vLLM's words (``modelopt``, ``compressed-tensors``),
            ``none``, or empty where unknown.
        traits: what the model is that decides which options it takes.
        capability: of the card that it is made for, such as ``12.1``; empty for any.
        profile: sizes that this recipe asks for instead of the profile's own, by their names there.
        band: key of the reference band, or empty.
    """

    format: int
    name: str
    title: str
    model: str
    drafter: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    weights: str = ""
    traits: tuple[Literal["hybrid", "tied-embeddings", "mla"], ...] = ()
    capability: str = ""
    profile: dict[str, Any] = field(default_factory=dict)
    band: str = ""


def recipes() -> Mapping[str, Recipe]:
    """The recipes that ship, by name."""
    found = (_load(path) for path in sorted(_SHIPPED.glob("*.toml")))
    return {recipe.name: recipe for recipe in found}


def load_recipe(name_or_path: str | Path) -> Recipe:
    """A recipe that ships, by its name, or one of the user's, by its path.

    Raises:
        UnknownNameError: there is neither such a name nor such a file.
        ConfigError: the file does not say what its format asks for.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.exists():
        return _load(path)
    shipped = recipes()
    if str(name_or_path) not in shipped:
        raise UnknownNameError(
            f"there is no recipe {str(name_or_path)!r}",
            because=f"those that ship are {', '.join(shipped)}, and no such TOML file exists",
            next_step="name one of these, or give the path of a TOML file",
        )
    return shipped[str(name_or_path)]


def _load(path: Path) -> Recipe:
    recipe = load_toml(path, Recipe, newest_format=FORMAT)
    flags = {name.replace("_", "-"): value for name, value in recipe.flags.items()}
    if ours := sorted(flags.keys() & _OURS):
        raise ConfigError(
            f"{path} is not as its format asks",
            because=f"{', '.join(ours)} cannot be a flag: it is decided when the server is started",
            next_step="use the recipe's own keys model, drafter and speculative; ports are chosen",
        )
    if "model" in recipe.speculative:
        raise ConfigError(
            f"{path} is not as its format asks",
            because="speculative.model is the recipe's own key `drafter`",
            next_step="move it there",
        )
    return msgspec.structs.replace(recipe, flags=flags)


def variant(
    recipe: Recipe,
    *,
    runner: Runner = "",
    eager: bool | None = None,
    speculation: bool = True,
    model: str = "",
    drafter: str = "",
) -> Recipe:
    """The same recipe with another model runner, graphs or none, no speculation, or other models.

    Args:
        recipe: what to change.
        runner: the model runner to force; empty leaves it to vLLM.
        eager: without CUDA graphs, with them, or as the recipe has it.
        speculation: whether anything is drafted; without it, what is served is the baseline.
        model: another model.
        drafter: another drafter.
    """
    flags, environment = dict(recipe.flags), dict(recipe.environment)
    if runner:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    if eager is not None:
        flags["enforce-eager"] = eager
    return msgspec.structs.replace(
        recipe,
        flags=flags,
        environment=environment,
        model=model or recipe.model,
        drafter=(drafter or recipe.drafter) if speculation else "",
        speculative=recipe.speculative if speculation else {},
    )


def serve_arguments(recipe: Recipe, *, host: str, port: int) -> tuple[str, ...]:
    """Arguments of ``vllm`` that serve *recipe* at *host* and *port*, from ``serve`` on."""
    arguments = ["serve", recipe.model, "--served-model-name", recipe.name]
    arguments += ["--host", host, "--port", str(port)]
    for name, value in recipe.flags.items():
        arguments += _flag(name, value)
    if recipe.speculative:
        drafter = {"model": recipe.drafter} if recipe.drafter else {}
        arguments += ["--speculative-config", json.dumps({**recipe.speculative, **drafter})]
    return tuple(arguments)


def _flag(name: str, value: Any) -> list[str]:
    match value:
        case bool():
            return [f"--{name}" if value else f"--no-{name}"]
        case list():
            return [f"--{name}", *map(str, value)]
        case dict():
            return [f"--{name}", json.dumps(value)]
        case _:
            return [f"--{name}", str(value)]
