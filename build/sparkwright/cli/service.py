"""``sparkwright service``: served recipes that come back after a reboot."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.base.machine import card_capability
from sparkwright.cli.command import Group, Part, Result
from sparkwright.cli.options import (
    FORCE,
    RECIPE,
    reading_options,
    require_libraries,
    serving_options,
    wheel_options,
)
from sparkwright.engine.client.endpoint import reachable
from sparkwright.engine.environment import OfferedWheel, prepare, sources_here
from sparkwright.engine.installed import read_installed
from sparkwright.engine.offered import offered_wheel
from sparkwright.recipes.recipe import PORT, REHEARSAL, Recipe, served_recipe
from sparkwright.recipes.rules import check_compatible
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.finding import require_clear
from sparkwright.serve.preflight.run import run_preflight
from sparkwright.serve.service import change, files
from sparkwright.serve.service.change import has_systemd
from sparkwright.serve.service.model import ServiceOptions, ServicePlaces, ServiceRecord, load_record
from sparkwright.serve.settings import shell_key, with_settings

_SCOPE = click.option(
    "--user/--system",
    "of_user",
    default=None,
    help="A unit of this user or of the system; of the system for root by default.",
)


@click.group("service", cls=Group)
def command() -> None:
    """Install, show, upgrade and remove services that serve recipes."""


@command.command("install")
@RECIPE
@click.option("--name", default="", help="Name of the service; the recipe's by default.")
@serving_options
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option("--run-as", default="", help="User of a system's unit; the one behind sudo, or sparkwright.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of downloaded models (HF_HOME).",
)
@wheel_options
@_SCOPE
@FORCE
@click.option("--dry-run", is_flag=True, help="Show every file and command; write nothing.")
@reading_options
def install(*, recipe: str, force: bool, dry_run: bool, offline: bool, **asked: Any) -> Result:
    """Install RECIPE as a service: a unit of systemd, and an API key of mode 600."""
    chosen, options, places = _described(recipe, asked, offline=offline, force=force)
    plan = files.plan_install(options, places, _own(recipe))
    if dry_run:
        return _planned(plan, places)
    if not has_systemd(places.scope):
        raise ConfigError(
            "the service cannot be installed here",
            because="systemd does not run this machine, or this user has no session of it",
            next_step="serve the image by Docker, as docs/service.md says, or 'sparkwright serve'",
        )
    require_libraries("serve")
    wheel = _wheel(asked, chosen, asked["channel"], offline=offline)
    known = load_record(places) if places.record.exists() else ServiceRecord(options)
    channel = asked["channel"] or known.channel
    record = msgspec.structs.replace(known, options=options, channel=channel)
    with _writing(places):
        made = files.make_key(places.key, shell_key(os.environ))
        slot = _prepared(places, wheel, chosen, asked, offline=offline)
        record.write(places.record)
        files.apply_plan(plan)
    _change(places, record, slot, wheel.wheel, chosen, predict=not force)
    files.run_all(plan.afterwards)  # what has never answered is not started at boot
    flag = " --user" if places.scope == "user" else ""
    log = f"journalctl{flag} -u {places.unit_name}"
    linger = "loginctl enable-linger, so that it starts at boot, without a login" if flag else ""
    return Result(
        {
            "name": places.name,
            "scope": places.scope,
            "key-made": made,
            **{name: str(getattr(places, name)) for name in ("unit", "key", "variables", "state")},
        },
        [
            ("unit", places.unit),
            ("key", f"{places.key}, {'made now' if made else 'as it was'}"),
            ("serving", f"sparkwright service status {places.name}; {log} -f"),
            ("next", linger),
        ],
    )


def _planned(plan: files.InstallPlan, places: ServicePlaces) -> Result:
    """Return every file and command of *plan*; the key itself is never shown."""
    parts: list[Part] = []
    for file in plan.files:
        parts += [f"# {file.path}  (mode {file.mode:04o})", file.text]
    parts.append(f"# {places.key}  (mode 0600)")
    parts.append("the key of VLLM_API_KEY, or a random one; made once and never shown here\n")
    commands = [*plan.commands, *plan.afterwards]
    return Result(
        {
            "files": [
                {"path": str(file.path), "mode": f"{file.mode:04o}", "text": file.text} for file in plan.files
            ],
            "commands": commands,
            "key": str(places.key),
        },
        [*parts, *(f"$ {' '.join(words)}" for words in commands)],
    )


@command.command("status")
@click.argument("name", required=False, default="")
@_SCOPE
@reading_options
def status(*, name: str, **asked: Any) -> Result:
    """Show whether a service brings tokens, and what it serves with; all services without NAME."""
    installed = _places("any", asked).state.parent.glob("*/service.json")
    names = [name] if name else sorted(path.parent.name for path in installed)
    found = []
    for one in names:
        places = _places(one, asked)
        record = load_record(places)
        good, line = _manager(places).state()
        found.append(
            {
                "name": one,
                "scope": places.scope,
                "recipe": record.options.recipe,
                "serves": good,
                "state": line,
                "wheel": record.wheels.get(record.current, ""),
                "previous": record.wheels.get(record.previous, ""),
                "channel": record.channel,
                "url": f"{reachable(record.options.host, record.options.port)}/v1",
            }
        )
    parts: list[Part] = []
    for shown in found:
        parts += [*([""] if parts else []), *shown.items()]
    return Result(found, parts or ["no service is installed; sparkwright service install RECIPE"])


@command.command("upgrade")
@click.argument("name")
@wheel_options
@click.option("--previous", is_flag=True, help="Serve with the wheel before the present one again.")
@_SCOPE
@reading_options
def upgrade(*, name: str, previous: bool, offline: bool, **asked: Any) -> Result:
    """Serve with another wheel: the newest of the service's channel, the one named, or the previous one.

    The new environment is made beside the old one, which serves until then. If the new one does not answer a
    request, the old one is started again.
    """
    require_libraries("serve")
    places = _places(name, asked)
    record = load_record(places)
    if previous:
        back = change.roll_back(change.Slots(places.state), record, _manager(places))
        back.write(places.record)
    else:
        options = record.options
        recipe = with_settings(served_recipe(options.recipe, options.use), options.settings)
        wheel = _wheel(asked, recipe, asked["channel"] or record.channel, offline=offline)
        slot = _prepared(places, wheel, recipe, asked, offline=offline)
        _change(places, record, slot, wheel.wheel, recipe)
    now = load_record(places)
    wheels = {"wheel": now.wheels.get(now.current, ""), "previous": now.wheels.get(now.previous, "")}
    return Result({"name": name, **wheels}, [("name", name), *wheels.items()])


@command.command("uninstall")
@click.argument("name")
@_SCOPE
@click.option("--purge", is_flag=True, help="Remove its key, variables and environments too.")
@reading_options
def uninstall(*, name: str, purge: bool, **asked: Any) -> Result:
    """Stop and remove a service; its key, variables and environments stay without --purge."""
    places = _places(name, asked)
    own = (places.key, places.variables, places.recipe)
    there = files.uninstall(places, run_commands=has_systemd(places.scope))
    if purge:
        there += [path for path in own if path.exists()]
        for path in own:
            path.unlink(missing_ok=True)
        shutil.rmtree(places.state, ignore_errors=True)
    kept = [path for path in (*own, places.state) if path.exists()]
    if not there and not kept:
        load_record(places)  # says that there is none
    return Result(
        {"removed": [str(path) for path in there], "kept": [str(path) for path in kept]},
        [*(("removed", path) for path in there), *(("kept", path) for path in kept)],
    )


# Reading the options ---------------------------------------------------------------------------------------


def _places(name: str, asked: dict[str, Any]) -> ServicePlaces:
    of_user = os.geteuid() != 0 if asked["of_user"] is None else asked["of_user"]
    return ServicePlaces.of(name, "user" if of_user else "system")


def _described(
    recipe: str, asked: dict[str, Any], *, offline: bool, force: bool
) -> tuple[Recipe, ServiceOptions, ServicePlaces]:
    chosen = with_settings(served_recipe(recipe, asked["use"]), asked["settings"])
    if chosen.model.startswith(REHEARSAL):
        raise ConfigError(
            f"the recipe {chosen.name} cannot be installed as a service",
            because="it is served by the merged Python of a checkout, and a service by a wheel",
            next_step=f"sparkwright serve {recipe}, in the checkout",
        )
    if chosen.nodes > 1:
        raise ConfigError(
            f"the recipe {chosen.name} cannot be installed as a service",
            because=f"{chosen.nodes} machines serve it together, and a service is of one",
            next_step=f"sparkwright serve {recipe} --peer HOST, on the first of them",
        )
    name = asked["name"] or chosen.name
    places = _places(name, asked)
    program = Path(sys.executable).with_name("sparkwright")
    options = ServiceOptions(
        name=name,
        recipe=str(places.recipe) if _own(recipe) else recipe,
        scope=places.scope,
        program=str(program) if program.exists() else shutil.which("sparkwright") or str(program),
        use=asked["use"],
        settings=asked["settings"],
        sidecars_gib=asked["sidecars_gib"],
        host=asked["host"],
        port=asked["port"],
        run_as=asked["run_as"] or os.environ.get("SUDO_USER", "") or "sparkwright",
        models=str(asked["models"].absolute()) if asked["models"] else "",
        offline=offline,
        force=force,
    )
    return chosen, options, places


def _own(recipe: str) -> str:
    """Return the text of a recipe of the user's own; empty for one that ships."""
    path = Path(recipe)
    return path.read_text(encoding="utf-8") if path.suffix == ".toml" and path.exists() else ""


def _wheel(asked: dict[str, Any], recipe: Recipe, channel: str, *, offline: bool) -> OfferedWheel:
    wheel: Path | None = asked["wheel"]
    series = (asked["series"],) if asked["series"] else recipe.series
    return offered_wheel(wheel.absolute() if wheel else None, channel, series, offline=offline)


@contextlib.contextmanager
def _writing(places: ServicePlaces) -> Iterator[None]:
    """Report a file that cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or places.unit} cannot be written",
            because=str(error.strerror or error),
            next_step="run it with sudo, or install for this user alone: --user",
        ) from error


# Changing a service ----------------------------------------------------------------------------------------


def _prepared(
    places: ServicePlaces, offered: OfferedWheel, recipe: Recipe, asked: dict[str, Any], *, offline: bool
) -> str:
    """Return the name of the wheel's environment, made beside the service's others."""
    sources = sources_here(change.Slots(places.state).place(""))
    mask = os.umask(0o022)  # the service's user reads what root installs
    try:
        made = prepare(offered, recipe, sources, locked=not asked["unlocked"], offline=offline)
    finally:
        os.umask(mask)
    return made.python.parents[1].name


def _manager(places: ServicePlaces) -> change.SystemdManager:
    return change.SystemdManager(places.unit_name, places.scope)


def _change(
    places: ServicePlaces,
    record: ServiceRecord,
    slot: str,
    wheel: Path,
    recipe: Recipe,
    *,
    predict: bool = False,
) -> None:
    def preflight(python: Path) -> None:
        found = read_installed(python)
        check_compatible(recipe, found.version, capability=card_capability(), carries=found.carries)
        environment = {**os.environ, "HF_HOME": record.options.models or str(places.models)}
        sidecars_gib = record.options.sidecars_gib
        request = PreflightRequest(recipe, python, environment=environment, sidecars_gib=sidecars_gib)
        # While the old server holds the memory, what the new one will find free cannot be predicted.
        require_clear(run_preflight(request), force=not predict)

    slots = change.Slots(places.state)
    changed = change.upgrade(slots, record, slot, _manager(places), wheel=wheel.name, preflight=preflight)
    changed.write(places.record)
    slots.prune({changed.current, changed.previous})
