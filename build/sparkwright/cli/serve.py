"""``sparkwright serve``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from platform import machine
from typing import Any

import click
import msgspec

from sparkwright.base.errors import ConfigError, PreflightError, SparkwrightError
from sparkwright.base.events import emit, subscribe, task
from sparkwright.cli.command import Command, Result, takes
from sparkwright.cli.options import (
    FILE_TYPE,
    FORCE,
    PATH_TYPE,
    RECIPE,
    require_libraries,
    serving_options,
    wheel_options,
)
from sparkwright.cli.output import events_kept, expect_json, showing_events
from sparkwright.cli.serve_show import Lines, Screen, shown_plan
from sparkwright.engine.environment import (
    Environment,
    OfferedWheel,
    existing_environment,
    plan_environment,
    prepare,
    sources_here,
)
from sparkwright.engine.installed import EngineFacts
from sparkwright.engine.offered import NoWheelError, made_here, makeable_series, offered_wheel
from sparkwright.engine.release import ReleaseAnswer, ask_installed, ask_release
from sparkwright.lock.model import series_of
from sparkwright.merge.engine import merge_patchset
from sparkwright.pipeline.checkout import keeping_series
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import DEFAULT_PLATFORM, BuildOptions
from sparkwright.recipes.recipe import PORT, REHEARSAL, Recipe, load_recipe, served_recipe
from sparkwright.recipes.release_options import Question
from sparkwright.rehearsal.run import serve_nearest
from sparkwright.serve.caches import cache_variables, caches_of, new_run_folder
from sparkwright.serve.peer import Peer, find_peer
from sparkwright.serve.peer_worker import plan_worker
from sparkwright.serve.plan import planned
from sparkwright.serve.preflight.engine_checks import check_options
from sparkwright.serve.preflight.facts import PreflightRequest, read_engine
from sparkwright.serve.preflight.finding import require_clear, warn_or_refuse
from sparkwright.serve.preflight.hub import Hub
from sparkwright.serve.preflight.machine import check_room
from sparkwright.serve.preflight.run import EARLY, OF_HOST, run_preflight
from sparkwright.serve.run import ServeOptions, Serving, serve
from sparkwright.serve.settings import as_head, read_key, shell_key, with_settings
from sparkwright.serve.supervise import WatchOptions
from sparkwright.serve.watchdog import WatchLimits
from sparkwright.store.paths import Store, open_store
from sparkwright.wheel.names import parse_name

_SOURCES = ("wheel", "channel", "python")
_JSON_S, _TEXT_S = 10.0, 30.0  # between two states


@click.command("serve", cls=Command)
@RECIPE
@wheel_options
@click.option("--python", type=FILE_TYPE, help="Serve with this interpreter's vLLM instead of a wheel.")
@serving_options
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 chooses a free one."
)
@click.option(
    "--api-key-file",
    "key_file",
    type=PATH_TYPE,
    envvar="SPARKWRIGHT_API_KEY_FILE",
    help="File of mode 600 with the key that clients must send; else it is that of VLLM_API_KEY.",
)
@click.option(
    "--watch", is_flag=True, help="End with evidence where the engine wedges, so that it is started again."
)
@click.option(
    "--stall-seconds",
    "stall_s",
    type=click.FloatRange(min=1),
    help="Watch too: seconds without any work after which an engine that holds requests is wedged.",
)
@click.option(
    "--peer",
    default="",
    metavar="[USER@]HOST[:PORT]",
    help="Of two machines, the other one, as ssh reaches it: the worker is brought and started there.",
)
@click.option(
    "--head", default="", metavar="ADDRESS", help="Of two machines, this one, where both reach each other."
)
@click.option("--no-warm-up", is_flag=True, help="Announce the server without a warm-up.")
@click.option("--dry-run", is_flag=True, help="Show the command, and why each flag is there; start nothing.")
@FORCE
@click.option(
    "--boot-seconds",
    "boot_s",
    type=click.FloatRange(min=1),
    help="Limit of the boot, once its models are here.",
)
@takes("offline", "quiet", "as_json")
def command(
    *, recipe: str, use: str, dry_run: bool, quiet: bool, as_json: bool, **asked: Any
) -> Result | None:
    """Serve RECIPE in the foreground: install, start, warm up, announce, report, and stop cleanly.

    RECIPE is a name ('sparkwright recipe list') or a TOML file. The wheel is installed once, with the locked
    runtime of its series. Ctrl-C asks the server to end; a second one kills it.
    """
    require_libraries("serve")
    chosen = with_settings(served_recipe(recipe, use), asked["settings"])
    if not asked["peer"]:
        chosen = as_head(chosen, asked["head"])
    options = _options(chosen, asked, as_json=as_json)
    _require_one_source(chosen, asked)
    if dry_run:
        return _plan(chosen, options, asked, as_json=as_json)
    store = open_store()
    with store.running(), _shown(quiet=quiet, as_json=as_json, options=options):
        folder = new_run_folder(store, chosen.name)
        with events_kept(folder):
            chosen, peer = _with_peer(chosen, asked)
            hub = _look_first(store, chosen, options, asked)
            environment, chosen = _installed(chosen, asked)
            _preflight(store, environment, _request(chosen, options, hub, asked), asked)
            serving = Serving(chosen, environment, options, folder, caches_of(store), peer)
            asyncio.run(serve(serving, _watching(chosen, asked)))
    return None


def _options(recipe: Recipe, asked: dict[str, Any], *, as_json: bool) -> ServeOptions:
    key_file: Path | None = asked["key_file"]
    return ServeOptions(
        host=asked["host"],
        port=asked["port"],
        api_key=read_key(key_file) if key_file else shell_key({**os.environ, **recipe.environment}),
        key_file=key_file.absolute() if key_file else None,
        warm_up=not asked["no_warm_up"],
        offline=asked["offline"],
        interval_s=_JSON_S if as_json else _TEXT_S,
        boot_s=asked["boot_s"],
    )


def _watching(recipe: Recipe, asked: dict[str, Any]) -> WatchOptions | None:
    """Return the settings of the watch; `None` without ``--watch`` and ``--stall-seconds``."""
    if stall_s := asked["stall_s"]:
        return WatchOptions(WatchLimits(stall_s=stall_s, warm_s=stall_s))
    return WatchOptions(WatchLimits.of(recipe)) if asked["watch"] else None


def _require_one_source(recipe: Recipe, asked: dict[str, Any]) -> None:
    """Refuse more than one source of vLLM."""
    named = [f"--{name}" for name in _SOURCES if asked[name]]
    if len(named) > 1:
        raise ConfigError(
            "it is not clear what to serve with",
            because=f"{' and '.join(named)} exclude each other",
            next_step="leave one out",
        )
    if named and _is_rehearsal(recipe) and named != ["--python"]:
        raise ConfigError(
            f"the recipe {recipe.name} takes no wheel",
            because="it is served by upstream's wheel for the CPU with the merged Python of this checkout",
            next_step=f"leave out {named[0]}",
        )


def _is_rehearsal(recipe: Recipe) -> bool:
    return recipe.model.startswith(REHEARSAL)


def _with_peer(recipe: Recipe, asked: dict[str, Any]) -> tuple[Recipe, Peer | None]:
    """Return *recipe* as it is served with the machine of ``--peer``, and that; `None` without one."""
    if not asked["peer"]:
        return recipe, None
    if asked["head"]:
        raise ConfigError(
            "it is not clear how two machines serve",
            because="--peer starts the worker, and with --head you start it",
            next_step="leave out --head",
        )
    peer = find_peer(asked["peer"], recipe, asked["python"] or Path(sys.executable), force=asked["force"])
    return peer.head(recipe), peer


# The vLLM ---------------------------------------------------------------------------------------------------


def _installed(recipe: Recipe, asked: dict[str, Any]) -> tuple[Environment, Recipe]:
    """Return the vLLM to serve with, installed, and the recipe with the model that is there."""
    if _is_rehearsal(recipe):
        return _rehearsal(recipe, asked)
    if asked["python"]:
        return existing_environment(asked["python"], recipe), recipe
    offered = _wheel(recipe, asked)
    if offered.why:
        emit("serve.wheel", name=offered.wheel.name, why=offered.why)
    return prepare(offered, recipe, locked=not asked["unlocked"], offline=asked["offline"]), recipe


def _rehearsal(recipe: Recipe, asked: dict[str, Any]) -> tuple[Environment, Recipe]:
    """Return the merged Python of the checkout installed for the CPU, and *recipe* with rehearsals' model."""
    platform = machine() if machine() in {"aarch64", "x86_64"} else DEFAULT_PLATFORM
    build = BuildOptions(series=asked["series"], platform=platform, offline=asked["offline"])
    with open_job(Path(), build) as job, keeping_series(job.checkout):
        version = job.spec.lock.release.version
        report = merge_patchset(job.repository, job.merge_request(job.pristine, version))
        tree = serve_nearest(job, report)
        described = f"vllm {tree.version} for the CPU with the merged Python of {job.spec.patchset}"
        model = load_recipe(tree.recipe).model
        return Environment(tree.python, tree.key, described), msgspec.structs.replace(recipe, model=model)


def _series(recipe: Recipe, asked: dict[str, Any]) -> tuple[str, ...]:
    return (asked["series"],) if asked["series"] else recipe.series


def _wheel(recipe: Recipe, asked: dict[str, Any], *, make: bool = True) -> OfferedWheel:
    series, offline = _series(recipe, asked), asked["offline"]
    return offered_wheel(asked["wheel"], asked["channel"], series, offline=offline, make=make)


def _look_first(store: Store, recipe: Recipe, options: ServeOptions, asked: dict[str, Any]) -> Hub | None:
    """Refuse what cannot be served whatever vLLM is installed, and tell what is fetched, before anything is.

    Returns:
        The hub, with the models that were read; `None` if nothing is fetched.
    """
    rehearsal = _is_rehearsal(recipe)
    hub = None if options.offline or rehearsal else Hub({**os.environ, **recipe.environment})
    checks = OF_HOST if rehearsal else EARLY  # the model and the machine of rehearsals are given
    with task(
        "look at this machine" if hub is None else "look at this machine, and for the models on the hub"
    ):
        found = [one for one in run_preflight(_request(recipe, options, hub, asked)) if one.check in checks]
        found += () if asked["python"] else check_room(store.environments)
    for one in found:
        if one.check == "model-fetched":
            emit("serve.fetches", what=one.what, because=one.because)
    require_clear(found, force=asked["force"])
    return hub


def _preflight(
    store: Store, environment: Environment, request: PreflightRequest, asked: dict[str, Any]
) -> None:
    """Refuse a server that would not start, or that the host would not survive, before weights are read.

    What does not stop it becomes a warning.
    """
    # What --python names may change in place: only a list of its files identifies it.
    identity = "" if asked["python"] else environment.identity
    ask = partial(ask_installed, store, identity=identity)
    variables = {**cache_variables(caches_of(store), request.variables), **request.environment}
    request = replace(request, python=environment.python, environment=variables, ask=ask)
    warn_or_refuse(run_preflight(request), force=asked["force"])


def _request(
    recipe: Recipe, options: ServeOptions, hub: Hub | None, asked: dict[str, Any]
) -> PreflightRequest:
    return PreflightRequest(
        recipe,
        environment={**os.environ, **({"HF_HUB_OFFLINE": "1"} if options.offline else {})},
        address=options.host,
        port=options.port,
        sidecars_gib=asked["sidecars_gib"],
        nodes=1 if asked["peer"] else 0,  # the link was checked when it was found
        hub=hub,
    )


# What is shown ----------------------------------------------------------------------------------------------


def _plan(recipe: Recipe, options: ServeOptions, asked: dict[str, Any], *, as_json: bool) -> Result:
    """Return what would be started; settings that the release does not take are its failure."""
    recipe, peer = _with_peer(recipe, asked)
    environment, wheel, chosen = None, "", ""
    file, series = None, makeable_series(_series(recipe, asked))
    if asked["python"]:
        environment = existing_environment(asked["python"], recipe)
    elif not _is_rehearsal(recipe):
        try:
            offered = _wheel(recipe, asked, make=False)
        except NoWheelError:
            if not series:
                raise
            wheel, chosen = "none yet", f"made first {made_here(series)}"
        else:
            environment = plan_environment(offered, recipe, sources_here(), locked=not asked["unlocked"])
            wheel, chosen, file = environment.described, offered.why, offered.wheel
            series = series_of(parse_name(file.name).version)
    store, worker = open_store(), None
    plan = planned(recipe, options, store, environment, wheel=wheel, chosen=chosen)
    if peer is not None:
        worker = peer.host.shown, plan_worker(peer, recipe, plan, store, options).shown
    shown = shown_plan(plan, worker)
    if asked["settings"] and not _is_rehearsal(recipe):
        python = environment.python if environment and environment.python.exists() else None
        request = PreflightRequest(recipe, python=python, wheel=file)
        try:
            with showing_events(quiet=as_json):
                _check_settings(request, series, environment.identity if environment and file else "")
        except PreflightError as error:
            return replace(shown, failure=error)
    return shown


def _check_settings(request: PreflightRequest, series: str, identity: str) -> None:
    """Refuse settings that the release does not take: an installed vLLM, else the merged tree of *series*.

    Nothing is installed or fetched for that.
    """

    def ask(python: Path | None, engine: EngineFacts, questions: Sequence[Question]) -> ReleaseAnswer:
        with open_job(Path(), BuildOptions(series=series, offline=True)) as job:
            known = ask_installed(job.store, python, engine, questions, identity=identity)
            return known or ask_release(job, questions)

    engine, _ = read_engine(request)
    found = [*check_options(replace(request, ask=ask), engine or EngineFacts())]
    for one in found:
        if one.level != "refuse":
            click.echo(f"{one.level:<8} {one.what}: {one.because}", err=True)
    require_clear(found)


@contextlib.contextmanager
def _shown(*, quiet: bool, as_json: bool, options: ServeOptions) -> Iterator[None]:
    """Show events inside the block; with *as_json*, an error is the last line too."""
    if not as_json:
        with Screen(options, quiet=quiet).showing():
            yield
        return
    expect_json(expected=False)
    lines = Lines()
    with subscribe(lines):
        try:
            yield
        except SparkwrightError as error:
            lines.fail(error)
            raise
