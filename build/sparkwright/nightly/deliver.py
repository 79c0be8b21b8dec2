"""Output of a night: its report, and on request a branch for each release."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.errors import ConfigError, NotInStoreError
from sparkwright.git.clone import open_clone
from sparkwright.lock.model import Lock, read_lock
from sparkwright.nightly.building import lock_of
from sparkwright.nightly.judging import Merging
from sparkwright.nightly.model import Night, NightState, NightVerdict, TargetNight
from sparkwright.nightly.propose import BASE_TRAILER, BRANCHES, Proposal, Proposer, render_markdown
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.proofs import find_proof
from sparkwright.probe.proof import Proof
from sparkwright.rehearsal.model import WrittenFile
from sparkwright.store.disk import storing, write_atomically


class Delivered(Model, frozen=True):
    """The files and proposals of a night.

    Attributes:
        report: the files of its report; none where nothing was new and nothing proposed.
        proposals: branches, or why there is none; empty if none were asked for.
    """

    report: tuple[WrittenFile, ...] = ()
    proposals: tuple[Proposal | str, ...] = ()


def last_night(nights: NightState) -> Night:
    """Return the last night that found something."""
    found = next(nights.nights(), None)
    if found is None:
        raise ConfigError(
            "there is nothing to propose",
            because=f"no night is recorded in {nights.folder}",
            next_step="run 'sparkwright nightly' first",
        )
    return found


def deliver(
    job: Job, night: Night, nights: NightState, folder: Path, *, propose: bool = False, push: bool = False
) -> Delivered:
    """Write the report of *night* into *folder*, and branches if it is to *propose* any.

    A night without anything new leaves the last one's report in place, and proposes what that one found.

    With *push* they are pushed to the clone's origin.
    """
    if night.verdict is NightVerdict.NOTHING_NEW:
        if not propose:
            return Delivered()
        night = last_night(nights)
    written = write_report(job, night, folder)  # first, so that it is there if no branch can be written
    if not propose:
        return Delivered(report=written)
    proposals = propose_night(job, night, push=push)
    return Delivered(report=write_report(job, night, folder, proposals), proposals=proposals)


def write_report(
    job: Job, night: Night, folder: Path, proposals: Sequence[Proposal | str] = ()
) -> tuple[WrittenFile, ...]:
    """Write the report of *night* into *folder*, in place of an earlier one: Markdown and JSON."""
    upstream = job.spec.lock.release.git
    texts = {
        "report.md": render_markdown(night, upstream=upstream, proposals=proposals),
        "report.json": json.dumps(
            {"night": to_builtins(night), "proposals": to_builtins(list(proposals))}, indent=1
        )
        + "\n",
    }
    written = []
    with storing(f"writing the report into {folder}"):
        for name, text in texts.items():
            write_atomically(folder / name, text.encode(errors="backslashreplace"))
            written.append(WrittenFile.at(folder / name))
    return tuple(written)


def propose_night(job: Job, night: Night, *, push: bool) -> tuple[Proposal | str, ...]:
    """Write a branch for each target of *night*, or say why there is none, and *push* it to origin.

    Raises:
        ConfigError: the project is no clone, or differs from what was judged.
        NeedsPersonError: a branch has a commit of another writer.
        ProcessError: git failed.
    """
    clone = open_clone(job.checkout.root)
    proposer = Proposer(
        clone=clone,
        store=job.store,
        repository=job.repository,
        carries=job.spec.carries,
        find_base=job.find_base,
        pin=job.spec.lock.release.version,
        lock_name=job.checkout.lock_name,
        branches=f"{BRANCHES}{job.spec.line}/" if job.spec.lock.series else BRANCHES,
    )
    made: list[Proposal | str] = []
    for found in night.targets:
        if not job.repository.has(found.target.tree):
            raise NotInStoreError(
                f"nothing can be proposed for {found.target.label}",
                because="its tree is not in the store any more",
                next_step="run 'sparkwright nightly --again --propose'",
            )
        proposal = proposer.propose(found, _lock(job, found), _proofs(job, found))
        if isinstance(proposal, Proposal) and push:
            clone.push(proposal.branch, "origin", key=BASE_TRAILER)
            proposal = replace(proposal, pushed=True)
        made.append(proposal)
    return tuple(made)


def _lock(job: Job, found: TargetNight) -> Lock | None:
    """Return the lock that the target's wheel was built with, or the one that would pin a release."""
    if found.build.lock and (path := Path(found.build.lock)).is_file():
        return read_lock(path)
    return lock_of(job, found.target)[0] if found.target.kind == "release" else None


def _proofs(job: Job, found: TargetNight) -> dict[str, Proof]:
    """Return the proofs on the target that still hold, by carry, where all carries are good there."""
    if not found.green:
        return {}
    report = Merging(job, found.target).report
    proofs = ((carry, find_proof(job, report, carry)) for carry in job.spec.carries)
    return {carry.name: proof for carry, proof in proofs if proof is not None}
