"""``sparkwright bisect``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, unknown_name
from sparkwright.base.text import human_seconds
from sparkwright.cli.command import Command, Part, Result, Table, global_options
from sparkwright.cli.options import job_options, machines_option, require_libraries
from sparkwright.cli.session import WORK, Session, run_in_session
from sparkwright.pipeline.options import BuildOptions, TargetOptions
from sparkwright.search.changes import AXES
from sparkwright.search.engine import FILE, bisect, evaluate
from sparkwright.search.model import SearchProblem, SearchResult, headline
from sparkwright.search.setup import Search, SearchOptions, open_search
from sparkwright.search.subsets import Changes
from sparkwright.verify.runner import VERIFIER

_EXIT = {"good": 0, "bad": 1}
_UNTESTABLE = 125
_DIGITS = 10
# Options that name no other search: how it is run and shown.
_OF_THE_RUN = frozenset({"good", "bad", "attempted", "listing"})


@click.command("bisect", cls=Command)
@click.argument("good")
@click.argument("bad")
@click.option(
    "--judge", metavar="JUDGE", help="The judge, such as 'probe FILE', 'verify CHECK', 'run COMMAND'."
)
@click.option("--axis", "axes", type=click.Choice(AXES), multiple=True, help="Search this difference only.")
@click.option("--carry", "carries", metavar="NAME", multiple=True, help="Take of both ends this carry only.")
@click.option("--commits", default="", metavar="REPOSITORY", help="Search this repository's commits.")
@click.option("--find-fix", is_flag=True, help="The bad end is the older one: name the change that fixed it.")
@click.option("--any-failure", is_flag=True, help="Count every failure as the one searched for.")
@click.option("--deterministic", is_flag=True, help="The judge never flakes: judge each candidate once.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=3600.0, help="Seconds of a command."
)
@click.option(
    "--recipe", default="", help="Serve candidates' wheels on a card so, by name or file, as verify."
)
@click.option(
    "--try",
    "attempted",
    type=click.UNPROCESSED,
    metavar="IDS",
    help="Judge one candidate: the older end with these changes, or with none.",
)
@click.option("--list", "listing", is_flag=True, help="List the changes between the ends, and judge nothing.")
@job_options
@machines_option
@run_in_session
def command(
    session: Session,
    *,
    target: TargetOptions,
    **arguments: Any,
) -> Result:
    """Name the change between a GOOD and a BAD build spec that makes the difference.

    A SPEC is a wheel's file, a commit of this project, PATCHSET@RELEASE, PATCHSET@COMMIT of upstream's, or
    '.' for the work tree. Two wheels are enough: what they are made of is recorded in them. Between two pins
    lie releases; with --commits (git, a folder or an address) lie commits of upstream's.

    'verify CHECK' rehearses candidates on the CPU; with --recipe it serves their wheels on a card, here or on
    the machine of --cluster.

    The same command again resumes a bisection that was stopped, and shows the result of one that has ended.
    """
    attempted, listing = arguments.pop("attempted"), arguments.pop("listing")
    options = _options(arguments, listing=listing)
    build = BuildOptions(**vars(target), offline=session.offline)
    with open_search(session.checkout, session.access, build, options, VERIFIER) as search:
        if listing:
            return _list(search)
        if attempted is not None:
            return _try(session, search, attempted)
        folder = _folder(session, search.problem)
        result = bisect(search.problem, search.judge_in(folder), folder)
    return _finished(folder, search.problem, result)


def _options(arguments: dict[str, Any], *, listing: bool) -> SearchOptions:
    if not arguments["judge"] and not listing:
        raise click.UsageError("A bisection needs a judge: --judge 'probe FILE', for example.")
    if arguments["recipe"]:
        require_libraries()
    arguments["judge"] = arguments["judge"] or "merge"
    return SearchOptions(**arguments, command=(arguments["good"], arguments["bad"], *_repeated(arguments)))


def _repeated(arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the words of the command line that name the same search: all that is not as by default."""
    context = click.get_current_context()
    for name in ("series", "patchset"):
        if value := global_options()[name]:
            yield f"--{name}={value}"
    given = {**context.params, **arguments}
    for option in context.command.params:
        value = given[str(option.name)]
        if not value or value == option.default or option.name in _OF_THE_RUN:
            continue
        name = max(option.opts, key=len)
        for one in value if isinstance(value, tuple) else (value,):
            yield name if one is True else f"{name}={one}"


def _folder(session: Session, problem: SearchProblem) -> Path:
    return session.checkout.folder / WORK / "bisect" / digest_of(to_builtins(problem))[:_DIGITS]


def _list(search: Search) -> Result:
    changes, left_out = search.problem.changes, search.realiser.difference.left_out
    rows = [(change.id, change.axis, change.title, ", ".join(change.requires[-3:])) for change in changes]
    parts: list[Part] = [Table(("change", "axis", "title", "requires"), rows, f"{len(changes)} changes")]
    if left_out:
        parts.append(f"not searched, though they differ: {', '.join(left_out)}")
    return Result({"changes": to_builtins(changes), "left-out": list(left_out)}, parts)


def _try(session: Session, search: Search, attempted: str) -> Result:
    """Judge one candidate, with the exit status of a command that ``git bisect run`` takes."""
    known = [change.id for change in search.problem.changes]
    chosen = [name for name in attempted.split(",") if name]
    for name in chosen:
        if name not in known:
            raise unknown_name("change", name, known)
    applied = Changes(search.problem).close(chosen)
    folder = _folder(session, search.problem) / "tried"
    folder.mkdir(parents=True, exist_ok=True)
    found = evaluate(search.judge, applied, 1, folder)
    described = search.realiser.candidate(applied).describe()
    return Result(
        {"candidate": described, **to_builtins(found)},
        [
            ("candidate", described),
            ("verdict", f"{found.verdict}: {found.detail or 'it holds'}"),
            ("evidence", found.evidence),
        ],
        status=_EXIT.get(str(found.verdict), _UNTESTABLE),
    )


def _finished(folder: Path, problem: SearchProblem, result: SearchResult) -> Result:
    """Return the answer; a range or a set is called no culprit."""
    failure = None
    if result.confidence is None:
        failure = BisectionError(
            f"{len(result.changes)} changes are left",
            because="what lies between them could not be judged"
            if result.kind == "range"
            else "they could not be separated",
            next_step=f"read why, for each candidate, in {folder / FILE}",
        )
    titles = {change.id: change.title for change in problem.changes}
    seconds = sum(step.evaluation.seconds for step in result.steps)
    confidence = "" if result.confidence is None else f"confidence {result.confidence:.1%}, "
    evaluations = f"{result.evaluations} evaluations ({result.searching} after the ends)"
    unclear = f"{confidence}{len(result.untestable)} untestable or unstable"
    return Result(
        {"id": folder.name, "folder": str(folder), **to_builtins(result)},
        [
            headline(problem, result),
            *(f"  {name}: {titles[name]}" for name in result.changes),
            f"{evaluations} in {human_seconds(seconds)}, {unclear}",
            ("journal", str(folder)),
            *(("check", check) for check in result.check),
        ],
        failure,
    )
