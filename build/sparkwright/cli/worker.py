"""``sparkwright worker``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ConfigError, ToolError
from sparkwright.git import open_repository
from sparkwright.store import open_store
from sparkwright.upstream import Access, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.cluster.kinds import TaskKind
    from sparkwright.cluster.messages import WorkerHello, WorkerSettings


@click.command("worker")
@click.argument("scheduler", required=False)
@click.option(
    "--settings", is_flag=True, help="Read the settings as a line from standard input, as over ssh."
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Most tasks at once; by default one a core.")
@click.option(
    "--store",
    "store_url",
    default="",
    metavar="URL",
    envvar="SPARKWRIGHT_STORE_URL",
    help="The store that machines share; by default the one of store.toml.",
)
@click.option(
    "--cuda",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="SPARKWRIGHT_CUDA",
    help="An installed CUDA toolkit, for builds that take one.",
)
def command(
    *, scheduler: str | None, settings: bool, jobs: int | None, store_url: str, cuda: Path | None
) -> None:
    """Run tasks of commands elsewhere that use the Dask scheduler at the address SCHEDULER.

    Tasks are units to compile, proofs, merges, steps of bisections, rehearsals and runs of verify. The
    machine offers them its cores, free memory and card. 'sparkwright wheel --cluster ssh://HOST', and every
    other command with --cluster, starts this by itself, and ends it with the command.
    """
    serving = _library()
    given = _settings(scheduler, from_input=settings, store_url=store_url)
    store = open_store(remote=_remote(given.store_url))
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.running())
        repository = stack.enter_context(contextlib.closing(open_repository(store.git)))
        access = Access(store, repository, read_settings(offline=False))
        told = sys.stdin.buffer if settings else None
        serving.serve(
            access,
            given,
            serving.describe(jobs, given.name, cuda),
            told=told,
            say=_say,
            cuda=cuda,
            kinds=kinds(),
        )


def kinds() -> dict[str, Callable[[], TaskKind]]:
    """Return functions that import the kinds of tasks, by name."""
    from sparkwright.cluster.kinds import KINDS

    return {**KINDS, "release": _releases, "rehearsal": _rehearsals, "step": _steps}


def _releases() -> TaskKind:
    from sparkwright.pipeline.releases import release_kind

    return release_kind()


def _rehearsals() -> TaskKind:
    from sparkwright.rehearsal.elsewhere import rehearsal_kind

    return rehearsal_kind()


def _steps() -> TaskKind:
    from sparkwright.search.elsewhere import step_kind

    return step_kind()


def _library() -> Any:
    try:
        import distributed  # noqa: F401

        from sparkwright.cluster import worker
    except ImportError as error:
        raise ToolError(
            "this machine cannot work for others",
            because=f"the package {error.name} is not installed",
            next_step="pip install 'sparkwright[cluster]'",
        ) from error
    return worker


def _settings(scheduler: str | None, *, from_input: bool, store_url: str) -> WorkerSettings:
    from sparkwright.cluster.messages import WorkerSettings

    if from_input == bool(scheduler):
        raise click.UsageError("Give either the address of a scheduler or --settings.")
    if scheduler:
        return WorkerSettings(scheduler=scheduler, store_url=store_url)
    try:
        given = decode_json(sys.stdin.buffer.readline(), WorkerSettings)
    except msgspec.MsgspecError as error:
        raise ConfigError("the settings on standard input cannot be read", because=str(error)) from error
    return msgspec.structs.replace(given, store_url=store_url or given.store_url)


def _remote(store_url: str) -> Any:
    from sparkwright.store.remote import RemoteTier, read_remote_settings

    found = read_remote_settings(store_url)
    return None if found is None else RemoteTier(found)


def _say(hello: WorkerHello) -> None:
    click.echo(msgspec.json.encode(hello))  # which flushes
