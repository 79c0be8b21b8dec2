"""What a command works in: the checkout, the store, the event log, and options that many share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from sparkwright.cli.terminal import showing_events
from sparkwright.events import JsonlSink, emit, subscribe
from sparkwright.git import Repository, open_repository
from sparkwright.plan.checkout import Checkout, open_checkout
from sparkwright.plan.job import Job, Options
from sparkwright.store import Store, open_store
from sparkwright.upstream import Access, Source, open_source, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Session", "common_options", "job_options", "print_json", "run_in_session"]

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATCHSET = "spark"
DEFAULT_PLATFORM = "aarch64"


@dataclass(frozen=True)
class Session:
    """One run of a command.

    Attributes:
        checkout: the clone of the project that it works on.
        store: the content-addressed store.
        repository: the store's git repository.
        offline: whether the network is off.
        as_json: whether results are printed for machines.
    """

    checkout: Checkout
    store: Store
    repository: Repository
    offline: bool
    as_json: bool

    def source(self, spec: str, *, offline: bool | None = None) -> Source:
        """Where pristine trees come from: ``index``, ``git``, an address or a folder."""
        settings = read_settings(offline=self.offline if offline is None else offline)
        return open_source(spec, Access(self.store, self.repository, settings))

    def job(
        self,
        *,
        patchset: str,
        platform: str,
        source: str,
        out: Path | None = None,
        allow_unproved: tuple[str, ...] = (),
    ) -> Job:
        """The job of making the point of *patchset* into a wheel for *platform*."""
        options = Options(
            platform=platform,
            source=source,
            out=(out or self.checkout.root / "dist").absolute(),
            allow_unproved=frozenset(allow_unproved),
            offline=self.offline,
        )
        job = Job(
            checkout=self.checkout,
            point=self.checkout.point(patchset),
            options=options,
            store=self.store,
            repository=self.repository,
            source=self.source(source),
            known_source=self.source(source, offline=True),
        )
        _ = job.stock_wheel  # an unknown platform is said before any work
        return job


@contextlib.contextmanager
def _open_session(root: Path, *, offline: bool, as_json: bool, quiet: bool) -> Iterator[Session]:
    checkout = open_checkout(root)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    log = JsonlSink(checkout.root / ".sparkwright" / "events" / f"{stamp}-{os.getpid()}.jsonl")
    with contextlib.closing(log), subscribe(log), showing_events(quiet=quiet or as_json):
        store = open_store()
        repository = open_repository(store.git)
        try:
            emit("session.started", root=str(checkout.root), store=str(store.home), offline=offline)
            yield Session(checkout, store, repository, offline, as_json)
        finally:
            repository.close()


def common_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add ``--root``, ``--offline``, ``--quiet`` and ``--json``."""
    options = (
        click.option(
            "--root",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            default=Path(),
            help="A clone of the project; by default the one that the current folder is in.",
        ),
        click.option("--offline", is_flag=True, envvar="SPARKWRIGHT_OFFLINE", help="Use no network."),
        click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def job_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add ``--patchset``, ``--platform`` and ``--source``."""
    options = (
        click.option("--patchset", default=DEFAULT_PATCHSET, show_default=True, help="Which patchset."),
        click.option("--platform", default=DEFAULT_PLATFORM, show_default=True, help="Which machine."),
        click.option(
            "--source",
            default="index",
            show_default=True,
            help="Where upstream's tree comes from: index, git, a repository's address, or a folder.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def run_in_session(function: Callable[..., R]) -> Callable[..., R]:
    """Call *function* with a `Session` in place of the common options."""

    @functools.wraps(function)
    def wrapper(*, root: Path, offline: bool, quiet: bool, as_json: bool, **arguments: Any) -> R:
        with _open_session(root, offline=offline, as_json=as_json, quiet=quiet) as session:
            return function(session, **arguments)

    return wrapper


def print_json(value: Any) -> None:
    """Print *value* for machines."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))
