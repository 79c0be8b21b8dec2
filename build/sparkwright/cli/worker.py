"""``sparkwright worker``."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click
import msgspec

from sparkwright.base.card import card_capability
from sparkwright.base.config import decode_json
from sparkwright.base.errors import ConfigError
from sparkwright.base.machine import look
from sparkwright.cli.globals import Command
from sparkwright.distributed.tasks import GB10, GPU, Offer, WorkerSettings
from sparkwright.distributed.worker import TaskRunner, serve
from sparkwright.native.schedule import default_reserve_mib
from sparkwright.store.paths import open_store
from sparkwright.store.remote.tier import open_tier


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
    offer = Offer(
        slots=now.cores,
        mib=max(1, now.available_mib - default_reserve_mib(now)),
        has=_offers(),
    )
    runner = TaskRunner(store, program, given.name, environment)
    # Whatever prints writes to the standard error: the standard output has replies alone.
    with os.fdopen(os.dup(1), "wb") as output, store.running():
        os.dup2(2, 1)
        serve(runner, given, offer, sys.stdin.buffer, output)


def _offers() -> tuple[str, ...]:
    """Return what tasks may need of this machine."""
    found = list[str]()
    card: tuple[int, ...] = ()
    with contextlib.suppress(ValueError):
        card = tuple(map(int, card_capability().split(".")))
    if card:
        found.append(GPU)
    if card == (12, 1):
        found.append(GB10)
    return tuple(found)
