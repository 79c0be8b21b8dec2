"""``sparkwright verify``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError, SparkwrightError, ToolError, UndecidedError, VerdictError
from sparkwright.base.events import JsonlSink, subscribe
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli.globals import FLAGS, Command, takes
from sparkwright.cli.machines import counting_machines, machines_rows, machines_summary, opened_cluster
from sparkwright.cli.options import machines_option
from sparkwright.cli.output import print_json, unforeseen
from sparkwright.cli.preflight import check_before_verify
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify_options import OPTIONS, OUT, PLAN, RESUME, options_of
from sparkwright.engine.offered import offered_wheel
from sparkwright.verify.estimate import Share
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import Plan
from sparkwright.verify.results import Results
from sparkwright.verify.setup import Refusal

_EVENTS = "events.jsonl"
_SUBCOMMANDS = {
    "compare": "sparkwright.cli.verify_compare",
    "eval": "sparkwright.cli.verify_eval",
}
# The extra of this name in pyproject.toml.
_LIBRARIES = ("aiohttp", "numpy", "scipy")


class _VerifyCommand(Command):
    """`verify` itself, and its subcommands by their names, which no wheel has."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand that *args* begins with, or of `verify` itself."""
        first = next((word for word in args if word[:1] != "-"), "")  # after global options, which are flags
        if first in _SUBCOMMANDS and set(args[: args.index(first)]) <= FLAGS:
            command: click.Command = importlib.import_module(_SUBCOMMANDS[first]).command
            args.remove(first)
            return command.make_context(f"{info_name} {first}", args, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


@click.command("verify", cls=_VerifyCommand)
@click.argument("wheel", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@OUT
@RESUME
@machines_option
@PLAN
@click.option("--force", is_flag=True, help="Start the server in spite of preflight's predictions.")
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
) -> None:
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
    with showing_run(quiet=quiet or as_json) as log:
        if resume is not None:
            options = recorded_options(context, resume, asked, key)
        else:
            if not (wheel or any(asked[name] for name in ("python", "url", "demo"))):
                chosen = offered_wheel(None, "", _series(asked), offline=offline, make=not only_plan)
                wheel = chosen.wheel
                if not (quiet or as_json):
                    click.echo(f"verifying {wheel}: {chosen.why}", err=True)
            options = options_of(wheel, asked)
        results, done = execute(
            options, log, key, out=out, resume=resume, cluster=cluster, offline=offline, force=force,
            only_plan=only_plan, as_json=as_json,
        )  # fmt: skip
    if results is not None:
        _attach(results, options)
        show_results(results, as_json=as_json, machines=done)


for _option in OPTIONS:
    command = _option(command)
"""The command, with every option that says what is verified."""


def execute(
    options: VerifyOptions,
    log: Callable[[Path], None],
    key: str = "",
    *,
    out: Path | None,
    resume: Path | None,
    cluster: str,
    offline: bool,
    only_plan: bool,
    as_json: bool,
    force: bool = False,
    refusal: Refusal | None = None,
) -> tuple[Results | None, dict[str, Counter[str]]]:
    """Run *options* here or on another machine; return the results, and what other machines did.

    With *only_plan* the plan is shown, and there are no results. The run's folder is given to *log* once it
    is known.
    """
    from sparkwright.verify.plan import plan_of

    if cluster and (resume is not None or offline):
        raise ConfigError(
            f"{'--resume' if resume else '--offline'} cannot be used with --cluster",
            because="a run on another machine begins there, and needs its network",
            next_step="leave out one of them",
        )
    plan = plan_of(options)
    if only_plan:
        show_plan(plan, as_json=as_json)
        return None, {}
    folder = (resume or out or evidence_folder(options.title)).absolute()
    log(folder)
    if resume is None:
        tell_plan(plan)
    if not cluster:
        check_before_verify(options, offline=offline, force=force)
    with counting_machines() as done:
        if cluster:
            from sparkwright.verify.remote import verify_remotely

            with opened_cluster(cluster) as machines:
                return verify_remotely(machines, options, folder), done
        from sparkwright.verify.runner import run_verification

        return run_verification(plan, folder, key, offline=offline, refusal=refusal), done


def _attach(results: Results, options: VerifyOptions) -> None:
    """Attach a passed run to the digest of its wheel."""
    from sparkwright.engine.findings import Verdict
    from sparkwright.publish import dist_folder
    from sparkwright.publish.evidence import attach

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
        "complete": options.profile == "full"
        and not (options.checks or options.slo or options.levels or options.categories)
        and results.run.coverage.whole,
    }
    files = {path.name: sha256 for path, _, sha256 in results.files}
    sha256 = wheel["sha256"]
    attach(
        dist_folder(Path()).absolute(), "verify", sha256, detail, name=f"verify-{detail['run']}", files=files
    )


def _series(asked: dict[str, Any]) -> tuple[str, ...]:
    """Return the series that the recipe to verify by is meant for; none for any."""
    from sparkwright.recipes import load_recipe

    return load_recipe(asked["recipe"]).series if asked["recipe"] else ()


def require_libraries(names: Collection[str] = _LIBRARIES, extra: str = "verify") -> None:
    """Do nothing if the libraries of *extra* are installed, by default those of verification.

    Raises:
        ToolError: one is not.
    """
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise ToolError(
            f"the command needs libraries of the extra {extra!r} that are not installed",
            because=f"{', '.join(missing)} cannot be imported",
            next_step=f"install the extra: pip install 'sparkwright[{extra}]', or 'make {extra}' in a clone",
        )


def recorded_options(context: click.Context, folder: Path, asked: dict[str, Any], key: str) -> VerifyOptions:
    """Return the options of the interrupted run in *folder*; refuse a command line that states any of them.

    The address may be repeated.

    Raises:
        ConfigError: it does, or the key would go to an address that the journal alone names.
    """
    from sparkwright.verify.journal import read_journal
    from sparkwright.verify.options import VerifyOptions

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
    """Do nothing if the command line states nothing but the parameters *usual*.

    Raises:
        ConfigError: it states another one.
    """
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
    from datetime import UTC, datetime

    from sparkwright.publish import dist_folder

    # To the microsecond: runs that begin in one second do not share a folder.
    return dist_folder(Path()) / "evidence" / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


@contextlib.contextmanager
def showing_run(*, quiet: bool) -> Iterator[Any]:
    """Show events, and keep them in the run's folder once that is known."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(showing_events(quiet=quiet))
        folder, made = Path(), list[Path]()

        def keep(run: Path) -> None:
            nonlocal folder, made
            folder = run
            made = [place for place in (run, *run.parents) if not place.exists()]
            from sparkwright.store import storing

            with storing(f"writing to {run}", instead="name another folder: --out FOLDER"):
                log = JsonlSink(run / _EVENTS)
            stack.enter_context(contextlib.closing(log))
            stack.enter_context(subscribe(log))

        try:
            yield keep
        except (SparkwrightError, click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            _remove_unbegun(made)
            raise
        except Exception as error:
            raise unforeseen(error, folder) from error


def _remove_unbegun(made: list[Path]) -> None:
    """Remove the folders in *made*, a run's own first, if nothing is in it but what the command did."""
    if made and [path.name for path in made[0].iterdir()] == [_EVENTS]:
        (made[0] / _EVENTS).unlink()
        with contextlib.suppress(OSError):  # something else is in one that we made
            for place in made:
                place.rmdir()


# What is shown -------------------------------------------------------------------------------------------


def show_results(
    results: Results, *, as_json: bool, machines: Mapping[str, Counter[str]] | None = None
) -> None:
    """Print *results*, and what other machines did.

    Raises:
        VerdictError: something failed.
        UndecidedError: something could not be decided.
    """
    if as_json:
        print_json({**results.described, **machines_summary(dict(machines or {}))})
    else:
        _show(results)
        for heading, told in machines_rows(dict(machines or {})):
            click.echo(f"{heading:8} {told}")
    _raise_for(results)


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print the cells of *plan*, and how long they take by typical rates."""
    found = plan.estimate()
    names = ("measurements", "requests", "tokens")
    if as_json:
        checks = {
            share.check: dict(zip((*names, "seconds"), _sizes(share), strict=True)) for share in found.shares
        }
        totals = dict(zip(names, found.totals, strict=True))
        print_json({"checks": checks, **totals, "starts": found.starts, "seconds": round(found.seconds, 1)})
        return
    rows: list[tuple[str, ...]] = [("check", *names, "about")]
    rows += [
        (share.check, *map("{:,}".format, _sizes(share)[:3]), human_seconds(share.seconds))
        for share in found.shares
        if share.cells
    ]
    if found.before_s:
        rows.append(("starts", "", "", "", human_seconds(found.before_s)))
    rows.append(("together", *map("{:,}".format, found.totals), human_seconds(found.seconds)))
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    for row in rows:
        _, *rest = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join([row[0].ljust(widths[0]), *rest]))


def tell_plan(plan: Plan) -> None:
    """Tell how long *plan* takes, before anything is started."""
    from sparkwright.base.events import emit

    found = plan.estimate()
    cells, requests, tokens = found.totals
    emit("verify.planned", seconds=found.seconds, cells=cells, requests=requests, tokens=tokens)


def _sizes(share: Share) -> tuple[int, int, int, float]:
    return share.cells, share.requests, share.tokens, round(share.seconds, 1)


def _show(results: Results) -> None:
    from rich.console import Console

    from sparkwright.verify.report import render_terminal

    render_terminal(results.run, Console(highlight=False))
    for path, size, sha256 in results.files:
        click.echo(f"{path.name:<13} {path}  {human_size(size)}  sha256 {sha256}")
    click.echo(f"next     open {results.report}")


def _raise_for(results: Results) -> None:
    """Do nothing if all was passed.

    Raises:
        VerdictError: something failed.
        UndecidedError: something could not be decided.
    """
    from sparkwright.engine.findings import Verdict
    from sparkwright.verify.report.overview import consequences

    if results.verdict is Verdict.PASS:
        return
    run, followers = results.run, consequences(results.run)
    worst = [
        finding
        for place, finding in enumerate(run.findings)
        if finding.verdict is run.verdict and place not in followers
    ]
    kind = VerdictError if results.verdict is Verdict.FAIL else UndecidedError
    what = (
        "the server does not serve as it should"
        if kind is VerdictError
        else f"the verdict is {results.verdict}"
    )
    raise kind(
        what,
        because="\n".join(f"{finding.check}: {finding.cause}" for finding in worst[:5]),
        next_step=f"open {results.report}",
    )
