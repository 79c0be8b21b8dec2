"""``sparkwright recipe``: list, show, check and write recipes of servers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ConfigError, IncompatibleOptionsError
from sparkwright.cli.globals import Group, takes, taking
from sparkwright.cli.output import print_json, printable
from sparkwright.cli.session import Session, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.engine.check_recipes import CheckedRecipe
from sparkwright.recipes import Recipe
from sparkwright.recipes.commands import Remark

_USES = ("single", "shared", "many")
_USE = click.option("--use", type=click.Choice(_USES), default=None, help="A use of it; single by default.")


@click.group("recipe", cls=Group)
def command() -> None:
    """List, show, check and write recipes of servers."""


@command.command("list")
@takes("as_json")
def list_(*, as_json: bool) -> None:
    """List the recipes that ship, with what is known of each."""
    from sparkwright.recipes import recipes

    rows = [_row(recipe) for recipe in recipes().values()]
    if as_json:
        print_json(rows)
        return
    headings = ("name", "drafts", "kv", "nodes", "evidence")  # the rest would not fit into 80 columns
    show_table(headings, [tuple(str(row[heading]) for heading in headings) for row in rows])
    click.echo("more: sparkwright recipe show NAME; what a grade means: docs/recipes.md")


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
@click.option(
    "--format",
    "form",
    type=click.Choice(["command", "sparkrun"]),
    help="Print it in this form alone: as the command that serves it, or as YAML of sparkrun.",
)
@click.option("--container", default="", help="For sparkrun: the image that holds the wheel.")
@takes("as_json")
def show(*, name: str, use: str | None, form: str | None, container: str, as_json: bool) -> None:
    """Show the effective flags of the recipe NAME, a name or a file, each with its reason."""
    from sparkwright.recipes import served_recipe
    from sparkwright.recipes.export import export

    if as_json and form:
        raise ConfigError(
            "--json and --format exclude each other",
            because=f"--format {form} prints that form alone",
            next_step="leave one of them out; --json has the command too",
        )
    recipe = served_recipe(name, use or "")
    if as_json:
        told = {"notes": recipe.limits, "standing": recipe.standing, "command": _commands(recipe)}
        print_json({**to_builtins(recipe), **told})
        return
    if form == "command":
        click.echo(printable("\n".join(_commands(recipe))))
        return
    if form == "sparkrun":
        click.echo(export(recipe, container=container), nl=False)
        return
    click.echo(f"{printable(recipe.name)}: {printable(recipe.title)}")
    pairs = [("model", recipe.model), ("drafter", recipe.drafter), ("nodes", str(recipe.nodes))]
    pairs += [("series", ", ".join(recipe.series) or "any"), ("uses", ", ".join(recipe.uses) or "none")]
    pairs += [("evidence", _evidence(recipe))]
    for key, value in pairs:
        if value:
            click.echo(f"{key:<9}{printable(value)}")
    rows = [(f"--{flag}", _shown(value), recipe.why.get(flag, "")) for flag, value in recipe.flags.items()]
    rows += [
        (f"speculative {key}", _shown(value), recipe.why.get(f"speculative.{key}", ""))
        for key, value in recipe.speculative.items()
    ]
    rows += [(key, value, recipe.why.get(key, "")) for key, value in recipe.environment.items()]
    show_table(("option", "value", "because"), rows)
    _show_known(recipe)


def _evidence(recipe: Recipe) -> str:
    from sparkwright.recipes import GRADES

    if recipe.grade == "never" and recipe.near_grade != "never":
        return f"{GRADES['never']}; the nearest: {recipe.near_grade}, {GRADES[recipe.near_grade]}"
    return f"{recipe.grade}, {GRADES[recipe.grade]}"


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _show_known(recipe: Recipe) -> None:
    """Print notes, evidence, lowest scores and published figures."""
    from sparkwright.recipes.evidence import references

    for note in recipe.limits:
        click.echo(f"note     {printable(note)}")
    for one in recipe.evidence:
        differs = f"; there: {one.differs}" if one.differs else ""
        click.echo(
            printable(f"seen     {one.grade}: {one.where}, by {one.by} {one.date} {one.source}{differs}")
        )
    for bound in recipe.evaluation:
        click.echo(printable(f"scores   {bound}"))
    for figures in references(recipe.name, recipe.reference):
        click.echo(printable(f"figures  {figures.grade}: {figures}"))


def _commands(recipe: Recipe) -> list[str]:
    """Return the command of each machine; the address of the first one is left to the reader."""
    from sparkwright.recipes import node_arguments
    from sparkwright.recipes.export import command_line

    if recipe.nodes == 1:
        return [command_line(recipe)]
    alone = command_line(recipe)
    nodes = [" ".join(node_arguments(rank, '"$HEAD_ADDRESS"')) for rank in range(recipe.nodes)]
    return [f"{alone} \\\n  {node}" for node in nodes]


@command.command("check")
@click.argument("names", nargs=-1)
@takes("series")
@run_in_session
def check(session: Session, *, names: tuple[str, ...], series: str) -> None:
    """Check recipes by the own parser of each series' release, with its carries.

    Parses the command line of every recipe, by each of its uses, and looks up its flags, values, speculative
    keys and variables there. Without NAMES, all that ship; without --series, by all that a recipe is for. The
    first check of a series takes a minute.
    """
    from sparkwright.engine.check_recipes import check_recipes
    from sparkwright.recipes import load_recipe, recipes

    found = [load_recipe(name) for name in names] if names else list(recipes().values())
    results = check_recipes(
        session.checkout, session.store, session.repository, found, series, offline=session.offline
    )
    if session.as_json:
        print_json([_described(result) for result in results])
    else:
        _show_checked(results)
    refused = [result for result in results if result.refused]
    if refused:
        raise IncompatibleOptionsError(
            f"{len(refused)} of {len(results)} checks found options that do not work",
            because="\n".join(f"{one.title}: {problem}" for one in refused for problem in one.refused),
            next_step="change the recipe, or name in its `series` the releases that it is for",
        )


def _described(result: CheckedRecipe) -> dict[str, Any]:
    told = [{**to_builtins(one), "instead": one.instead, "refuses": one.refuses} for one in result.problems]
    return {**asdict(result), "problems": told}


def _show_checked(results: Sequence[CheckedRecipe]) -> None:
    rows = [
        (one.recipe, one.use or "-", one.series, one.version, "fail" if one.refused else "pass",
         "; ".join(map(str, [*one.problems, *one.rules])))
        for one in results
    ]  # fmt: skip
    show_table(("recipe", "use", "series", "vllm", "verdict", "because"), rows)


@command.command("new")
@click.argument("model")
@click.option("--name", default="", help="The recipe's name; the model's by default.")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="A flag; may be repeated.")
@click.option(
    "--speculative", default="", metavar="JSON", help="As of --speculative-config: method, model, …"
)
@click.option("--out", type=click.Path(path_type=Path), help="The file; NAME.toml by default.")
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
) -> None:
    """Write a recipe of MODEL, a folder with a checkpoint or a model of the hub.

    It has what follows from the checkpoint's configuration: parsers, the quantization, and the longest
    context whose KV cache fits a GB10. Nothing but the configuration and headers is fetched.
    """
    from sparkwright.engine.check_recipes import check_recipes
    from sparkwright.serve.new_recipe import new_recipe, without_unknown_parsers

    series = session.checkout.lock.series
    offline = {"HF_HUB_OFFLINE": "1"} if session.offline else {}
    recipe, remarks = new_recipe(
        model, series, {**os.environ, **offline}, name=name, speculative=_object(speculative),
        settings=settings,
    )  # fmt: skip
    path = _free_path(out, recipe)
    (found,) = check_recipes(
        session.checkout, session.store, session.repository, [recipe], series, offline=session.offline
    )
    recipe, unknown, problems = without_unknown_parsers(recipe, found.problems)
    if refused := [*(str(one) for one in problems if one.refuses), *found.rules]:
        raise IncompatibleOptionsError(
            f"{model} cannot be served so by vLLM {found.version}",
            because="\n".join(refused),
            next_step="change --set or --speculative",
        )
    _write(session, path, recipe, (*remarks, *unknown), found.version)


def _object(text: str) -> dict[str, Any]:
    """Return the object that *text* is as JSON; an empty one for an empty text.

    Raises:
        ConfigError: it is none.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError("--speculative is no JSON", because=str(error)) from error
    if not isinstance(found, dict):
        raise ConfigError("--speculative is no object of JSON", next_step='such as \'{"method": "mtp"}\'')
    return found


def _free_path(out: Path | None, recipe: Recipe) -> Path:
    path = out or Path(f"{recipe.name}.toml")
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists", next_step="name another file with --out")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written", because=f"there is no folder {path.parent}")
    return path


def _write(session: Session, path: Path, recipe: Recipe, remarks: Sequence[Remark], version: str) -> None:
    """Write *recipe* into *path*, and show what was remarked."""
    from sparkwright.recipes.write import recipe_text

    path.write_text(recipe_text(recipe), encoding="utf-8")
    if session.as_json:
        print_json({"recipe": str(path), "vllm": version, "remarks": [asdict(one) for one in remarks]})
        return
    if remarks:
        show_table(("remark", "what", "because"), [(one.level, one.what, one.because) for one in remarks])
    click.echo(f"made     {path}, checked by vLLM {version}")
    click.echo(f"next     sparkwright serve {path} --dry-run")


@command.command("import")
@click.argument("source")
@click.option("--name", default="", help="The recipe's name; what is served by default.")
@click.option("--out", type=click.Path(path_type=Path), help="The file; NAME.toml by default.")
@taking("series")
@run_in_session
def import_(session: Session, *, source: str, name: str, out: Path | None) -> None:
    """Make a recipe of SOURCE: a file, - for standard input, or a command in quotes.

    Takes 'vllm serve ...', 'docker run ...', a script or compose file with one, and recipes of
    spark-vllm-docker and sparkrun. Says what was left out, and what is wrong or dangerous, with the reason;
    options that the release lacks are left out.
    """
    from sparkwright.engine.check_recipes import check_recipes
    from sparkwright.recipes.imported import import_recipe, without_dead

    recipe, remarks = import_recipe(_text_of(source), name)
    path = _free_path(out, recipe)
    series = session.checkout.lock.series
    (found,) = check_recipes(
        session.checkout, session.store, session.repository, [recipe], series, offline=session.offline
    )
    recipe, dead = without_dead(recipe, found.problems)
    rules = (Remark("wrong", *rule.split(": ", 1)) for rule in found.rules)
    _write(session, path, recipe, (*remarks, *dead, *rules), found.version)


def _text_of(source: str) -> str:
    """Return the text of a file, of standard input, or *source* itself.

    Raises:
        ConfigError: there is no such file.
    """
    if source == "-":
        return sys.stdin.read()
    if any(sign.isspace() for sign in source):
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{printable(source)} cannot be read", because=str(error)) from error
