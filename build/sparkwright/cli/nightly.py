"""``sparkwright nightly``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import NeedsPersonError
from sparkwright.cli.command import Command, Part, Result
from sparkwright.cli.options import job_options, require_libraries
from sparkwright.cli.session import WORK, Session, run_in_clone
from sparkwright.nightly.deliver import Delivered, deliver, last_night
from sparkwright.nightly.follow import NightOptions, follow
from sparkwright.nightly.model import Judgement, Night, NightState
from sparkwright.pipeline.options import TargetOptions
from sparkwright.store.disk import hold
from sparkwright.verify.runner import VERIFIER

_NOTHING_NEW = 94
_MENDS = {
    Judgement.CONFLICT: "sparkwright carry refresh {}",
    Judgement.BROKEN_PROBE: "write a probe of {} for it ([[probe.later]] in its carry.toml)",
    Judgement.NOT_JUDGED: "write a probe of {}",
    Judgement.NOT_ABSORBED: "correct what the carry.toml of {} says of upstream: absorbs, [[superseded]]",
    Judgement.NOT_NEEDED: "declare {} superseded in its carry.toml, or drop it",
}
"""The step after each judgement; after any other, the carry's change is edited."""


@click.command("nightly", cls=Command)
@click.option(
    "--onto",
    multiple=True,
    metavar="TARGET",
    help="A release or commit of upstream's, instead of the newest; may be repeated.",
)
@click.option(
    "--history",
    metavar="REPOSITORY",
    help="Address or folder with upstream's history, to name commits by; 'none' for none. By default the "
    "address that the lock names.",
)
@click.option("--no-build", is_flag=True, help="Merge and judge only.")
@click.option("--triton", is_flag=True, help="Compile its Triton kernels for a GB10 too.")
@click.option("--no-tests", is_flag=True, help="Do not run upstream's own tests on both trees.")
@click.option("--again", is_flag=True, help="Work though nothing is new.")
@click.option(
    "--detailed-exit-code", is_flag=True, help=f"Exit with {_NOTHING_NEW} instead of 0 if nothing is new."
)
@click.option(
    "--propose", is_flag=True, help="Write what is good into a branch, for a person to review; see --push."
)
@click.option("--propose-last", is_flag=True, help="Look for nothing new: propose what the last night found.")
@click.option(
    "--push", is_flag=True, help="Push the branches to origin, replacing those that it pushed before."
)
@job_options
@run_in_clone
def command(
    session: Session,
    *,
    onto: tuple[str, ...],
    history: str | None,
    no_build: bool,
    triton: bool,
    no_tests: bool,
    again: bool,
    detailed_exit_code: bool,
    propose: bool,
    propose_last: bool,
    push: bool,
    target: TargetOptions,
) -> Result:
    """Follow upstream: what is new, and what it does to every carry.

    The patchset is merged onto upstream's newest release and newest commit. Where an outcome changed, the
    upstream commit that changed it is searched for by merges. Each carry is judged by its probe on both
    trees. The wheel is built with the carries that are good, audited and rehearsed. A second run with
    nothing new does nothing. The report is written into .sparkwright/nightly/: report.md and .json.
    """
    if not (no_build or propose_last):
        require_libraries()  # before hours of work, not in their last step
    job = session.job(target)
    work = session.checkout.folder / WORK
    nights = NightState(work / "nights" / job.spec.line)
    address = job.spec.lock.release.git if history is None else history
    options = NightOptions(
        folder=work / "nightly" / ("" if session.checkout.is_default else job.spec.line),
        history="" if address == "none" else address,
        onto=onto,
        build=not no_build,
        verifier=VERIFIER,
        kernels=triton,
        tests=not no_tests,
        again=again,
    )
    with hold(work / "nightly.lock", "the nightly run of this checkout"):
        night = last_night(nights) if propose_last else follow(job, options, nights)
        proposing = propose or propose_last or push
        delivered = deliver(job, night, nights, options.folder, propose=proposing, push=push)
    return Result(
        {**to_builtins(night), **to_builtins(delivered)},
        list(_shown(session, night, delivered)),
        None if propose_last else _failure(night),
        _NOTHING_NEW if night.verdict == "nothing-new" and detailed_exit_code and not propose_last else 0,
    )


def _shown(session: Session, night: Night, delivered: Delivered) -> Iterator[Part]:
    for file in delivered.report:
        if file.path.endswith(".md"):
            yield Path(file.path).read_text(encoding="utf-8")
    for one in delivered.proposals:
        if not isinstance(one, str):
            state = "pushed to origin" if one.pushed else "not pushed"
            yield "branch", f"{one.branch}, {len(one.commits)} commits, {state}"
            if not one.pushed:
                yield "next", f"git log -p {one.base[:12]}..{one.branch}, then --propose-last --push"
    for file in delivered.report:
        yield "report", f"{file.path}, {file.size:,} bytes, SHA-256 {file.sha256}"
    if night.verdict == "nothing-new":
        yield f"nothing is new since the last night ({night.seconds:.1f} s)"
        yield session.hint("sparkwright nightly --again works all the same")
    elif night.verdict == "green":
        yield session.hint("sparkwright nightly --propose")


def _failure(night: Night) -> NeedsPersonError | None:
    if night.verdict != "needs-person":
        return None
    carries = [carry for one in night.targets for carry in one.carries if carry.standing != "good"]
    told = dict.fromkeys(f"{carry.name}: {carry.judgement}" for carry in carries)
    return NeedsPersonError(
        f"night {night.id} needs a person",
        because="; ".join(told) or "; ".join(night.reasons),
        next_step=_remedy(night) or "read the reasons above",
    )


def _remedy(night: Night) -> str:
    """Return the way to mend the first carry that is red, or else to drop the first that is not needed."""
    found = [(one, carry) for one in night.targets for carry in one.carries if carry.standing != "good"]
    if not found:
        return ""
    one, carry = next((pair for pair in found if pair[1].standing == "red"), found[0])
    release = one.target.kind == "release"
    proposed = "sparkwright nightly --propose-last" if release and not one.failed else ""
    if proposed and carry.standing == "drop":
        return f"{proposed}: on its branch {carry.name} is superseded"
    move = f"lock bump {one.target.version if release else one.target.commit}"
    mend = _MENDS.get(carry.judgement, "sparkwright carry edit FOLDER --carry {}").format(carry.name)
    place = f"{proposed}, and on its branch" if proposed else "on a branch"
    return f"{place}: sparkwright {move}, then {mend}"
