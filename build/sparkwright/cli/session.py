"""The session of a command: the checkout, the store, the event log, and a command's checkout."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from sparkwright.base.errors import NotInStoreError, ProcessError
from sparkwright.base.events import JsonlSink, emit, subscribe
from sparkwright.base.text import human_size
from sparkwright.cli.command import Part, Result, global_options, taking
from sparkwright.cli.output import NOT_OURS, crashes_kept, showing_events
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.tasks import parse_cluster
from sparkwright.git.repository import Repository, open_repository
from sparkwright.git.soundness import inode, mended, unsoundness
from sparkwright.pipeline.checkout import Checkout, keeping_series, open_checkout, require_clone, with_series
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.options import DEFAULT_PLATFORM, BuildOptions, CompileOptions, TargetOptions
from sparkwright.store.disk import ActiveRun, storing
from sparkwright.store.paths import Store, open_store
from sparkwright.store.remote.tier import RemoteReport, open_tier
from sparkwright.store.upkeep import prune_logs
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access, UpstreamSource, open_source

R = TypeVar("R")

WORK = ".sparkwright"
_LOGS_KEPT_DAYS = 30.0
_WRITABLE = "work in a writable folder: each run writes its event log there"


@dataclass(frozen=True)
class Session:
    """One run of a command.

    Attributes:
        checkout: the clone of the project, or outside of one the package's copy.
        repository: the store's git repository.
        offline: use no network.
        run: this run's entry in the store, which protects what it uses.
        store_url: the address given with ``--store``; empty without one.
    """

    checkout: Checkout
    store: Store
    repository: Repository
    offline: bool
    run: ActiveRun
    store_url: str = ""

    @property
    def logs(self) -> tuple[Path, ...]:
        """Event logs, compilers' output and tracebacks of runs here."""
        return _logs(self.checkout.folder / WORK)

    @property
    def access(self) -> Access:
        """The store and the network settings."""
        return Access(self.store, self.repository, read_settings(offline=self.offline))

    def of_wheel(self, wheel: Path) -> Session:
        """Return the session with the lock of the series that *wheel* is of; see `Checkout.of_wheel`."""
        return replace(self, checkout=self.checkout.of_wheel(wheel))

    def hint(self, command: str, checkout: Checkout | None = None) -> Part:
        """Return the *command* to go on with, on the series of *checkout*, by default this one's."""
        return "next", with_series(command, checkout or self.checkout)

    def source(self, spec: str) -> UpstreamSource:
        """Return the origin of pristine trees: ``index``, ``git``, an address or a folder."""
        return open_source(spec, self.access)

    def require_network(self, what: str) -> None:
        """Refuse to fetch *what* without a network."""
        if self.offline:
            raise NotInStoreError(
                f"{what} cannot be fetched",
                because="the network is off",
                next_step="run once without --offline",
            )

    def require_sound_repository(self) -> None:
        """Refuse a damaged repository in the store."""
        if why := unsoundness(self.repository):
            raise ProcessError("git's objects in the store are damaged", because=why)

    def job(
        self,
        target: TargetOptions,
        *,
        out: Path | None = None,
        allow_unproved: tuple[str, ...] = (),
        require_native: bool = False,
        compiling: CompileOptions | None = None,
    ) -> Job:
        """Return the job of building the *target* with these options."""
        if not target.platform:  # it is the same on every machine
            wheels = self.checkout.lock.wheels
            target = replace(target, platform=DEFAULT_PLATFORM if DEFAULT_PLATFORM in wheels else min(wheels))
        options = BuildOptions(
            **vars(target),
            out=out,
            allow_unproved=frozenset(allow_unproved),
            offline=self.offline,
            require_native=require_native,
            compiling=compiling or CompileOptions(),
        )
        job = make_job(self.checkout, self.store, self.repository, options)
        if not options.compiling.cluster:
            return job
        hosts = parse_cluster(options.compiling.cluster)
        return replace(job, cluster=Cluster(hosts=hosts, store=self.store))


@contextlib.contextmanager
def _open_session(
    *, read_only: bool, clone: bool, root: Path, series: str, patchset: str, store_url: str, offline: bool,
    quiet: bool, as_json: bool,
) -> Iterator[Session]:  # fmt: skip
    checkout = open_checkout(root, series, patchset)
    if clone:
        require_clone(checkout)
    work = checkout.folder / WORK
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    # The outermost handler: errors of lower layers about a full or read-only disk are clearer and come first.
    with (
        keeping_series(checkout),
        crashes_kept(work),
        storing(f"'{click.get_current_context().command_path}'"),
    ):
        with storing(f"writing to {checkout.folder}", instead=_WRITABLE):
            log = JsonlSink(work / "events" / f"{stamp}-{os.getpid()}.jsonl")
        with contextlib.closing(log), subscribe(log), showing_events(quiet=quiet or as_json):
            prune_logs(_logs(work), _LOGS_KEPT_DAYS)
            store = open_store(remote=None if offline or read_only else open_tier(store_url))
            remote = store.remote.settings.url if store.remote is not None else ""
            places = {"root": str(checkout.root), "store": str(store.home), "remote": remote}
            emit("session.started", **places, offline=offline)
            with store.running() as run:
                repository = Repository(store.git) if read_only else open_repository(store.git)
                with contextlib.closing(repository):
                    yield Session(checkout, store, repository, offline, run, store_url)


def _logs(work: Path) -> tuple[Path, ...]:
    return work / "events", work / "compile", *sorted(work.glob("crash-*.txt"))


def run_in_session(function: Callable[..., R]) -> Callable[..., R]:
    """Call *function* with a `Session`, made by the global options; with ``--plan``, it only reads."""
    return _in_session(function, read_only=False)


def run_in_clone(function: Callable[..., R]) -> Callable[..., R]:
    """Like `run_in_session`, for commands that write to the clone, and are refused outside of one."""
    return _in_session(function, read_only=False, clone=True)


def run_read_only(function: Callable[..., R]) -> Callable[..., R]:
    """Like `run_in_session`, for commands that only read: the store's repository is not created for them."""
    return _in_session(function, read_only=True)


def _in_session(function: Callable[..., R], *, read_only: bool, clone: bool = False) -> Callable[..., R]:
    @functools.wraps(function)
    def wrapper(**arguments: Any) -> R:
        reading = read_only or arguments.get("only_plan", False)
        with _open_session(read_only=reading, clone=clone, **global_options()) as session:
            if reading:
                return _completed(session, function(session, **arguments))
            damaged = functools.partial(
                mended, session.store, session.repository, session.run, inode(session.repository)
            )
            try:
                result = function(session, **arguments)
                failure = result.failure if isinstance(result, Result) else None
                if failure is None or not damaged(failure):
                    return _completed(session, result)
            except NOT_OURS:
                raise
            except Exception as error:
                if not damaged(error):
                    raise
            # Once: damage that comes back has another cause than the store.
            with contextlib.closing(open_repository(session.store.git)) as repository:
                return _completed(session, function(replace(session, repository=repository), **arguments))

    return taking("root", "store_url")(wrapper)


def _completed(session: Session, result: R) -> R:
    """Return *result* with what the remote tier did, and with hints of its series."""
    if not isinstance(result, Result):
        return result
    if result.failure is not None:
        result.failure.next_step = with_series(result.failure.next_step, session.checkout)
    remote = session.store.remote
    if not isinstance(result.described, dict) or remote is None:
        return result
    described = {**result.described, "remote": remote.report.to_json()}
    return replace(result, described=described, parts=[*result.parts, *_remote_rows(remote.report)])


def _remote_rows(report: RemoteReport) -> Iterator[Part]:
    read = human_size(report.bytes_read)
    yield "shared", f"{report.hits} found and {report.misses} not in {report.url}: {read} read"
    if report.written:
        yield "", f"{report.written} written: {human_size(report.bytes_written)}"
    if report.refused:
        yield "", f"{report.refused} refused: not what was asked for, or of unknown writers"
    if report.stopped:
        yield "", f"stopped: {report.stopped}"
