"""One run, from its plan to its results: here, on another machine, or for a rehearsal or bisection.

On another machine the run is a process of its own, which needs a card unless the server is simulated, and
takes it for itself. Its journal and logs come back, and results are made of them on the machine that asks.
"""

from __future__ import annotations

import asyncio
import platform
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import structs

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ConfigError, ServerError
from sparkwright.base.events import emit
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.tasks import GB10, GPU, OUT, Done, Task, bring_files, share_file, share_json
from sparkwright.engine.environment import runtime_beside
from sparkwright.engine.findings import Finding
from sparkwright.engine.outcomes import CheckRequest, CheckResult, Verifier, broken_server, outcomes_of
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.recipes.evidence import Evidence
from sparkwright.recipes.recipe import recipe_text
from sparkwright.store.paths import Store, open_store
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.settings import BEST, OWN, arm_of
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import Plan, plan_of
from sparkwright.verify.results import Results, load_run, write_files, write_results
from sparkwright.verify.setup import Refusal, prepare
from sparkwright.verify.space import TOKENS
from sparkwright.verify.suite import run_plan


def run_verification(
    plan: Plan,
    folder: Path,
    api_key: str = "",
    *,
    offline: bool = False,
    refusal: Refusal | None = None,
) -> Results:
    """Run *plan*, or what is left of it, and write the results to *folder*; arguments as for `prepare`.

    Raises:
        ServerError: no server came up.
        StorageError: the disk is full or cannot be written.
    """

    async def run() -> None:
        await run_plan(*await prepare(plan, folder, api_key, offline=offline, refusal=refusal), folder)

    with open_store().running():  # so that no environment of a server is pruned meanwhile
        asyncio.run(run())
    results = write_results(folder)
    return write_tuned(results, plan.options) if plan.options.vary else results


# The recipe of a comparison of settings -----------------------------------------------------------------


RECIPE = "recipe.toml"


def write_tuned(results: Results, options: VerifyOptions) -> Results:
    """Write the recipe of the recommended configuration beside the other *results*, if there is one.

    Raises:
        ConfigError: the result is no recipe.
        StorageError: the disk is full or cannot be written.
    """
    configurations = options.configurations
    best, *rows = results.run.findings
    arms = {arm_of(configurations, index): one for index, one in enumerate(configurations)}
    chosen = arms.get(str(best.measured.get(BEST)))
    if chosen is None:
        (results.folder / RECIPE).unlink(missing_ok=True)
        return results
    base, recipe = configurations[OWN].recipe, chosen.recipe
    row = next(one for one in rows if one.name == chosen.name)
    told = [f"{name}: {value}" for name, value in row.measured.items() if " c=" in name]
    figures = "; ".join([*told, f"{row.measured['starts']} starts"])
    version = next((one.version for one in results.run.facts.values() if one.version), "")
    machine = "a simulator" if options.simulator else platform.node() or platform.machine()
    evidence = Evidence(
        grade="tuned here",
        where=f"{machine}, vLLM {version}" if version else machine,
        by="sparkwright verify compare --vary",
        source=f"{results.folder.name}: {figures}",
        date=str(results.run.manifest["started"])[:10],
    )
    settings = {"speculative.num_speculative_tokens" if one == TOKENS else one for one in chosen.settings}
    names = [*recipe.flags, *recipe.environment, *(f"speculative.{key}" for key in recipe.speculative)]
    tuned = msgspec.structs.replace(
        recipe,
        name=f"{base.name}-tuned",
        title=f"{base.title}, tuned",
        uses={},
        band="",
        reference=(),
        profile={},
        why={
            name: f"tuned here: {row.cause}" if name in settings else base.why.get(name, f"as in {base.name}")
            for name in names
        },
        evidence=(evidence,),
    )
    text = recipe_text(tuned, f"{best.cause}.")
    files = write_files(results.folder, {RECIPE: text.encode()})
    return replace(results, files=(*results.files, *files))


_EXPECTED_S, _EXPECTED_MIB = 3600.0, 4096
_FILES = ("wheel", "against", "recipe")


class RunRequest(Model, frozen=True):
    """A run of `verify`."""

    options: VerifyOptions
    run: str
    offline: bool = False


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
        needs=() if options.simulator else (GPU,) if options.profile == "smoke" else (GPU, GB10),
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
    return _judged(structs.replace(request.options, **here), folder, offline=request.offline)


def _judged(options: VerifyOptions, folder: Path, *, offline: bool) -> CheckResult:
    findings: tuple[Finding, ...] = ()
    try:
        findings = tuple(run_verification(plan_of(options), folder, offline=offline).run.findings)
        outcomes, up = outcomes_of(findings, options.checks, lenient=False), True
    except ServerFailedError as error:
        outcomes, up = broken_server(error, ("boot", *options.checks)), False
    return CheckResult(started=up, outcomes=tuple(outcomes), findings=findings)


_PAIRED = frozenset({"compare", "parity"})  # they need two servers


def _options(request: CheckRequest) -> VerifyOptions:
    is_wheel = request.vllm.suffix == ".whl"
    return VerifyOptions(
        recipe=request.recipe,
        wheel=str(request.vllm) if is_wheel else "",
        python="" if is_wheel else str(request.vllm),
        against="" if request.against is None else str(request.against),
        profile=request.profile,
        checks=request.checks,
        levels=request.levels,
        seed=request.seed,
    )


def _run(request: CheckRequest, folder: Path) -> tuple[Finding, ...]:
    return tuple(run_verification(plan_of(_options(request)), folder, offline=request.offline).run.findings)


def _judge(request: CheckRequest, folder: Path) -> CheckResult:
    return _judged(_options(request), folder, offline=request.offline)


def _task(store: Store, request: CheckRequest, name: str) -> Task:
    return run_task(store, _options(request), name, offline=request.offline)


VERIFIER = Verifier(tuple(name for name in ALL if name not in _PAIRED), _run, _judge, _task)
"""Runs all checks but those that need two servers, which a request may still name."""
