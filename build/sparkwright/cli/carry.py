"""``sparkwright carry``: make, show, edit, refresh and prove carries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparkwright.cli.session import Session, common_options, job_options, print_json, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.config import to_builtins
from sparkwright.errors import ConfigError, PatchError, ProofError, UnprovedError

if TYPE_CHECKING:
    from sparkwright.carry import Carry
    from sparkwright.plan import Job
    from sparkwright.probe import Proof

__all__ = ["command"]


@click.group("carry")
def command() -> None:
    """Make, show, edit, refresh and prove carries."""


def _find(session: Session, name: str) -> Carry:
    from sparkwright.carry import load_carries
    from sparkwright.carry.folder import unknown_name

    known = load_carries(session.checkout.carries)
    if name not in known:
        raise unknown_name("carry", name, sorted(known))
    return known[name]


@command.command("new")
@click.argument("name", required=False)
@click.option(
    "--pull", metavar="NUMBER", help="Hold this upstream pull request: 45544, #45544 or its address."
)
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), help="Hold what was edited in this folder."
)
@click.option("--repository", help="The pull request's repository; upstream's by default.")
@click.option("--title", default="", help="One line: what the change does.")
@click.option("--why", default="", help="What is wrong without it.")
@job_options
@common_options
@run_in_session
def new(
    session: Session,
    *,
    name: str | None,
    pull: str | None,
    folder: Path | None,
    repository: str | None,
    title: str,
    why: str,
    patchset: str,
    platform: str,
    source: str,
) -> None:
    """Make a carry, from an upstream pull request or from a folder with an edited tree.

    'sparkwright carry edit' writes a tree to edit. The carry is not added to a patchset.
    """
    from sparkwright.authoring import Draft, create_own, create_pull, diff_folder, resolve_pull
    from sparkwright.authoring.pull import parse_pull

    if (pull is None) == (folder is None):
        raise click.UsageError("name either --pull NUMBER or --from FOLDER")
    if pull is not None:
        address = repository or session.checkout.lock.release.git
        found = resolve_pull(session.store, address, parse_pull(pull))
        draft = Draft(
            name=name or f"pull-{found.pin.number}",
            title=title or found.subjects[0],
            why=why or found.message,
            dies_when=f"Upstream merges pull request {found.pin.number}.",
        )
        carry = create_pull(session.checkout.carries, draft, found)
    else:
        if name is None or not title or not why or folder is None:
            raise click.UsageError("a carry of our own needs a NAME, --title and --why")
        job = session.job(patchset=patchset, platform=platform, source=source)
        patch = diff_folder(job.repository, job.source.pristine(job.point.lock).tree, folder)
        if not patch:
            raise PatchError(f"{folder} holds no change", because="every file is as in the pinned tree")
        carry = create_own(session.checkout.carries, Draft(name, title, why), session.checkout.lock, patch)
    if session.as_json:
        print_json(to_builtins(carry.spec))
        return
    click.echo(f"made     {carry.folder}")
    click.echo(f"next     say more in {carry.folder / 'carry.toml'}, write {carry.folder / 'probe.py'},")
    click.echo(f"         and add {carry.name!r} to patchsets/{patchset}.toml")


@command.command("show")
@click.argument("name")
@click.option("--context", "-U", default=3, show_default=True, help="Lines of context around each change.")
@job_options
@common_options
@run_in_session
def show(session: Session, *, name: str, context: int, patchset: str, platform: str, source: str) -> None:
    """Show a carry: why it is there, what is known of it, and its change with context."""
    from sparkwright.merge.prepare import prepare

    carry = _find(session, name)
    if session.as_json:
        print_json(to_builtins(carry.spec))
        return
    spec = carry.spec
    click.secho(f"{spec.name}: {spec.title}", bold=True)
    for heading, text in (("why", spec.why), ("symptom", spec.symptom), ("dies when", spec.dies_when)):
        click.echo(f"\n{heading}\n{text.strip()}")
    click.echo(f"\nevidence: {spec.evidence.level}")
    for text in spec.evidence.demonstrated:
        click.echo(f"  shown    {text.strip()}")
    for text in spec.evidence.claimed:
        click.echo(f"  claimed  {text.strip()}")
    for entry in spec.upstream:
        click.echo(f"\n#{entry.pull} by {entry.author} ({entry.state}): {entry.relation.strip()}")
    job = session.job(patchset=patchset, platform=platform, source=source)
    known = {entry.name: entry for entry in (*job.point.carries, carry)}
    ready = prepare(
        job.repository,
        list(known.values()),
        version=job.point.lock.release.version,
        find_base=job.find_base,
        offline=session.offline,
    )
    mine = next(entry for entry in ready if entry.carry.name == name)
    if mine.change is None:
        raise PatchError(f"the change of {name} cannot be shown", because=mine.refusal)
    diff = job.repository.diff(mine.change.base, mine.change.theirs, context=context)
    click.echo(f"\n{diff.decode(errors='replace')}")


@command.command("edit")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--carry", "name", help="Start from the pinned tree with this carry's change in it.")
@job_options
@common_options
@run_in_session
def edit(
    session: Session, *, folder: Path, name: str | None, patchset: str, platform: str, source: str
) -> None:
    """Write the pinned tree into FOLDER, to edit it there."""
    from sparkwright.authoring import write_tree
    from sparkwright.merge import MergeRequest, merge_patchset

    job = session.job(patchset=patchset, platform=platform, source=source)
    version, pristine = job.point.lock.release.version, job.source.pristine(job.point.lock)
    tree = pristine.tree
    if name is not None:
        carry = _find(session, name)
        request = MergeRequest(pristine.tree, version, [carry], job.find_base, offline=session.offline)
        outcome = merge_patchset(job.repository, request).outcomes[0]
        if not outcome.kind.in_tree:
            raise PatchError(
                f"carry {name} cannot be edited on the pin", because=f"{outcome.kind}: {outcome.detail}"
            )
        tree = outcome.tree
    write_tree(job.repository, tree, folder)
    record = f"refresh {name}" if name else "new NAME --title … --why …"
    click.echo(f"wrote    {folder}")
    click.echo(f"next     edit it, then: sparkwright carry {record} --from {folder}")


@command.command("refresh")
@click.argument("name")
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), help="Take the change from this edited folder."
)
@job_options
@common_options
@run_in_session
def refresh(
    session: Session, *, name: str, folder: Path | None, patchset: str, platform: str, source: str
) -> None:
    """Bring a carry up to date: a pull request to its present head, one of ours onto the pin."""
    from sparkwright.authoring import add_revision, diff_folder, repin, resolve_pull, rework

    carry = _find(session, name)
    if carry.spec.pull is not None:
        before = carry.spec.pull
        found = resolve_pull(session.store, before.repository, before.number)
        if (found.pin.head, found.pin.base) == (before.head, before.base):
            click.echo(f"{name} is up to date: head {before.head[:12]}")
            return
        repin(carry, found)
        click.echo(f"{name}: head {before.head[:12]} → {found.pin.head[:12]}, base {found.pin.base[:12]}")
        for subject in found.subjects:
            click.echo(f"  {subject}")
        click.echo("next     read what changed, then: sparkwright carry prove")
        return
    job = session.job(patchset=patchset, platform=platform, source=source)
    lock = job.point.lock
    pristine = job.source.pristine(lock).tree
    if folder is not None:
        patch = diff_folder(job.repository, pristine, folder)
    else:
        carries = {entry.name: entry for entry in (*job.point.carries, carry)}
        work = session.checkout.root / ".sparkwright" / "refresh" / name
        patch = rework(
            job.repository,
            carry,
            list(carries.values()),
            pristine=pristine,
            version=lock.release.version,
            find_base=job.find_base,
            folder=work,
        )
    if not patch:
        raise ConfigError(f"nothing is left of {name}", because=f"vllm {lock.release.version} has its change")
    add_revision(carry, lock, patch)
    click.echo(f"wrote    {carry.folder / f'{lock.release.version}.patch'}")
    click.echo(f"next     sparkwright carry prove {name}")


@command.command("prove")
@click.argument("names", nargs=-1)
@job_options
@common_options
@run_in_session
def prove(session: Session, *, names: tuple[str, ...], patchset: str, platform: str, source: str) -> None:
    """Run the probes of all carries, or of NAMES, on the pristine and the merged tree.

    Each proof is recorded beside its carry. A carry that is not proved is an error.
    """
    job = session.job(patchset=patchset, platform=platform, source=source)
    proofs, unproved = _prove(job, names)
    if session.as_json:
        print_json({"proofs": [to_builtins(proof) for proof in proofs], "unproved": unproved})
    else:
        rows = [
            (proof.carry, str(proof.verdict), _first_line(proof.pristine.message or proof.merged.message))
            for proof in proofs
        ]
        show_table(("carry", "verdict", "what the probe found"), rows)
    refuted = [proof.carry for proof in proofs if proof.verdict == "refuted"]
    if refuted:
        raise ProofError(
            f"{', '.join(refuted)} refuted",
            because="the probe fails on the merged tree",
            next_step="mend the carry, or take it out of the patchset",
        )
    if unproved:
        raise UnprovedError(
            f"{len(unproved)} not proved",
            because="; ".join(f"{name}: {why}" for name, why in unproved.items()),
            next_step="mend the probe, or drop the carry where upstream no longer needs it",
        )


def _prove(job: Job, names: tuple[str, ...]) -> tuple[list[Proof], dict[str, str]]:
    """Prove and record; returns the proofs and, by name, why others are not proved."""
    from sparkwright.carry.folder import unknown_name
    from sparkwright.merge import merge_patchset
    from sparkwright.probe import Verdict, write_proof

    known = [carry.name for carry in job.point.carries]
    for name in names:
        if name not in known:
            raise unknown_name("carry in this patchset", name, known)
    version = job.point.lock.release.version
    report = merge_patchset(job.repository, job.merge_request(job.source.pristine(job.point.lock), version))
    prover = job.prover(report)
    proofs: list[Proof] = []
    unproved: dict[str, str] = {}
    for carry in job.point.carries:
        outcome = report.outcome(carry.name)
        if names and carry.name not in names:
            continue
        if not outcome.kind.in_tree:
            unproved[carry.name] = f"{outcome.kind}: {outcome.detail}"
        elif carry.spec.probe is None:
            unproved[carry.name] = "it has no probe"
        else:
            proof = prover.prove(carry, outcome.paths)
            proofs.append(proof)
            if proof.verdict is Verdict.PROVED:
                write_proof(carry.folder, proof)
            elif proof.verdict is not Verdict.REFUTED:
                broken = proof.merged if proof.merged.verdict == "error" else proof.pristine
                unproved[carry.name] = f"{proof.verdict} {_first_line(broken.message, last=True)}".strip()
    return proofs, unproved


def _first_line(message: str, *, last: bool = False) -> str:
    lines = message.strip().splitlines() or [""]
    return lines[-1 if last else 0]
