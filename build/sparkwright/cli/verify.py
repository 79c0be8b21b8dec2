"""``sparkwright verify``."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import ConfigError, SparkwrightError, UndecidedError, VerdictError
from sparkwright.base.events import emit
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli.command import Parent, Result, Table, takes
from sparkwright.cli.options import (
    FILE_TYPE,
    FOLDER_TYPE,
    NAMES,
    NUMBERS,
    PATH_TYPE,
    UNLOCKED,
    machines_option,
    require_libraries,
    together,
)
from sparkwright.cli.output import EVENTS, NOT_OURS, events_kept, showing_events
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.tasks import parse_cluster
from sparkwright.engine.environment import OfferedWheel
from sparkwright.engine.findings import Verdict
from sparkwright.engine.offered import offered_wheel
from sparkwright.publish.evidence import attach
from sparkwright.publish.index import dist_folder
from sparkwright.recipes.recipe import load_recipe
from sparkwright.serve.preflight.finding import require_clear, warn_or_refuse
from sparkwright.serve.preflight.run import EARLY, look_before
from sparkwright.store.paths import open_store
from sparkwright.store.remote.tier import open_tier
from sparkwright.verify.datasets import read_prompts
from sparkwright.verify.journal import FILE, read_journal
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import Plan, plan_of
from sparkwright.verify.report import render_terminal
from sparkwright.verify.report.figures import consequences
from sparkwright.verify.results import Results
from sparkwright.verify.runner import run_verification, verify_remotely
from sparkwright.verify.setup import Refusal

DEFAULT_RECIPE = "qwen3.6-27b-dflash"
_PATHS = {"log", "prompts", "python", "reference", "wheel"}


def objective(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """Return the limits of ``--slo``; refuse empty ones, as a shell variable gives that is not set."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty; give limits such as ttft_p95=2s,tpot_p95=100ms")
    return value or ""


MODEL = click.option("--model", default="", help="The model's name there, if it serves several.")
LOG = click.option("--log", default="", help="The file that the server at --url writes its log to.")
OUT = click.option("--out", type=PATH_TYPE, help="Folder; one in dist/evidence/ by default.")
RESUME = click.option("--resume", type=FOLDER_TYPE, help="Continue the interrupted run in this folder.")
PLAN = click.option(
    "--plan", "only_plan", is_flag=True, help="Show what would be measured, and how long it takes."
)
FAULTS = click.option(
    "--fault", "faults", multiple=True, metavar="NAME[=VALUE][@SETTING=VALUE]", help="Break simulators so."
)
SPEED = click.option(
    "--speed", type=float, default=0.0, hidden=True, help="How fast a simulator's clock runs."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="Of salts, documents and orders.")

OPTIONS = (
    click.option("--url", default="", help="Verify the server at this address instead of starting one."),
    click.option(
        "--reference",
        default="",
        metavar="RUN",
        help="Also compare answers with this run's, which recorded them by --checks reference.",
    ),
    MODEL,
    LOG,
    click.option(
        "--recipe", default="", help=f"What to serve, by name or file.  [default: {DEFAULT_RECIPE}]"
    ),
    click.option("--use", default="", help="The use of the recipe that is served, such as many."),
    click.option("--python", default="", help="Serve with this interpreter's vLLM instead of a wheel."),
    UNLOCKED,
    click.option("--demo", is_flag=True, help="A run against the simulator, without any GPU."),
    FAULTS,
    click.option(
        "--profile",
        default="",
        help="How much: quick (20 min, the default), full (hours), cpu, or smoke (tiny models, any GPU).",
    ),
    click.option("--checks", type=NAMES, default=(), help="Run only these, such as boot,sweep."),
    click.option("--levels", type=NUMBERS, default=(), help="Concurrencies of the sweep, such as 1,8,64."),
    click.option("--categories", type=NAMES, default=(), help="Categories of prompts."),
    click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False),
        help="The sweep's prompts: JSON lines with messages or prompt.",
    ),
    click.option("--max-tokens", type=click.IntRange(min=2), help="Output of each request of the sweep."),
    click.option(
        "--slo", callback=objective, help="Find the highest rate that keeps these limits: ttft_p95=2s."
    ),
    click.option("--thinking", is_flag=True, help="Let the model think before it answers questions."),
    SPEED,
    SEED,
)


def given_of(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the command line states, with absolute paths."""
    given = {name: value for name, value in asked.items() if value not in (None, "", ())}
    return given | {name: str(Path(given[name]).absolute()) for name in _PATHS & given.keys()}


def options_of(wheel: Path | None, asked: dict[str, Any]) -> VerifyOptions:
    """Return the options of the command line as one model."""
    demo = asked.pop("demo")
    given = given_of(asked)
    sources = {
        "--url": bool(asked["url"]),
        "--demo": demo,
        "a wheel or --python": bool(wheel or asked["python"]),
    }
    if sum(sources.values()) != 1:
        named = [name for name, wanted in sources.items() if wanted]
        raise ConfigError(
            "it is not clear which server to verify",
            because=f"{' and '.join(named)} exclude each other" if named else "none was named",
            next_step="give a wheel, --python, --url or --demo",
        )
    given["profile"] = asked["profile"] or ("demo" if demo else "quick")
    if not (asked["url"] or demo):
        given["recipe"] = _recipe_of(asked)
    if "prompts" in given:
        read_prompts(Path(given["prompts"]))  # refused before any server starts
        given["prompts_sha256"] = sha256_file(Path(given["prompts"]))
    if wheel is not None:
        given["wheel"] = str(wheel.absolute())
    return VerifyOptions(**given, simulator=demo)


def _recipe_of(asked: dict[str, Any]) -> str:
    return str(asked["recipe"] or ("smoke" if asked["profile"] == "smoke" else DEFAULT_RECIPE))


def wheel_here(
    named: str, use: str, *, offline: bool, force: bool, cluster: str = "", make: bool = True
) -> OfferedWheel:
    """Return the wheel that 'serve' takes for the recipe *named*, made if there is none.

    A machine that could not serve it is refused first: making a wheel takes minutes. One of a *cluster* is
    not known yet.
    """
    recipe = load_recipe(named, use)
    if make and not cluster:
        found = look_before(recipe, offline=offline)
        require_clear((one for one in found if one.check in EARLY), force=force)
    return offered_wheel(None, "", recipe.series, offline=offline, make=make)


_COMPARE = "sparkwright.cli.verify_compare"


@click.command("verify", cls=Parent, subcommands={"compare": _COMPARE, "eval": _COMPARE})
@click.argument("wheel", required=False, type=FILE_TYPE)
@OUT
@RESUME
@machines_option
@PLAN
@click.option("--force", is_flag=True, help="Start the server in spite of preflight's predictions.")
@together(*OPTIONS)
@takes("offline", "quiet", "as_json")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    wheel: Path | None,
    out: Path | None,
    resume: Path | None,
    cluster: str,
    offline: bool,
    only_plan: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
    **asked: Any,
) -> Result:
    """Verify that a server with WHEEL serves as it should, up to 64 requests at a time.

    Starts the server by a recipe, or takes one that runs (--url), or a simulated one (--demo). Without any
    of these, WHEEL is the one in dist/ of the present build spec, else of the highest revision; where there
    is none, it is made as 'serve' makes it. Leaves a report, and everything that was seen. --resume continues
    an interrupted run. With --cluster the server runs on another machine, which needs a GB10 (any card for
    --profile smoke, none for --demo), and the run comes back as it would be here.

    With --slo, the highest rate of requests is searched at which it holds.

    'verify compare' compares finished runs, wheels, recipes, or settings of one recipe, and 'verify eval'
    evaluates tasks.
    """
    require_libraries()
    key = os.environ.get("SPARKWRIGHT_API_KEY", "")
    with showing_events(quiet=quiet or as_json):
        if resume is not None:
            options = recorded_options(context, resume, asked, key)
        else:
            if not (wheel or any(asked[name] for name in ("python", "url", "demo"))):
                chosen = wheel_here(
                    _recipe_of(asked), asked["use"], offline=offline, force=force, cluster=cluster,
                    make=not only_plan,
                )  # fmt: skip
                wheel = chosen.wheel
                if not (quiet or as_json):
                    click.echo(f"verifying {wheel}: {chosen.why}", err=True)
            options = options_of(wheel, asked)
        plan = plan_of(options)
        if only_plan:
            return shown_plan(plan)
        results = execute(plan, key, out=out, resume=resume, cluster=cluster, offline=offline, force=force)
    _attach(results, options)
    return shown(results)


def execute(
    plan: Plan,
    key: str = "",
    *,
    out: Path | None,
    resume: Path | None,
    cluster: str,
    offline: bool,
    force: bool = False,
    refusal: Refusal | None = None,
) -> Results:
    """Run *plan* here or on another machine."""
    if cluster and (resume is not None or offline):
        raise ConfigError(
            f"{'--resume' if resume else '--offline'} cannot be used with --cluster",
            because="a run on another machine begins there, and needs its network",
            next_step="leave out one of them",
        )
    folder = (resume or out or evidence_folder(plan.options.title)).absolute()
    try:
        msgspec.json.encode((folder.name, plan.options))  # as the journal begins
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a run cannot name {error.object!r}",
            because="its journal is UTF-8, which this is not",
            next_step="rename it, or name another folder: --out FOLDER",
        ) from error
    with _kept(folder):
        if resume is None:
            found = plan.estimate()
            cells, requests, tokens = found.totals
            emit("verify.planned", seconds=found.seconds, cells=cells, requests=requests, tokens=tokens)
        if not cluster:
            _look_before(plan.options, offline=offline, force=force)
            return run_verification(plan, folder, key, offline=offline, refusal=refusal)
        machines, store = parse_cluster(cluster), open_store(remote=open_tier())
        with store.running():
            return verify_remotely(Cluster(hosts=machines, store=store), plan.options, folder)


def _look_before(options: VerifyOptions, *, offline: bool, force: bool) -> None:
    """Refuse to verify by a recipe whose server would not start; what does not stop it becomes a warning."""
    if not options.recipe or options.url or options.simulator:
        return
    named = [(options.recipe, options.use)]
    named += [recipe_and_use(options.against_recipe)] if options.against_recipe else []
    python, wheel = (Path(one) if one else None for one in (options.python, options.wheel))
    for one in named:
        found = look_before(load_recipe(*one), python=python, wheel=wheel, offline=offline)
        warn_or_refuse(found, force=force)


def _attach(results: Results, options: VerifyOptions) -> None:
    """Attach a passed run to the digest of its wheel."""
    manifest = results.run.manifest
    wheel = manifest.get("wheel")  # a text where an interpreter's vLLM was served, which has no file
    if results.verdict is not Verdict.PASS or not isinstance(wheel, dict) or options.compared:
        return
    detail = {
        "run": results.folder.name,
        "server": manifest.get("title", ""),
        "profile": options.profile,
        "capability": manifest.get("card", ""),
        "runtime": manifest.get("wheel-runtime", ""),
        "coverage": str(results.run.coverage),
        "complete": options.profile == "full" and not options.narrowed and results.run.coverage.whole,
    }
    files = {path.name: sha256 for path, _, sha256 in results.files}
    sha256 = wheel["sha256"]
    attach(
        dist_folder(Path()).absolute(), "verify", sha256, detail, name=f"verify-{detail['run']}", files=files
    )


def recorded_options(context: click.Context, folder: Path, asked: dict[str, Any], key: str) -> VerifyOptions:
    """Return the options of the interrupted run in *folder*; refuse a command line that states any of them.

    The address may be repeated.
    """
    options = VerifyOptions.from_options(read_journal(folder).manifest.options)
    same = {"url"} if context.params.get("url") == options.url else set()
    refuse_stated(context, "a resumed run keeps its original options", {"resume", "cluster", "force", *same})
    if key and options.url and not asked["url"]:  # a folder may have come from anywhere
        raise ConfigError(
            "a key is sent to no address that only a journal names",
            because=f"{folder} says {options.url}, and --url was not given",
            next_step=f"add --url {options.url} if the key is for that server",
        )
    return options


def refuse_stated(context: click.Context, what: str, usual: Collection[str]) -> None:
    """Do nothing if the command line states nothing but the parameters *usual*."""
    stated = [
        one.human_readable_name if isinstance(one, click.Argument) else one.opts[-1]
        for one in context.command.params
        if one.expose_value
        and one.name not in usual
        and context.get_parameter_source(str(one.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if stated:
        raise ConfigError(what, because=f"{stated[0]} was given too", next_step=f"leave out {stated[0]}")


def evidence_folder(name: str) -> Path:
    """Return a folder below dist/evidence/ whose name begins so and ends with the time."""
    # To the microsecond: runs that begin in one second do not share a folder.
    return dist_folder(Path()) / "evidence" / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def report_folder(out: Path | None, name: str) -> Path:
    """Return *out*, or an `evidence_folder`, for a report that is not of a run there."""
    folder = (out or evidence_folder(name)).absolute()
    if (folder / FILE).exists():
        raise ConfigError(
            f"{folder} holds a run",
            because="its report would be replaced",
            next_step="name another folder: --out FOLDER",
        )
    return folder


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Keep the events of the run in *folder*, which goes again if the run does not begin."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with events_kept(folder, "name another folder: --out FOLDER"):
            yield
    except (SparkwrightError, *NOT_OURS):
        if made and folder.is_dir() and [path.name for path in folder.iterdir()] == [EVENTS]:
            (folder / EVENTS).unlink()
            with contextlib.suppress(OSError):  # something else is in one that we made
                for place in made:
                    place.rmdir()
        raise
    except KeyboardInterrupt as error:
        if not (folder / FILE).exists():
            raise
        path = click.get_current_context().command_path.replace(" report", " verify")
        command = f"{path} --resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"{command} continues the run") from error


# What is shown -------------------------------------------------------------------------------------------


def shown(results: Results) -> Result:
    """Return *results*, and the error of what did not pass."""
    from rich.console import Console

    files = [
        f"{path.name:<13} {path}  {human_size(size)}  sha256 {sha256}" for path, size, sha256 in results.files
    ]
    verdict = partial(render_terminal, results.run, Console(highlight=False))
    return Result(
        results.described, [verdict, *files, ("next", f"open {results.report}")], failure_of(results)
    )


def shown_plan(plan: Plan) -> Result:
    """Return the cells of *plan*, and how long they take by typical rates."""
    found = plan.estimate()
    names = ("measurements", "requests", "tokens")
    rows, checks = list[tuple[str, ...]](), {}
    for one in found.shares:
        sizes = (one.cells, one.requests, one.tokens)
        checks[one.check] = {**dict(zip(names, sizes, strict=True)), "seconds": round(one.seconds, 1)}
        if one.cells:
            rows.append((one.check, *map("{:,}".format, sizes), human_seconds(one.seconds)))
    rows += [("starts", "", "", "", human_seconds(found.before_s))] if found.before_s else []
    rows.append(("together", *map("{:,}".format, found.totals), human_seconds(found.seconds)))
    totals = dict(zip(names, found.totals, strict=True))
    return Result(
        {"checks": checks, **totals, "starts": found.starts, "seconds": round(found.seconds, 1)},
        [Table(("check", *names, "about"), rows)],
    )


def failure_of(results: Results) -> SparkwrightError | None:
    """Return the error of a run that failed or is undecided, which names the causes."""
    if results.verdict is Verdict.PASS:
        return None
    run, followers = results.run, consequences(results.run)
    worst = [
        finding
        for place, finding in enumerate(run.findings)
        if finding.verdict is run.verdict and place not in followers
    ]
    failed = results.verdict is Verdict.FAIL
    return (VerdictError if failed else UndecidedError)(
        "the server does not serve as it should" if failed else f"the verdict is {results.verdict}",
        because="\n".join(f"{finding.check}: {finding.cause}" for finding in worst[:5]),
        next_step=f"open {results.report}",
    )
