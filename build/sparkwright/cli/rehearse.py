"""``sparkwright rehearse``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ConfigError, SparkwrightError, UndecidedError, VerdictError
from sparkwright.base.text import human_size
from sparkwright.cli.command import Command, Part, Result, Table
from sparkwright.cli.options import FILE_TYPE, NAMES, PATH_TYPE, require_libraries, tree_options
from sparkwright.cli.session import Session, run_in_session
from sparkwright.merge.engine import merge_patchset
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.options import TargetOptions
from sparkwright.publish.evidence import attach_rehearsal, merged_tree
from sparkwright.publish.index import dist_folder
from sparkwright.rehearsal.model import DEFAULT, RehearsalOptions, RehearsalResult
from sparkwright.rehearsal.run import rehearse
from sparkwright.verify.runner import VERIFIER
from sparkwright.wheel.recorded import read_record


@click.command("rehearse", cls=Command)
@click.argument("wheel", required=False, type=FILE_TYPE)
@click.option("--onto", metavar="VERSION", help="Another release of upstream's, instead of the pin.")
@click.option("--checks", type=NAMES, default=(), help="Run only these, such as boot,coherence.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts.")
@click.option("--out", type=PATH_TYPE, help="Folder for the results; one in dist/rehearsal/ by default.")
@tree_options
@run_in_session
def command(
    session: Session,
    *,
    wheel: Path | None,
    onto: str | None,
    checks: tuple[str, ...],
    seed: int,
    out: Path | None,
    target: TargetOptions,
) -> Result:
    """Serve the merged Python on the CPU with a real model, and verify it.

    With WHEEL it is the merge that WHEEL is of, by its own record of series, machine and kernels; a checkout
    that describes another build spec is refused.

    The merge is laid over upstream's wheel for the CPU of the same release, and served by 'vllm serve'. Where
    a release has no such wheel, the carries are rehearsed on the nearest older one that has: that is evidence
    of the kind rehearsal-older, and the result says so. An interrupted rehearsal continues when it is started
    again.
    """
    require_libraries()

    if wheel is not None and onto:
        raise ConfigError(
            "a wheel is rehearsed on its own release", next_step="leave out --onto, or the wheel"
        )
    job = session.job(target) if wheel is None else _job_of(session, target, wheel)
    version = onto or job.spec.lock.release.version
    pristine = job.source.release(version) if onto else job.pristine
    report = merge_patchset(job.repository, job.merge_request(pristine, version))
    if wheel is not None:
        _require_own(wheel, report.tree, job.checkout.series)
    options = RehearsalOptions(checks=checks or DEFAULT, out=out, seed=seed)
    result = rehearse(job, report, VERIFIER, options)
    complete = options.checks == DEFAULT
    attached = _attach(session, result, report.tree, [wheel] if wheel else [], complete=complete)
    kind = "rehearsal" if result.exact else "rehearsal-older"
    told = [("evidence", f"{kind}, attached to {name}") for name in attached]
    return Result(to_builtins(result), [*_shown(result), *told], _failure(result))


def _job_of(session: Session, target: TargetOptions, wheel: Path) -> Job:
    """Return the job that makes *wheel*, by the wheel's own record."""
    record = read_record(wheel)
    kernels = record.kernels
    own = replace(
        target,
        platform=record.point.platform,
        kernels="upstream" if kernels is None else "native",
        arch="" if kernels is None else kernels.arch,
    )
    return session.of_wheel(wheel).job(own)


def _require_own(wheel: Path, tree: str, series: str) -> None:
    """Refuse *wheel* where this checkout merges into another *tree* than the one that it states."""
    if merged_tree(wheel) != tree:
        raise ConfigError(
            f"{wheel.name} cannot be rehearsed",
            because=f"this checkout merges into the tree {tree[:12]}, and the wheel is of "
            f"{merged_tree(wheel)[:12]}",
            next_step="check out the commit that it was built from, name its --patchset, "
            f"or rehearse the present build spec: sparkwright rehearse --series {series}",
        )


def _attach(
    session: Session, result: RehearsalResult, tree: str, given: Sequence[Path], *, complete: bool
) -> list[str]:
    """Attach a passed rehearsal to the wheels that are of the merged *tree*; return their names.

    These are wheels in dist/ and *given*.
    """
    if result.verdict != "passed":
        return []
    detail = {
        "version": result.version,
        "exact": result.exact,
        "checks": {check.name: check.verdict for check in result.checks},
        "complete": complete,
        "statements": list(result.statements),
    }
    files = {Path(file.path).name: file.sha256 for file in result.files}
    return attach_rehearsal(dist_folder(session.checkout.folder).absolute(), tree, detail, files, given)


def _shown(result: RehearsalResult) -> Iterator[Part]:
    rows = [(check.name, check.verdict, check.detail) for check in result.checks]
    yield Table(("check", "verdict", "because"), rows, title=f"on vllm {result.version} for the CPU")
    yield from result.statements
    yield "verdict", f"{result.verdict}, in {result.seconds:.0f} s"
    for file in result.files:
        name = Path(file.path).name
        yield f"{name:<14} {file.path}  {human_size(file.size)}  sha256 {file.sha256}"
    yield "next", f"read {result.report}"


def _failure(result: RehearsalResult) -> SparkwrightError | None:
    if result.verdict == "passed":
        return None
    failed = result.verdict == "failed"
    causes = [f"{check.name}: {check.detail}" for check in result.checks if check.verdict == result.verdict]
    kind = VerdictError if failed else UndecidedError
    return kind(
        "the merged Python does not serve as it should" if failed else "the rehearsal is undecided",
        because="\n".join(causes),
        next_step=f"read {result.report}",
    )
