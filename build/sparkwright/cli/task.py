"""``sparkwright task``: the command line of a task that a worker runs for another machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from sparkwright.base.config import decode_json, to_builtins
from sparkwright.base.errors import ConfigError
from sparkwright.cli.globals import Command
from sparkwright.cli.options import require_libraries
from sparkwright.cli.output import expect_json, print_json
from sparkwright.distributed.tasks import REQUEST
from sparkwright.git.repository import open_repository
from sparkwright.pipeline.remote_units import UnitsRequest, compile_units, unpack_all
from sparkwright.store.paths import open_store
from sparkwright.store.remote.tier import open_tier
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access
from sparkwright.verify.runner import RunRequest, run_here

Work = Callable[[Access, Any], object]


def _units() -> tuple[type, Work]:
    return UnitsRequest, lambda access, request: compile_units(request, access)


def _run() -> tuple[type, Work]:
    require_libraries()

    return RunRequest, lambda _, request: run_here(request)


_KINDS: dict[str, Callable[[], tuple[type, Work]]] = {
    "units": _units,
    "run": _run,
}


@click.command("task", cls=Command, hidden=True)
@click.argument("kind", type=click.Choice(list(_KINDS)))
def command(*, kind: str) -> None:
    """Do what request.json in this folder asks for, print the result as JSON, and leave files in out."""
    expect_json(expected=True)
    model, work = _KINDS[kind]()
    try:
        request: Any = decode_json(Path(REQUEST).read_bytes(), model)
    except (OSError, msgspec.MsgspecError) as error:
        raise _no_task(error) from error
    store = open_store(remote=open_tier())
    with store.running(), contextlib.closing(open_repository(store.git)) as repository:
        unpack_all(repository)
        access = Access(store, repository, read_settings(offline=False))
        try:
            result = work(access, request)
        except (FileNotFoundError, msgspec.ValidationError) as error:
            raise _no_task(error) from error
    print_json(to_builtins(result))


def _no_task(error: Exception) -> ConfigError:
    return ConfigError(
        f"{Path.cwd()} holds no task of this kind",
        because=str(error),
        next_step="run 'sparkwright' with --cluster: it writes the folder, and runs this on each machine",
    )
