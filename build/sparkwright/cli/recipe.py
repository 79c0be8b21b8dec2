"""``sparkwright recipe``: list, show, check and write recipes of servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from sparkwright.base.config import decode_json, to_builtins
from sparkwright.base.errors import ConfigError, IncompatibleOptionsError
from sparkwright.cli.command import Group, Part, Result, Table, takes, taking
from sparkwright.cli.options import PATH_TYPE
from sparkwright.cli.output import printable
from sparkwright.cli.session import Session, run_in_session
from sparkwright.engine.release import CheckedRecipe, check_recipes
from sparkwright.recipes.commands import Remark
from sparkwright.recipes.evidence import GRADES, references
from sparkwright.recipes.imported import import_recipe, without_dead
from sparkwright.recipes.recipe import Recipe, command_lines, load_recipe, recipe_text, recipes, served_recipe
from sparkwright.serve.new_recipe import new_recipe, without_unknown_parsers

_USES = ("single", "shared", "many")
_USE = click.option("--use", type=click.Choice(_USES), default=None, help="A use of it; single by default.")


@click.group("recipe", cls=Group)
def command() -> None:
    """List, show, check and write recipes of servers."""


@command.command("list")
def list_() -> Result:
    """List the recipes that ship, with what is known of each."""
    rows = [_row(recipe) for recipe in recipes().values()]
    shown = ("name", "drafts", "kv", "nodes", "evidence")  # the rest would not fit into 80 columns
    return Result(
        rows,
        [
            Table.of(rows, {key: key for key in shown}),
            "more: sparkwright recipe show NAME; what a grade means: docs/recipes.md",
        ],
    )


def _row(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "model": recipe.model,
        "drafter": recipe.drafter,
        "drafts": str(recipe.speculative.get("method", "")),
        "kv": str(recipe.flags.get("kv-cache-dtype", "auto")),
        "nodes": recipe.nodes,
        "uses": list(recipe.uses),
        "series": list(recipe.series),
        "evidence": recipe.standing,
        "capability": recipe.capability,
    }


@command.command("show")
@click.argument("name")
@_USE
@click.option("--command", "alone", is_flag=True, help="Print the command that serves it alone.")
def show(*, name: str, use: str | None, alone: bool) -> Result:
    """Show the effective flags of the recipe NAME, a name or a file, each with its reason."""
    recipe = served_recipe(name, use or "")
    commands = command_lines(recipe)
    known = {"notes": recipe.limits, "standing": recipe.standing, "command": commands}
    rows = [(f"--{flag}", _shown(value), recipe.why.get(flag, "")) for flag, value in recipe.flags.items()]
    rows += [
        (f"speculative {key}", _shown(value), recipe.why.get(f"speculative.{key}", ""))
        for key, value in recipe.speculative.items()
    ]
    rows += [(key, value, recipe.why.get(key, "")) for key, value in recipe.environment.items()]
    parts: list[Part] = [
        f"{recipe.name}: {recipe.title}",
        ("model", recipe.model),
        ("drafter", recipe.drafter),
        ("nodes", recipe.nodes),
        ("series", ", ".join(recipe.series) or "any"),
        ("uses", ", ".join(recipe.uses) or "none"),
        ("evidence", _evidence(recipe)),
        Table(("option", "value", "because"), rows),
        *_known(recipe),
    ]
    return Result({**to_builtins(recipe), **known}, list(commands) if alone else parts)


def _evidence(recipe: Recipe) -> str:
    if recipe.grade == "never" and recipe.near_grade != "never":
        return f"{GRADES['never']}; the nearest: {recipe.near_grade}, {GRADES[recipe.near_grade]}"
    return f"{recipe.grade}, {GRADES[recipe.grade]}"


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _known(recipe: Recipe) -> Iterator[Part]:
    """Yield notes, evidence and published figures."""
    yield from (("note", note) for note in recipe.limits)
    for one in recipe.evidence:
        differs = f"; there: {one.differs}" if one.differs else ""
        yield "seen", f"{one.grade}: {one.where}, by {one.by} {one.date} {one.source}{differs}"
    yield from (("figures", f"{one.grade}: {one}") for one in references(recipe.name, recipe.reference))


@command.command("check")
@click.argument("names", nargs=-1)
@takes("series")
@run_in_session
def check(session: Session, *, names: tuple[str, ...], series: str) -> Result:
    """Check recipes by the own parser of each series' release, with its carries.

    Parses the command line of every recipe, by each of its uses, and looks up its flags, values, speculative
    keys and variables there. Without NAMES, all that ship; without --series, by all that a recipe is for. The
    first check of a series takes a minute.
    """
    found = [load_recipe(name) for name in names] if names else list(recipes().values())
    results = _checked(session, found, series)
    rows = [
        (one.recipe, one.use or "-", one.series, one.version, "fail" if one.refused else "pass",
         "; ".join(map(str, [*one.problems, *one.rules])))
        for one in results
    ]  # fmt: skip
    failure = None
    if refused := [one for one in results if one.refused]:
        failure = IncompatibleOptionsError(
            f"{len(refused)} of {len(results)} checks found options that do not work",
            because="\n".join(f"{one.title}: {problem}" for one in refused for problem in one.refused),
            next_step="change the recipe, or name in its `series` the releases that it is for",
        )
    table = Table(("recipe", "use", "series", "vllm", "verdict", "because"), rows)
    return Result(list(map(_described, results)), [table], failure)


def _checked(session: Session, found: Sequence[Recipe], series: str) -> Sequence[CheckedRecipe]:
    checkout, store, repository = session.checkout, session.store, session.repository
    return check_recipes(checkout, store, repository, found, series, offline=session.offline)


def _described(result: CheckedRecipe) -> dict[str, Any]:
    told = [{**to_builtins(one), "instead": one.instead, "refuses": one.refuses} for one in result.problems]
    return {**asdict(result), "problems": told}


@command.command("new")
@click.argument("model")
@click.option("--name", default="", help="The recipe's name; the model's by default.")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="A flag; may be repeated.")
@click.option(
    "--speculative", default="", metavar="JSON", help="As of --speculative-config: method, model, …"
)
@click.option("--out", type=PATH_TYPE, help="The file; NAME.toml by default.")
@taking("series")
@run_in_session
def new(
    session: Session,
    *,
    model: str,
    name: str,
    settings: tuple[str, ...],
    speculative: str,
    out: Path | None,
) -> Result:
    """Write a recipe of MODEL, a folder with a checkpoint or a model of the hub.

    It has what follows from the checkpoint's configuration: parsers, the quantization, and the longest
    context whose KV cache fits a GB10. Nothing but the configuration and headers is fetched.
    """
    series = session.checkout.lock.series
    offline = {"HF_HUB_OFFLINE": "1"} if session.offline else {}
    recipe, remarks = new_recipe(
        model, series, {**os.environ, **offline}, name=name, speculative=_object(speculative),
        settings=settings,
    )  # fmt: skip
    path = _free_path(out, recipe)
    (found,) = _checked(session, [recipe], series)
    recipe, unknown, problems = without_unknown_parsers(recipe, found.problems)
    if refused := [*(str(one) for one in problems if one.refuses), *found.rules]:
        raise IncompatibleOptionsError(
            f"{model} cannot be served so by vLLM {found.version}",
            because="\n".join(refused),
            next_step="change --set or --speculative",
        )
    return _written(path, recipe, (*remarks, *unknown), found.version)


def _object(text: str) -> dict[str, Any]:
    """Return the object that *text* is as JSON; an empty one for an empty text."""
    try:
        return decode_json(text or "{}", dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            "--speculative is no object of JSON",
            because=str(error),
            next_step='give one such as \'{"method": "mtp"}\'',
        ) from error


def _free_path(out: Path | None, recipe: Recipe) -> Path:
    path = out or Path(f"{recipe.name}.toml")
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists", next_step="name another file with --out")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written", because=f"there is no folder {path.parent}")
    return path


def _written(path: Path, recipe: Recipe, remarks: Sequence[Remark], version: str) -> Result:
    """Write *recipe* into *path*; return what was remarked."""
    path.write_text(recipe_text(recipe), encoding="utf-8")
    found = [asdict(one) for one in remarks]
    table = Table.of(found, {"remark": "level", "what": "what", "because": "because"})
    return Result(
        {"recipe": str(path), "vllm": version, "remarks": found},
        [
            *([table] if remarks else []),
            ("made", f"{path}, checked by vLLM {version}"),
            ("next", f"sparkwright serve {path} --dry-run"),
        ],
    )


@command.command("import")
@click.argument("source")
@click.option("--name", default="", help="The recipe's name; what is served by default.")
@click.option("--out", type=PATH_TYPE, help="The file; NAME.toml by default.")
@taking("series")
@run_in_session
def import_(session: Session, *, source: str, name: str, out: Path | None) -> Result:
    """Make a recipe of SOURCE: a file, - for standard input, or a command in quotes.

    Takes 'vllm serve ...', 'docker run ...', a plain script or compose file with one, and recipes
    of spark-vllm-docker and sparkrun. Says what was left out, and what is wrong or dangerous, with the
    reason; options that the release lacks are left out.
    """
    recipe, remarks = import_recipe(_text_of(source), name)
    path = _free_path(out, recipe)
    series = session.checkout.lock.series
    (found,) = _checked(session, [recipe], series)
    recipe, dead = without_dead(recipe, found.problems)
    rules = (Remark("wrong", *rule.split(": ", 1)) for rule in found.rules)
    return _written(path, recipe, (*remarks, *dead, *rules), found.version)


def _text_of(source: str) -> str:
    """Return the text of a file, of standard input, or *source* itself."""
    try:
        if source == "-":
            data = sys.stdin.buffer.read()
        elif any(sign.isspace() for sign in source):
            data = source.encode()
        else:
            data = Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{printable(source) or 'nothing'} cannot be read",
            because=str(error),
            next_step="give a file of UTF-8, - for standard input, or a command in quotes",
        ) from error
