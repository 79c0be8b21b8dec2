"""``sparkwright report`` and ``sparkwright report add``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
from platformdirs import user_data_path

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import ConfigError
from sparkwright.base.text import one_line
from sparkwright.cli.command import Command, Parent, Result, takes
from sparkwright.cli.options import (
    FILE_TYPE,
    FOLDER_TYPE,
    FORCE,
    PATH_TYPE,
    complete_recipe,
    require_libraries,
)
from sparkwright.cli.output import showing_events
from sparkwright.cli.session import Session, run_read_only
from sparkwright.cli.verify import (
    DEFAULT_RECIPE,
    execute,
    failure_of,
    options_of,
    refuse_stated,
    shown,
    wheel_here,
)
from sparkwright.publish.evidence import POLICY_FILE, attach_report, load_policies
from sparkwright.publish.index import dist_folder
from sparkwright.publish.keys import load_report_key
from sparkwright.publish.owner_report import PAGE, SignedReport, add_reports, sign_report
from sparkwright.recipes.recipe import recipes
from sparkwright.store.disk import storing, write_atomically
from sparkwright.verify.journal import FILE, read_journal
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.report.owner import owner_figures, owner_machine
from sparkwright.verify.results import Results, load_run

NAME = "owner-report.json"
_ADD = {"add": __name__}
# A version's local part may be anybody's words.
_VERSION = re.compile(r"(?<=-)[0-9][0-9a-z.]*(\+spark[0-9a-f.]*)?")


@click.command("report", cls=Parent, subcommands=_ADD)
@click.argument("wheel", required=False, type=FILE_TYPE)
@click.option(
    "--recipe", default=DEFAULT_RECIPE, show_default=True, shell_complete=complete_recipe,
    help="What to serve, by name or file."
)  # fmt: skip
@click.option("--use", default="", help="The use of the recipe that is served, such as many.")
@click.option("--run", "folder", type=FOLDER_TYPE, help="Report the finished run of 'verify' in this folder.")
@click.option("--out", type=PATH_TYPE, help=f"By default {NAME} of the run.")
@click.option("--yes", is_flag=True, help="Write it without asking.")
@FORCE
@takes("offline", "quiet", "as_json")
@click.pass_context
def command(
    context: click.Context, /, *, wheel: Path | None, recipe: str, use: str, folder: Path | None,
    out: Path | None, yes: bool, force: bool, offline: bool, quiet: bool, as_json: bool,
) -> Result:  # fmt: skip
    """Verify WHEEL for 20 minutes, as 'verify' does, and write a signed report of it for the public table.

    The report has the machine's kind, the driver, the wheel by digest, the recipe, figures and the verdict,
    and nothing personal. It is shown as a whole before it is written, to a file; nothing is sent.

    --run reports a run of 'verify' instead, with any of its options. 'report add' adds reports to a table.
    """
    require_libraries()
    key = load_report_key(user_data_path("sparkwright") / "reports")  # refused before 20 minutes of work
    with showing_events(quiet=quiet or as_json):
        if folder is not None:
            refuse_stated(context, "the run in a folder is reported as it was", {"folder", "out", "yes"})
            results = Results(load_run(folder.absolute()), folder.absolute(), ())
        else:
            results = _verified(wheel, recipe, use, offline=offline, force=force)
        signed = sign_report(_described(results), key)
    text = json.dumps(to_builtins(signed), indent=1) + "\n"
    click.echo(text, nl=False, err=as_json)
    path = (out or results.folder / NAME).absolute()
    again = f"sparkwright report --run {shlex.quote(str(results.folder))}"
    try:
        agreed = yes or click.confirm(f"This is all of it. Write it to {path}?", err=as_json)
    except click.Abort as error:
        raise KeyboardInterrupt(f"{again} shows it again, without verifying") from error
    if not agreed:
        parts = ("not written", ("next", f"{again} shows it again"))
        return Result({"written": False, **to_builtins(signed)}, parts, failure_of(results))
    with storing(f"writing {path}", instead=f"name another file: {again} --out FILE"):
        write_atomically(path, text.encode())
    told = [
        ("written", f"{path}, signed by key {signed.report.key}"),
        ("next", "send it to who publishes the wheel"),
    ]
    return Result(
        {"written": True, "path": str(path), **to_builtins(signed)},
        [*(shown(results).parts if folder is None else ()), *told],
        failure_of(results),
    )


def _verified(wheel: Path | None, recipe: str, use: str, *, offline: bool, force: bool) -> Results:
    """Return the results of the usual verification of *wheel*, or of the one that `verify` would take."""
    if wheel is None:
        chosen = wheel_here(recipe, use, offline=offline, force=force)
        wheel = chosen.wheel
        click.echo(f"verifying {wheel}: {chosen.why}", err=True)
    asked = {"demo": False, "url": "", "python": "", "profile": "", "recipe": recipe, "use": use}
    plan = plan_of(options_of(wheel, asked))
    return execute(plan, out=None, resume=None, cluster="", offline=offline, force=force)


def _described(results: Results) -> dict[str, Any]:
    """Return what a report tells of a finished run."""
    run, manifest = results.run, results.run.manifest
    options = VerifyOptions.from_options(read_journal(results.folder).manifest.options)
    if options.url or options.compared or options.slo or "interrupted" in manifest:
        raise ConfigError(
            f"no report can be made of {results.folder}",
            because="it is not finished, compares servers, or is of a server at an address",
            next_step="report a whole run of a recipe: sparkwright report",
        )
    ships = options.recipe in recipes()
    wheel = manifest.get("wheel")
    return {
        "made": str(manifest.get("started", ""))[:10],
        "tool": __version__,
        "run": sha256_file(results.folder / FILE),
        "machine": owner_machine(run),
        "wheel": {
            "sha256": wheel["sha256"],
            "version": found[0] if (found := _VERSION.search(wheel["name"])) else "0",
            "runtime": manifest.get("wheel-runtime", ""),
        } if isinstance(wheel, dict) else None,
        "recipe": {
            "name": options.recipe if ships else "simulated" if options.simulator else "own",
            "use": options.use if ships else "",
            "digest": str(manifest.get("recipe", "0" * 16)),
        },
        "profile": options.profile,
        "complete": not options.narrowed and not options.faults and run.coverage.whole,
        **owner_figures(run),
    }  # fmt: skip


@click.command("add", cls=Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=PATH_TYPE)
@click.option(
    "--table",
    type=PATH_TYPE,
    help="Folder of page and data; published/reports beside the wheels by default.",
)
@run_read_only
def add_command(session: Session, *, files: tuple[Path, ...], table: Path | None) -> Result:
    """Check each FILE, a report, and add it to the public table.

    Those by a key in report-keys of a channel (patchsets/channels.toml) are verified, and count as evidence
    of 'verify' when a wheel is promoted to it; all others are in the table as unverified. Without FILE the
    table is made again, by the keys of today.
    """
    policies = load_policies(session.checkout.patchsets / POLICY_FILE)
    dist = dist_folder(session.checkout.folder).absolute()
    keys = {key for policy in policies.values() for key in policy.report_keys}
    folder = (table or dist / "published" / "reports").absolute()
    added, refused, known = add_reports(folder, files, keys)
    # Also those in the table whose key was listed since.
    attached = [path for one in known if one.report.key in keys and (path := attach_report(dist, one))]
    kinds = {path: "verified" if one.report.key in keys else "unverified" for path, one in added.items()}
    return Result(
        {
            "added": {str(path): {"digest": one.digest, "is": kinds[path]} for path, one in added.items()},
            "refused": {str(path): [type(one).__name__, one.because] for path, one in refused.items()},
            "evidence": [str(path) for path in attached], "page": str(folder / PAGE),
        },
        [
            *(("added", f"{one_line(path)}, {kinds[path]}: {_told(one)}") for path, one in added.items()),
            *(("refused", f"{one_line(path)}: {error.because}") for path, error in refused.items()),
            *(("evidence", path) for path in attached),
            ("page", folder / PAGE),
        ],
        next(iter(refused.values()), None),
    )  # fmt: skip


def _told(signed: SignedReport) -> str:
    report = signed.report
    return f"{report.recipe.name} on {report.machine.name}: {report.verdict}, key {report.key}"
