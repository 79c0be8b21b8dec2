"""Verify a server on another machine, or in a process of its own here: the run's journal and logs come back.

Every result is made from the journal, on the machine that asks, as for a run here. The task needs a card
unless the server is simulated, and takes it for itself.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ConfigError, ServerError
from sparkwright.base.events import emit
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.inputs import bring_files, share_file, share_json
from sparkwright.distributed.tasks import GB10, GPU, OUT, Done, Task
from sparkwright.engine.environment import runtime_beside
from sparkwright.engine.findings import Finding
from sparkwright.engine.outcomes import broken_server, outcomes_of
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.engine.verifier import CheckResult
from sparkwright.store import Store
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import plan_of
from sparkwright.verify.results import Results, load_run, write_results
from sparkwright.verify.runner import run_verification

_EXPECTED_S, _EXPECTED_MIB = 3600.0, 4096
_FILES = ("wheel", "against", "recipe")


class RunRequest(Model, frozen=True):
    """A run of `verify`."""

    options: VerifyOptions
    run: str
    offline: bool = False


def _needs_of(options: VerifyOptions) -> tuple[str, ...]:
    """Return what a run needs: a GB10, or any card for the profile ``smoke``, or nothing."""
    if options.simulator:
        return ()
    return (GPU,) if options.profile == "smoke" else (GPU, GB10)


def run_task(store: Store, options: VerifyOptions, name: str, *, offline: bool = False) -> Task:
    """Return the task of a run of *options* in a folder called *name*; see `RunRequest`.

    The locked runtime goes along with each wheel: there may be no checkout where it runs.

    Raises:
        ConfigError: a wheel has no locked runtime.
    """
    paths = {one: path for one in _FILES if (path := Path(getattr(options, one))).suffix and path.is_file()}
    files = {one: share_file(store, path, f"{one}/{path.name}") for one, path in paths.items()}
    locked = {} if options.unlocked else {one: path for one, path in paths.items() if path.suffix == ".whl"}
    runtimes = [
        share_file(store, runtime, f"{one}/{beside}")
        for one, (runtime, beside) in ((one, runtime_beside(path)) for one, path in locked.items())
    ]
    request = RunRequest(
        options=structs.replace(options, **{one: file.path for one, file in files.items()}),
        run=name,
        offline=offline,
    )
    return Task(
        name=f"verify-{name}",
        words=("task", "run"),
        files=(share_json(store, request), *files.values(), *runtimes),
        needs=_needs_of(options),
        seconds=_EXPECTED_S,
        mib=_EXPECTED_MIB,
    )


def require_sendable(options: VerifyOptions) -> None:
    """Refuse what another machine cannot verify.

    Raises:
        ConfigError: it is at an address, or is an interpreter of this machine.
    """
    named = {"--url": options.url, "--python": options.python, "--log": options.log}
    named |= {"--prompts": options.prompts, "--reference": options.reference}
    if options.against and not options.simulator and not options.against.endswith(".whl"):
        named["an interpreter"] = options.against
    if Path(recipe_and_use(options.against_recipe)[0]).suffix == ".toml":
        named["the file of a recipe"] = options.against_recipe
    if found := [name for name, value in named.items() if value]:
        raise ConfigError(
            f"{found[0]} cannot be used with --cluster",
            because="it names something that this machine has or reaches",
            next_step="give a wheel, or verify without --cluster",
        )


def verify_remotely(cluster: Cluster, options: VerifyOptions, folder: Path) -> Results:
    """Run *options* on a machine of *cluster* that can; write its journal, logs and results into *folder*.

    Raises:
        ConfigError: another machine cannot verify that.
        ClusterError: no machine has what it needs, several were lost, or the result did not arrive.
        ServerError: the wheel could not be installed there.
    """
    require_sendable(options)

    def take(done: Done) -> bool:
        ran = convert(done.value, CheckResult)
        if not ran.started:
            raise ServerError(f"the server did not start on {done.machine}", because=ran.outcomes[0].detail)
        inside = all(one.path.startswith(f"{folder.name}/") for one in done.files)
        if not inside or not bring_files(cluster.store, done.files, folder.parent):
            return False
        try:
            run = load_run(folder)
        except ConfigError:
            return False
        emit("verify.finished", machine=done.machine, verdict=str(run.verdict))
        return len(run.findings) == len(ran.findings) > 0

    asked = run_task(cluster.store, options, folder.name)
    cluster.run([asked], take, title="verify", unit="runs")
    return write_results(folder)


def run_here(request: RunRequest) -> CheckResult:
    """Serve and verify on this machine; the run is left in `OUT`.

    Raises:
        ServerError: the server could not be installed.
    """
    folder = Path(OUT).absolute() / request.run
    given = {one: getattr(request.options, one) for one in _FILES}
    here = {one: str(Path(text).absolute()) for one, text in given.items() if text.startswith(f"{one}/")}
    options = structs.replace(request.options, **here)
    findings: tuple[Finding, ...] = ()
    try:
        findings = tuple(run_verification(plan_of(options), folder, offline=request.offline).run.findings)
        outcomes, up = outcomes_of(findings, options.checks, lenient=False), True
    except ServerFailedError as error:
        outcomes, up = broken_server(error, ("boot", *options.checks)), False
    return CheckResult(started=up, outcomes=tuple(outcomes), findings=findings)
