"""The results of a verification, for people and machines, and its exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import click

from sparkwright.base.errors import UndecidedError, VerdictError
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli.machines import machines_rows, machines_summary
from sparkwright.cli.output import print_json
from sparkwright.verify.estimate import Share
from sparkwright.verify.plan import Plan
from sparkwright.verify.results import Results


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
