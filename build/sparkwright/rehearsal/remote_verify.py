"""Verify a server on another machine: a run of `verify` as a task, whose journal and logs come back.

Every result is made from the journal, on the machine that asks, as for a run here. The task needs a card
unless the server is simulated, and takes it for itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from sparkwright.base.config import Model
from sparkwright.base.errors import ConfigError, NotInStoreError
from sparkwright.base.events import emit
from sparkwright.cluster.capabilities import GB10, GPU
from sparkwright.cluster.kinds import VERIFY, Nothing, TaskKind, UnfitError
from sparkwright.cluster.messages import StoredFile
from sparkwright.cluster.sharing import bring_files, keep_files
from sparkwright.native.model import Cost
from sparkwright.store import remove_tree
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.results import Results, load_run, write_results
from sparkwright.verify.setup import prepare
from sparkwright.verify.suite import run_suite

if TYPE_CHECKING:
    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskDone
    from sparkwright.cluster.running import Cluster, TaskRequest
    from sparkwright.cluster.serving import Serving

_EXPECTED = Cost(seconds=3600.0, mib=4096)
_FILES = ("wheel", "against", "recipe")
_ENVIRONMENTS = "environments"


class VerifyTask(Model, frozen=True):
    """A run of `verify`.

    Attributes:
        options: what is verified; of files, the names alone.
        run: name of the run's folder.
        files: the files that options name, by the option.
    """

    options: VerifyOptions
    run: str
    files: dict[str, StoredFile]


class Verified(Model, frozen=True):
    """The number of findings in the journal that comes with it."""

    findings: int


def needs_of(options: VerifyOptions) -> tuple[str, ...]:
    """Return the capabilities that a run needs: GB10, or any card for the profile ``smoke``, or none."""
    if options.simulator:
        return ()
    return (GPU,) if options.profile == "smoke" else (GPU, GB10)


def require_sendable(options: VerifyOptions) -> None:
    """Refuse what another machine cannot verify.

    Raises:
        ConfigError: it is at an address, or is an interpreter of this machine.
    """
    named = {"--url": options.url, "--python": options.python, "--log": options.log}
    named["--prompts"] = options.prompts
    if options.against and not options.simulator and not options.against.endswith(".whl"):
        named["--against with an interpreter"] = options.against
    if Path(recipe_and_use(options.against_recipe)[0]).suffix == ".toml":
        named["--against-recipe with a file"] = options.against_recipe
    if found := [name for name, value in named.items() if value]:
        raise ConfigError(
            f"{found[0]} cannot be used with --cluster",
            because="it names something that this machine has or reaches",
            next_step="give a wheel, or verify without --cluster",
        )


def verify_elsewhere(cluster: Cluster, options: VerifyOptions, folder: Path) -> Results:
    """Run *options* on a machine of *cluster* that can; write its journal, logs and results into *folder*.

    Raises:
        ConfigError: another machine cannot verify that.
        ClusterError: no machine has what it needs, several were lost, or the result did not arrive.
        ServerError: the wheel could not be installed there.
    """
    from sparkwright.cluster.running import Batch, TaskRequest

    require_sendable(options)
    files = {
        name: path for name in _FILES if (path := Path(getattr(options, name))).suffix and path.is_file()
    }
    kept = {name: keep_files(cluster.store, path.parent, [path])[0] for name, path in files.items()}
    asked = VerifyTask(
        options=structs.replace(options, **{name: one.path for name, one in kept.items()}),
        run=folder.name,
        files=kept,
    )

    def take(request: TaskRequest, made: Verified, reply: TaskDone) -> bool:
        del request
        inside = all(one.path.startswith(f"{folder.name}/") for one in reply.files)
        if not inside or not bring_files(cluster.store, reply.files, folder.parent):
            return False
        try:
            run = load_run(folder)
        except ConfigError:
            return False
        emit("verify.finished", machine=reply.machine, verdict=str(run.verdict))
        return len(run.findings) == made.findings > 0

    request = TaskRequest(f"verify-{folder.name}", asked, _EXPECTED, needs_of(options))
    cluster.run(
        Batch(VERIFY, [request], Verified, take, files=tuple(kept.values()), title="verify", unit="runs")
    )
    return write_results(folder)


@dataclass(frozen=True)
class LaidRuns:
    """The store of a worker that verifies."""

    serving: Serving

    def run(self, asked: VerifyTask, place: Place) -> Verified:
        """Serve and verify.

        Raises:
            UnfitError: what the wheel requires cannot be had here.
        """
        store, folder = self.serving.access.store, place.out / asked.run
        for one in asked.files.values():
            self.serving.file(one)
        given = {name: str(store.named_file(one.sha256, one.path)) for name, one in asked.files.items()}

        async def run() -> int:
            suite, manifest = await prepare(structs.replace(asked.options, **given), folder)
            return len(await run_suite(suite, folder, manifest))

        try:
            found = asyncio.run(run())
        except NotInStoreError as error:
            raise UnfitError(f"{error.what}: {error.because}", error.next_step) from error
        remove_tree(folder / _ENVIRONMENTS)
        return Verified(findings=found)


def verify_kind() -> TaskKind:
    """Return the kind of task that is a run of `verify`."""
    return TaskKind(Nothing, VerifyTask, lambda serving, *_: LaidRuns(serving))
