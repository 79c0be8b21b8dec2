"""A recipe for a server: a model, a drafter, flags and environment, as TOML."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import field

from sparkwright.base.config import Model, load_toml, to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import ConfigError, unknown_name
from sparkwright.recipes.evidence import Evidence, Grade, best_grade
from sparkwright.recipes.shared import reasons, shared_note, use_title

FORMAT = 1
TINY = "tiny:"  # begins what stands for a generated model: "tiny:target", "tiny:drafter"
REHEARSAL = "rehearsal:"  # begins what stands for a model of rehearsals, which the store holds
_SHIPPED = Path(__file__).with_name("shipped")
# Variables that have a program load code, sparkwright's own children too; those after ?! only set its ways.
_LOADS_CODE = re.compile(r"LD_|PATH$|PYTHON(?!DONTWRITEBYTECODE$|HASHSEED$|UNBUFFERED$)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_USE = "single"
PORT = 8000
"""The port of ``vllm serve``."""
SERVED_NAMES = "served-model-name"
"""The flag with the names by which clients can ask for the model."""
RESERVED = frozenset({"host", "port", "speculative-config", "model", "api-key"})
"""Flags that are decided when a server is started."""

Runner = Literal["", "v1", "v2"]
UseName = Literal["single", "shared", "many"]


class Use(Model, frozen=True):
    """One way to use a server, as changes of its recipe.

    Attributes:
        title: for people; the shared one of its name by default.
        flags: flags in place of the recipe's, or on top of them.
        speculative: the same for the speculative configuration.
        speculation: draft tokens; without it, the recipe's drafter and its configuration are left out.
        why: reasons, as in `Recipe`.
    """

    title: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    speculation: bool = True
    why: dict[str, str] = field(default_factory=dict)


class About(Model, frozen=True):
    """Facts of a model that its checkpoint's page states; unknown ones are empty.

    Attributes:
        precision: of the weights: ``nvfp4``, ``mxfp4``, ``fp8``, ``int4`` or ``bf16``.
        parameters: all of them, such as ``27B``.
    """

    precision: Literal["nvfp4", "mxfp4", "fp8", "int4", "bf16"]
    parameters: str = ""
    page: str = ""


class Recipe(Model, frozen=True):
    """The options of a server.

    Attributes:
        name: short, unique; also the served model name.
        model: a Hugging Face id, a folder, or ``tiny:target`` for the generated one.
        drafter: the same, or empty where the target drafts for itself or nothing drafts.
        flags: flags of ``vllm serve`` without their dashes; `True` and `False` become ``--x`` and ``--no-x``,
            tables become JSON.
        speculative: keys of ``--speculative-config`` as vLLM spells them, without the drafter's path.
        weights: quantization of the checkpoint, in vLLM's words (``modelopt``, ``compressed-tensors``),
            ``none``, or empty where unknown.
        traits: properties of the model that decide which options it takes.
        capability: compute capability of the intended card, such as ``12.1``; empty for any.
        profile: sizes in place of the profile's own, by their names there.
        uses: ways to use the server: for one user (``single``), for about 16 (``shared``) or 64 (``many``)
            requests at a time.
        nodes: machines that serve together; the tensor-parallel size is a flag.
        series: lines of releases that it is meant for, such as ``0.33``; any if empty.
        about: facts of the model, for people.
        why: reason of each flag by its name, of keys of the speculative configuration as
            ``speculative.KEY``, and of variables by their names; the shared ones where it states none.
        evidence: where and by whom it was served; none: it was never seen served.
        notes: its own known failures and limits, for people; `limits` has all.
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
    uses: dict[UseName, Use] = field(default_factory=dict)
    nodes: Literal[1, 2] = 1
    series: tuple[str, ...] = ()
    about: About | None = None
    why: dict[str, str] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    reference: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def grade(self) -> Grade:
        """Return the best grade of evidence of this configuration; ``never`` without any."""
        return best_grade([one for one in self.evidence if not one.differs])

    @property
    def near_grade(self) -> Grade:
        """Return the best grade of evidence of a configuration that differs; ``never`` without any."""
        return best_grade([one for one in self.evidence if one.differs])

    @property
    def standing(self) -> str:
        """Return the grade in a word or two: ``A``, ``near A`` or ``never``."""
        near = f"near {self.near_grade}" if self.near_grade != "never" else "never"
        return self.grade if self.grade != "never" else near

    @property
    def limits(self) -> tuple[str, ...]:
        """Return its notes, behind those that hold for every recipe of its kind."""
        cached = self.flags.get("enable-prefix-caching") is not False
        hybrid = "hybrid" in self.traits and bool(self.speculative) and cached
        block = self.speculative.get("method") == "dspark" or "DFlash2" in self.drafter
        garbage = block and cached and bool(self.speculative)
        known = [
            name for name, holds in (("hybrid-drafts", hybrid), ("garbage-after-hits", garbage)) if holds
        ]
        return (*map(shared_note, known), *self.notes)

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return the names by which clients can ask for the model; answers state the first.

        Raises:
            ConfigError: one of them is no word.
        """
        stated = self.flags.get(SERVED_NAMES)
        if stated is None:
            return (self.name,)
        names = stated if isinstance(stated, list) else [stated]
        for name in names or [""]:
            if isinstance(name, bool) or not re.fullmatch(r"(?!-)[!-~]+", str(name)):
                raise ConfigError(
                    f"{name!r} cannot be the name of a served model",
                    because="clients ask for a word of plain ASCII that does not begin with a dash",
                    next_step="give another name: --set served-model-name=NAME",
                )
        return tuple(map(str, names))

    @property
    def made_up(self) -> bool:
        """True if the weights are made up: generated, or vLLM's dummies."""
        return self.model.startswith(TINY) or self.flags.get("load-format") == "dummy"


def recipes() -> Mapping[str, Recipe]:
    """Return the recipes that ship, by name."""
    found = (_load(path) for path in sorted(_SHIPPED.glob("*.toml")))
    return {recipe.name: recipe for recipe in found}


def shipped_path(name: str) -> Path:
    """Return the file of the recipe *name* that ships."""
    return _SHIPPED / f"{name}.toml"


def load_recipe(name_or_path: str | Path, use: str = "") -> Recipe:
    """Return a recipe that ships, by its name, or one of the user's, by its path.

    Raises:
        UnknownNameError: there is neither such a name nor such a file, or the recipe has no such use.
        ConfigError: the file does not follow its format.
    """
    recipe = _load(recipe_path(name_or_path))
    return apply_use(recipe, use) if use else recipe


def served_recipe(name_or_path: str | Path, use: str = "") -> Recipe:
    """Return a recipe as it is served: by *use*, and by default by the use for one user, if it has that.

    Raises:
        UnknownNameError: there is neither such a name nor such a file, or the recipe has no such use.
        ConfigError: the file does not follow its format.
    """
    recipe = load_recipe(name_or_path, use)
    return recipe if use or _DEFAULT_USE not in recipe.uses else apply_use(recipe, _DEFAULT_USE)


def recipe_path(name_or_path: str | Path) -> Path:
    """Return the file of a recipe that ships, by its name, or of one of the user's, by its path.

    Raises:
        UnknownNameError: there is neither such a name nor such a file.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" and os.path.lexists(path):
        return path
    shipped = {found.stem: found for found in sorted(_SHIPPED.glob("*.toml"))}
    if str(name_or_path) not in shipped:
        step = "name one of 'sparkwright recipe list', or give the path of a TOML file that exists"
        raise unknown_name("recipe", str(name_or_path), list(shipped), step)
    return shipped[str(name_or_path)]


def _load(path: Path) -> Recipe:
    recipe = load_toml(path, Recipe, newest_format=FORMAT)
    uses = {
        name: msgspec.structs.replace(use, title=use.title or use_title(name), **_complete(path, use, name))
        for name, use in recipe.uses.items()
    }
    _require_plain(path, recipe)
    return msgspec.structs.replace(recipe, uses=uses, **_complete(path, recipe))


def _complete(path: Path, one: Recipe | Use, use: str = "") -> dict[str, Any]:
    """Return flags as ``vllm serve`` spells them, and the reasons with the shared ones."""
    flags = _checked(path, one.flags, one.speculative)
    drafts = {f"speculative.{key}": value for key, value in one.speculative.items()}
    return {"flags": flags, "why": reasons({**flags, **drafts, **one.environment}, one.why, use)}


def _checked(path: Path, flags: dict[str, Any], speculative: dict[str, Any]) -> dict[str, Any]:
    """Return *flags* with dashes; refuse those that are decided when the server is started."""
    spelled = {name.replace("_", "-"): value for name, value in flags.items()}
    if reserved := sorted(spelled.keys() & RESERVED):
        raise ConfigError(
            f"{path} does not follow its format",
            because=f"{', '.join(reserved)} cannot be a flag: it is decided when the server is started",
            next_step="use the recipe's own keys model, drafter and speculative; ports are chosen",
        )
    if "model" in speculative:
        raise ConfigError(
            f"{path} does not follow its format",
            because="speculative.model is the recipe's own key `drafter`",
            next_step="move it there",
        )
    try:
        to_json([flags, speculative])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} does not follow its format",
            because="the value of a flag is a date, or is not finite",
            next_step="write it in quotes",
        ) from error
    return spelled


def refused_variable(name: str) -> bool:
    """Tell if a recipe cannot hold the variable: programs load code by it, or it is no name."""
    return bool(_LOADS_CODE.match(name)) or not _VARIABLE.fullmatch(name)


def _require_plain(path: Path, recipe: Recipe) -> None:
    """Refuse variables that have programs load code, and models that would be read as options.

    Raises:
        ConfigError: there is one.
    """
    variables = [recipe.environment, *(use.environment for use in recipe.uses.values())]
    names = {name for one in variables for name in one}
    refused = [name for name in sorted(names) if refused_variable(name)]
    if refused:
        raise ConfigError(
            f"{path} does not follow its format",
            because=f"{', '.join(map(repr, refused))} cannot be a variable: LD_*, PATH and PYTHON* have "
            "every program load code",
            next_step="leave it out; if you need it, set it in the shell that starts the server",
        )
    for model in (recipe.model, recipe.drafter):
        if model.startswith("-"):
            raise ConfigError(
                f"{path} does not follow its format",
                because=f"the model {model!r} would be read as an option",
                next_step="name a Hugging Face id or a folder",
            )


def apply_use(recipe: Recipe, name: str) -> Recipe:
    """Return *recipe* with the flags, variables and speculation of its use *name*.

    Raises:
        UnknownNameError: it has no such use.
    """
    use = next((found for known, found in recipe.uses.items() if known == name), None)
    if use is None:
        raise unknown_name(f"use of the recipe {recipe.name}", name, list(recipe.uses))
    return msgspec.structs.replace(
        recipe,
        title=f"{recipe.title}; {use.title}",
        flags={**recipe.flags, **use.flags},
        environment={**recipe.environment, **use.environment},
        speculative={**recipe.speculative, **use.speculative} if use.speculation else {},
        drafter=recipe.drafter if use.speculation else "",
        why={name: why for name, why in {**recipe.why, **use.why}.items() if _counts(name, use)},
    )


def _counts(reason: str, use: Use) -> bool:
    """Tell if the option that *reason* names is left in a recipe with *use*."""
    return use.speculation or reason.partition(".")[0] != "speculative"


def node_arguments(rank: int, address: str) -> tuple[str, ...]:
    """Return the arguments that `serve_arguments` needs besides on each of two machines.

    *rank* is 0 for the machine that answers requests, whose *address* on the shared network it is.
    """
    behind = ("--headless",) if rank else ()
    return ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", address, *behind)


def serve_arguments(recipe: Recipe, *, host: str, port: int) -> tuple[str, ...]:
    """Return the arguments of ``vllm`` that serve *recipe* at *host* and *port*, from ``serve`` on."""
    arguments = ["serve", recipe.model]
    decided = {SERVED_NAMES: list(recipe.served_names), "host": host, "port": port}
    for name, value in {**decided, **recipe.flags}.items():
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


def command_lines(recipe: Recipe) -> list[str]:
    """Return the command that serves *recipe*, with its variables, one option a line: one for each machine.

    The address of the first of several machines is left to the reader.
    """
    words = serve_arguments(recipe, host="0.0.0.0", port=PORT)  # noqa: S104 - shown, not bound
    lines = [[f"{name}={shlex.quote(value)}" for name, value in recipe.environment.items()]]
    lines[0] += ["vllm", *words[:2]]
    for word in words[2:]:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    alone = " \\\n  ".join(map(" ".join, lines))
    if recipe.nodes == 1:
        return [alone]
    nodes = [" ".join(node_arguments(rank, '"$HEAD_ADDRESS"')) for rank in range(recipe.nodes)]
    return [f"{alone} \\\n  {node}" for node in nodes]


# Writing -------------------------------------------------------------------------------------------------


def recipe_text(recipe: Recipe, comment: str = "") -> str:
    """Return the text of *recipe* as a file of its own, without fields that have their defaults.

    It begins with *comment*, lines without ``#``.

    Raises:
        ConfigError: the result is no recipe.
    """
    import tomlkit

    document = tomlkit.document()
    for line in comment.splitlines():
        document.add(tomlkit.comment(line))
    usual = to_builtins(Recipe(format=recipe.format, name="", title="", model=""))
    told = {name: value for name, value in to_builtins(recipe).items() if value != usual.get(name)}
    plain = {"format": recipe.format, **told}
    for name, value in sorted(plain.items(), key=lambda one: _is_table(one[1])):
        document.add(name, tomlkit.item(_without_empty(value)))
    text = tomlkit.dumps(document)
    with tempfile.TemporaryDirectory() as folder:  # it follows the format, or is refused
        written = Path(folder) / f"{recipe.name}.toml"
        written.write_text(text, encoding="utf-8")
        _ = load_recipe(written)
    return text


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _without_empty(value: Any) -> Any:
    """Return *value* without absent values, for which TOML has no word."""
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if not isinstance(value, list | tuple):
        return value
    if None in value:
        raise ConfigError(
            "a list with null cannot be in a recipe",
            because=f"TOML has no word for it: {value!r}",
            next_step="leave the option out, or give it at each start with --set",
        )
    return [_without_empty(one) for one in value]
