"""What a command works in: the checkout, the store, the event log, and options that many share."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from sparkwright.base.errors import (
    CarryConflictError,
    FetchError,
    LostFileError,
    NotInStoreError,
    PatchError,
    ProcessError,
    ProofError,
    RefError,
    SparkwrightError,
    UnprovedError,
)
from sparkwright.base.events import JsonlSink, emit, subscribe, warn
from sparkwright.carries.folder import unknown_name
from sparkwright.cli.output import unforeseen
from sparkwright.cli.terminal import showing_events
from sparkwright.git import Repository, discard, open_repository, unsoundness
from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.choose import choose_arch
from sparkwright.pipeline.job import BuildOptions, Compiling, Job
from sparkwright.pipeline.toolchain_resource import ToolchainFacility
from sparkwright.store import ActiveRun, Store, open_store, storing
from sparkwright.store.prune import prune_logs
from sparkwright.upstream import Access, UpstreamSource, open_source, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkwright.cli.options import TargetOptions

P = ParamSpec("P")
R = TypeVar("R")

WORK = ".sparkwright"
# As what damaged objects in the store's repository show themselves.
_PERHAPS_GIT = (
    CarryConflictError, FetchError, PatchError, ProcessError, ProofError, RefError, UnprovedError,
)  # fmt: skip
_LOGS_KEPT_DAYS = 30.0
_WRITABLE = "work in a clone that can be written: what a run did is noted in it"


@dataclass(frozen=True)
class Session:
    """One run of a command.

    Attributes:
        checkout: the clone of the project that it works on.
        store: the content-addressed store.
        repository: the store's git repository.
        offline: whether the network is off.
        as_json: whether results are printed for machines.
        run: this run, as other runs see it in the store.
    """

    checkout: Checkout
    store: Store
    repository: Repository
    offline: bool
    as_json: bool
    run: ActiveRun

    @property
    def logs(self) -> tuple[Path, ...]:
        """Where runs in this checkout left event logs, compilers' output and tracebacks."""
        return _logs(self.checkout.root / WORK)

    @property
    def access(self) -> Access:
        """How things are fetched, and where they are kept."""
        return Access(self.store, self.repository, read_settings(offline=self.offline))

    def source(self, spec: str) -> UpstreamSource:
        """Where pristine trees come from: ``index``, ``git``, an address or a folder."""
        return open_source(spec, self.access)

    def require_network(self, what: str) -> None:
        """Do nothing where the network may be used.

        Raises:
            NotInStoreError: it may not, and *what* is nowhere else.
        """
        if self.offline:
            raise NotInStoreError(
                f"{what} cannot be asked for",
                because="the network is off",
                next_step="run once without --offline",
            )

    def require_sound_repository(self) -> None:
        """Do nothing where git finds no damage in the store's repository.

        Raises:
            ProcessError: it does; the command is tried again with another repository.
        """
        if why := unsoundness(self.repository):
            raise ProcessError("git's objects in the store are damaged", because=why)

    def job(
        self,
        wanted: TargetOptions,
        *,
        out: Path | None = None,
        allow_unproved: tuple[str, ...] = (),
        require_native: bool = False,
        full: bool = False,
        compiling: Compiling | None = None,
    ) -> Job:
        """The job of making the wheel that is *wanted*."""
        options = BuildOptions(
            platform=wanted.platform,
            source=wanted.source,
            out=(out or self.checkout.root / "dist").absolute(),
            allow_unproved=frozenset(allow_unproved),
            offline=self.offline,
            require_native=require_native,
            full=full,
            compiling=compiling or Compiling(),
        )
        lock = self.checkout.lock
        _ = lock.wheel(wanted.platform)  # an unknown platform is said before any work
        arch = choose_arch(lock, wanted.platform, kernels=wanted.kernels, arch=wanted.arch)
        system = options.compiling.cuda
        facility = ToolchainFacility(lock, wanted.platform, self.access, system)
        job = Job(
            checkout=self.checkout,
            point=self.checkout.point(wanted.patchset, arch=arch),
            options=options,
            store=self.store,
            repository=self.repository,
            source=self.source(wanted.source),
            facilities={"toolchain": facility} if arch else {},
        )
        names = [carry.name for carry in job.point.carries]
        for name in allow_unproved:
            if name not in names:
                raise unknown_name("carry in this patchset", name, names)
        return job


@contextlib.contextmanager
def _open_session(
    root: Path, *, offline: bool, as_json: bool, quiet: bool, read_only: bool
) -> Iterator[Session]:
    checkout = open_checkout(root)
    work = checkout.root / WORK
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    # The last net: what a room says of a full or forbidden disk is clearer, and comes first.
    with _crashes_kept(work), storing(f"'{click.get_current_context().command_path}'"):
        with storing(f"writing to the checkout {checkout.root}", instead=_WRITABLE):
            log = JsonlSink(work / "events" / f"{stamp}-{os.getpid()}.jsonl")
        with contextlib.closing(log), subscribe(log), showing_events(quiet=quiet or as_json):
            prune_logs(_logs(work), _LOGS_KEPT_DAYS)
            store = open_store()
            emit("session.started", root=str(checkout.root), store=str(store.home), offline=offline)
            with store.running() as run:
                repository = Repository(store.git) if read_only else open_repository(store.git)
                with contextlib.closing(repository):
                    yield Session(checkout, store, repository, offline, as_json, run)


def _logs(work: Path) -> tuple[Path, ...]:
    return work / "events", work / "compile", *sorted(work.glob("crash-*.txt"))


@contextlib.contextmanager
def _crashes_kept(folder: Path) -> Iterator[None]:
    """Turn what nobody foresaw into one clear error, with its traceback in *folder*."""
    try:
        yield
    except (SparkwrightError, click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        raise unforeseen(error, folder) from error


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


def run_in_session(function: Callable[..., R]) -> Callable[..., R]:
    """Call *function* with a `Session` in place of the common options."""
    return _in_session(function, read_only=False)


def run_read_only(function: Callable[..., R]) -> Callable[..., R]:
    """Like `run_in_session`, for commands that only look: the store's repository is not made for them."""
    return _in_session(function, read_only=True)


def _in_session(function: Callable[..., R], *, read_only: bool) -> Callable[..., R]:
    @functools.wraps(function)
    def wrapper(*, root: Path, offline: bool, quiet: bool, as_json: bool, **arguments: Any) -> R:
        with _open_session(
            root, offline=offline, as_json=as_json, quiet=quiet, read_only=read_only
        ) as session:
            if read_only:
                return function(session, **arguments)
            opened = _inode(session.repository)
            try:
                return function(session, **arguments)
            except Exception as error:
                if not _mended(session, opened, error):
                    raise
            # Once: what is damaged again after that is not the store's fault alone.
            with contextlib.closing(open_repository(session.store.git)) as repository:
                return function(replace(session, repository=repository), **arguments)

    return wrapper


def _mended(session: Session, opened: int, error: Exception) -> bool:
    """Tell whether *error* came of damage in the store that is gone now, so that another try is worth it."""
    if isinstance(error, LostFileError):  # dropped where it was found
        why = error.because
    elif not _perhaps_gits(error):
        return False
    elif why := unsoundness(session.repository):
        session.repository.close()
        with session.store.scratch() as trash:
            discard(session.repository, trash)
    elif _inode(session.repository) != opened:
        why = "another run found the repository damaged"
    if not why:
        return False
    warn(f"the store was damaged, and what is needed is fetched or made again: {why}", because=why)
    return True


def _perhaps_gits(error: Exception) -> bool:
    if isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)):
        return False
    return isinstance(error, _PERHAPS_GIT) or not isinstance(error, SparkwrightError)


def _inode(repository: Repository) -> int:
    return repository.path.stat().st_ino if repository.path.exists() else 0
