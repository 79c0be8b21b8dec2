"""The commands that other machines start over ssh: ``sparkwright worker`` and ``sparkwright task``."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click
import msgspec

from sparkwright.base.config import decode_json, to_builtins
from sparkwright.base.errors import ConfigError
from sparkwright.base.machine import card_capability, look
from sparkwright.cli.command import Command
from sparkwright.cli.options import require_libraries
from sparkwright.cli.output import expect_json, print_json
from sparkwright.distributed.tasks import GB10, GPU, REQUEST, Offer, WorkerSettings
from sparkwright.distributed.worker import TaskRunner, serve
from sparkwright.git.repository import open_repository
from sparkwright.native.schedule import default_reserve_mib
from sparkwright.pipeline.remote_units import UnitsRequest, compile_units, unpack_all
from sparkwright.store.paths import open_store
from sparkwright.store.remote.tier import open_tier
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access
from sparkwright.verify.runner import RunRequest, run_here


@click.command("worker", cls=Command, hidden=True)
def command() -> None:
    """Run tasks of a command on another machine, which starts this over ssh with --cluster.

    The machine offers its cores, free memory and card. Settings come as the first line of standard input, and
    tasks as the others. The worker ends with that input.
    """
    try:
        given = decode_json(sys.stdin.buffer.readline(), WorkerSettings)
    except msgspec.MsgspecError as error:
        raise ConfigError("the settings on standard input cannot be read", because=str(error)) from error
    url = os.environ.get("SPARKWRIGHT_STORE_URL") or given.store_url  # it may have another address here
    store, now = open_store(remote=open_tier(url)), look()
    environment = {"SPARKWRIGHT_STORE_URL": url} if url else {}
    script = Path(sys.argv[0]).absolute()
    program = (sys.executable, *(("-m", "sparkwright") if script.name == "__main__.py" else (str(script),)))
    offer = Offer(slots=now.cores, mib=max(1, now.available_mib - default_reserve_mib(now)), has=_offers())
    runner = TaskRunner(store, program, given.name, environment)
    # Whatever prints writes to the standard error: the standard output has replies alone.
    with os.fdopen(os.dup(1), "wb") as output, store.running():
        os.dup2(2, 1)
        serve(runner, given, offer, sys.stdin.buffer, output)


def _offers() -> tuple[str, ...]:
    """Return what tasks may need of this machine."""
    card = card_capability()
    return (GPU, GB10) if card == "12.1" else (GPU,) if card[:1].isdigit() else ()


_KINDS: dict[str, type[UnitsRequest | RunRequest]] = {"units": UnitsRequest, "run": RunRequest}


@click.command("task", cls=Command, hidden=True)
@click.argument("kind", type=click.Choice(list(_KINDS)))
def task_command(*, kind: str) -> None:
    """Do what request.json in this folder asks for, print the result as JSON, and leave files in out."""
    expect_json(expected=True)
    if kind == "run":
        require_libraries()
    try:
        request = decode_json(Path(REQUEST).read_bytes(), _KINDS[kind])
    except (OSError, msgspec.MsgspecError) as error:
        raise _no_task(error) from error
    store = open_store(remote=open_tier())
    with store.running(), contextlib.closing(open_repository(store.git)) as repository:
        unpack_all(repository)
        access = Access(store, repository, read_settings(offline=False))
        try:
            result = run_here(request) if isinstance(request, RunRequest) else compile_units(request, access)
        except (FileNotFoundError, msgspec.ValidationError) as error:
            raise _no_task(error) from error
    print_json(to_builtins(result))


def _no_task(error: Exception) -> ConfigError:
    return ConfigError(
        f"{Path.cwd()} holds no task of this kind",
        because=str(error),
        next_step="run 'sparkwright' with --cluster: it writes the folder, and runs this on each machine",
    )
