"""``sparkwright carry``: make, show, edit, refresh and prove carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import (
    ConfigError,
    PatchError,
    ProofError,
    SparkwrightError,
    UnprovedError,
    unknown_name,
)
from sparkwright.base.events import warn
from sparkwright.base.text import one_line
from sparkwright.carries.edited import diff_folder, write_tree
from sparkwright.carries.files import (
    Draft,
    ResolvedPull,
    add_revision,
    create_own,
    create_pull,
    parse_pull,
    repin,
    resolve_pull,
)
from sparkwright.carries.model import Carry, PullRequest, load_carries
from sparkwright.carries.patch import parse_patch
from sparkwright.carries.patchset import with_carry
from sparkwright.cli.command import Group, Part, Result, Table
from sparkwright.cli.options import PATH_TYPE, job_options, source_options
from sparkwright.cli.session import Session, run_in_clone, run_in_session
from sparkwright.git.repository import open_repository
from sparkwright.merge.landing import idle, unshippable
from sparkwright.merge.prepare import CarryEditor, prepare, pull_change, require_editable
from sparkwright.merge.sides import is_text
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import prove_carries, reason_of, run_upstream_tests
from sparkwright.probe.proof import Proof
from sparkwright.probe.upstream_tests import UpstreamTests
from sparkwright.store.disk import remove_tree, write_atomically

_SHOWN = 30
_CONTEXT = 3


@click.group("carry", cls=Group)
def command() -> None:
    """Make, show, edit, refresh and prove carries."""


def _find(session: Session, name: str) -> Carry:
    known = load_carries(session.checkout.carries)
    if name not in known:
        raise unknown_name("carry", name, sorted(known))
    return known[name]


@command.command("new")
@click.argument("name", required=False)
@click.option(
    "--pull",
    metavar="NUMBER",
    help="Take the change from this pull request: 45544 or #45544 of upstream's, or an address.",
)
@click.option("--from", "folder", type=PATH_TYPE, help="Take the change from this edited folder.")
@click.option(
    "--base",
    default="",
    metavar="REF",
    help="The branch, tag or commit that the pull request is against; the default branch by default.",
)
@click.option("--title", default="", help="One line about the change.")
@click.option("--why", default="", help="The defect that it repairs.")
@click.option("--add", is_flag=True, help="Add it to the patchset, before those that change kernels.")
@source_options
@run_in_clone
def new(
    session: Session,
    *,
    name: str | None,
    pull: str | None,
    folder: Path | None,
    base: str,
    title: str,
    why: str,
    add: bool,
    target: TargetOptions,
) -> Result:
    """Make a carry, from an upstream pull request or from a folder with an edited tree.

    'sparkwright carry edit' writes a tree to edit. The carry gets the skeleton of a probe, which fails until
    it is written.
    """
    patchset = session.checkout.patchset_path(target.patchset)
    spec = session.checkout.build_spec(target.patchset) if add else None
    if (pull is None) == (folder is None):
        raise click.UsageError("name either --pull NUMBER or --from FOLDER")
    if pull is not None:
        carry, taken = _new_pull(session, pull, name=name or "", base=base, title=title, why=why)
    else:
        if name is None or not title or not why or folder is None or base:
            raise click.UsageError("a carry from a folder needs a NAME, --title and --why, and has no --base")
        job = session.job(target)
        patch = diff_folder(job.repository, job.pristine.tree, folder)
        if not patch:
            raise PatchError(f"{folder} holds no change", because="every file is as in the pinned tree")
        carry = create_own(session.checkout.carries, Draft(name, title, why), session.checkout.lock, patch)
        taken = list(_changed(patch))
    if spec is not None:
        write_atomically(patchset, with_carry(patchset.read_text("utf-8"), carry.name, spec).encode())
    series = "" if session.checkout.is_default else f" --series {session.checkout.series}"
    listed = "" if spec else f"add {carry.name!r} to {patchset}, "
    return Result(
        to_builtins(carry.spec),
        [
            *taken,
            ("made", carry.folder),
            ("added", f"{carry.name!r} to {patchset}" if spec else ""),
            ("next", f"write {carry.probe_path} and complete {carry.folder / 'carry.toml'},"),
            ("", f"{listed}then: sparkwright carry prove {carry.name}{series}"),
        ],
    )


def _new_pull(
    session: Session, pull: str, *, name: str, base: str, title: str, why: str
) -> tuple[Carry, list[Part]]:
    """Pin a pull request; return also the commits and files that come with it."""
    named, pinned = parse_pull(pull), session.checkout.lock.release.git
    session.require_network(f"pull request {named.number}")
    given, own = (one.removesuffix("/").removesuffix(".git") for one in (named.repository, pinned))
    address = pinned if given in {"", own} else named.repository  # the lock's own spelling
    found = resolve_pull(session.store, address, named.number, branch=base)
    repository = open_repository(session.store.git)
    change = pull_change(repository, found.pin)
    if because := idle(repository, change.base, change.theirs):
        raise PatchError(f"pull request {named.number} cannot be carried", because=because)
    for fault in unshippable(repository, change.base, change.theirs):
        warn(f"'merge' will refuse it, as no wheel can hold it: {fault}")
    several = len(found.subjects) > 1
    listed = "Its commits:\n" + "\n".join(f"* {subject}" for subject in found.subjects)
    draft = Draft(
        name=name or f"pull-{named.number}",
        # Of several commits none speaks for the whole, and one may be another request's.
        title=title or (not several and found.subjects[0]) or f"Pull request {named.number}",
        why=why or (listed if several else found.message) or "The pull request does not say.",
        drop_when=f"Upstream merges pull request {named.number}.",
    )
    counts = repository.line_counts(change.base, change.theirs)
    if all(map(is_text, counts)):
        warn("it changes tests and documents alone: no wheel would hold anything of it")
    kept = repository.files(change.base).keys() & repository.files(change.theirs).keys() & counts.keys()
    carry = create_pull(session.checkout.carries, draft, found, sorted(kept))
    return carry, [*_commits(found), *_files(counts)]


def _commits(found: ResolvedPull) -> Iterator[Part]:
    yield "commits", f"{len(found.subjects)} since it left {found.pin.branch or 'the default branch'}"
    yield from _some(found.subjects)
    if len(found.subjects) > 1:
        yield "", "if the request's page shows fewer, it is against another branch: name it with --base"


def _files(counts: Mapping[str, tuple[int, int] | None]) -> Iterator[Part]:
    """Yield the files of a change, each with how many lines it adds and takes away."""
    yield "files", len(counts)
    yield from _some(
        [
            one_line(path) + (f"  +{lines[0]} -{lines[1]}" if lines else "")
            for path, lines in sorted(counts.items())
        ]
    )


def _changed(patch: bytes) -> Iterator[Part]:
    files = parse_patch(patch, name="the change").files
    return _files(
        {one.path: (sum(len(hunk.added) for hunk in one.hunks), sum(len(hunk.removed) for hunk in one.hunks))
         for one in files}
    )  # fmt: skip


def _some(lines: Sequence[str]) -> Iterator[Part]:
    yield from (("", line) for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield "", f"and {len(lines) - _SHOWN} more"


@command.command("show")
@click.argument("name")
@source_options
@run_in_session
def show(session: Session, *, name: str, target: TargetOptions) -> Result:
    """Show a carry: its reason, its evidence, and its change with context."""
    carry = _find(session, name)
    job = session.job(target)
    text = _diff(job, carry).decode(errors="replace")
    return Result({**to_builtins(carry.spec), "diff": text}, [*_spec(carry), f"\n{text}"])


def _diff(job: Job, carry: Carry) -> bytes:
    """Return the change of *carry*: with context, or as recorded where the store may lack the source."""
    version = job.spec.lock.release.version
    if carry.spec.source is not None and (revision := carry.revision_for(version)):
        return (carry.folder / revision.patch).read_bytes()
    offline = job.options.offline
    change = prepare(job.repository, carry, version=version, find_base=job.find_base, offline=offline)
    if isinstance(change, str):
        raise PatchError(f"the change of {carry.name} cannot be shown", because=change)
    return job.repository.diff(change.base, change.theirs, context=_CONTEXT)


def _spec(carry: Carry) -> Iterator[str]:
    spec = carry.spec
    yield f"{spec.name}: {spec.title}"
    for heading, text in (("why", spec.why), ("symptom", spec.symptom), ("drop when", spec.drop_when)):
        yield f"\n{heading}\n{text.strip()}"
    if spec.later_releases:
        yield f"\nlater releases\n{spec.later_releases.strip()}"
    yield f"\nevidence: {spec.evidence.level}"
    for text in spec.evidence.demonstrated:
        yield f"  shown    {text.strip()}"
    for text in spec.evidence.claimed:
        yield f"  claimed  {text.strip()}"
    for entry in spec.upstream:
        yield f"\n#{entry.pull} by {entry.author} ({entry.state}): {entry.relation.strip()}"


@command.command("edit")
@click.argument("folder", type=PATH_TYPE)
@click.option("--carry", "name", help="Start from the pinned tree with this carry's change in it.")
@source_options
@run_in_clone
def edit(session: Session, *, folder: Path, name: str | None, target: TargetOptions) -> Result:
    """Write the pinned tree into FOLDER, to edit it there."""
    job = session.job(target)
    tree = job.pristine.tree
    if name is not None:
        carry = _find(session, name)
        editor = _editor(job)
        merged = editor.merged(carry)
        if not merged.clean:
            raise PatchError(
                f"carry {name} cannot be edited on the pin",
                because=f"{', '.join(merged.conflicts)} conflict there",
                next_step=f"'sparkwright carry refresh {name}' writes the tree with the conflicts in it",
            )
        tree = merged.tree
    write_tree(job.repository, tree, folder)
    record = f"refresh {name}" if name else "new NAME --title … --why …"
    return Result(
        {"folder": str(folder.absolute()), "tree": tree},
        [("wrote", folder), session.hint(f"edit it, then: sparkwright carry {record} --from {folder}")],
    )


def _editor(job: Job) -> CarryEditor:
    return CarryEditor(job.repository, job.pristine.tree, job.spec.lock.release.version, job.find_base)


@command.command("refresh")
@click.argument("name")
@click.option("--from", "folder", type=PATH_TYPE, help="Take the change from this edited folder.")
@source_options
@run_in_clone
def refresh(session: Session, *, name: str, folder: Path | None, target: TargetOptions) -> Result:
    """Update a carry: a pull request to its present head, another one to the pin."""
    carry = _find(session, name)
    if carry.spec.pull is not None:
        if folder is not None:
            raise click.UsageError(
                f"{name} is a pull request: its change is edited upstream, not in a folder"
            )
        return _refresh_pull(session, carry, carry.spec.pull)
    return _refresh_own(session, session.job(target), carry, folder)


def _refresh_pull(session: Session, carry: Carry, before: PullRequest) -> Result:
    session.require_network(f"the head of pull request {before.number}")
    found = resolve_pull(session.store, before.repository, before.number, branch=before.branch)
    now = found.pin
    moved = (now.head, now.base) != (before.head, before.base)
    parts: list[Part] = [f"{carry.name} is up to date: head {before.head[:12]}"]
    if moved:
        repin(carry, found)
        parts = [
            f"{carry.name}: head {before.head[:12]} → {now.head[:12]}, base {now.base[:12]}",
            *_commits(found),
            session.hint("read what changed, then: sparkwright carry prove"),
        ]
    described = {"moved": moved, "before": to_builtins(before), "pull": to_builtins(now)}
    return Result({**described, "subjects": list(found.subjects)}, parts)


def _refresh_own(session: Session, job: Job, carry: Carry, folder: Path | None) -> Result:
    lock = job.spec.lock
    require_editable(carry, lock.release.version)
    work = session.checkout.root / ".sparkwright" / "refresh" / carry.name
    patch = (
        diff_folder(job.repository, job.pristine.tree, folder) if folder else _editor(job).moved(carry, work)
    )
    if not patch:
        raise ConfigError(
            f"nothing is left of {carry.name}",
            because=f"vllm {lock.release.version} has its change",
            next_step="remove it from the patchset, or declare in its carry.toml what supersedes it",
        )
    revision = add_revision(carry, lock, patch)
    if folder is not None and folder.absolute() == work.absolute():
        remove_tree(work)  # the revision contains what was resolved there
    written = next(entry for entry in revision.spec.revision if entry.release == lock.release.version)
    wrote = ("wrote", carry.folder / written.patch)
    hint = session.hint(f"sparkwright carry prove {carry.name}")
    return Result(to_builtins(written), [*_changed(patch), wrote, hint])


@command.command("prove")
@click.argument("names", nargs=-1)
@click.option(
    "--onto", metavar="VERSION", help="Judge them on another release of upstream's, instead of the pin."
)
@click.option(
    "--upstream-tests",
    is_flag=True,
    help="Run upstream's own tests on both trees instead, all that touch what changes; NAMES are then files.",
)
@job_options
@run_in_clone
def prove(
    session: Session,
    *,
    names: tuple[str, ...],
    upstream_tests: bool,
    onto: str | None,
    target: TargetOptions,
) -> Result:
    """Run the probes of all carries, or of NAMES, on the pristine and the merged tree.

    Each proof is recorded beside its carry. An unproved carry is an error, unless it is left out. For one
    that upstream seems to contain, or that is declared superseded, the defect must be gone.

    Onto another release, a carry that does not merge is judged on the pristine tree alone, and a proof that
    it is not needed there is recorded too. Of a release that another series pins, nothing is recorded for
    the carries of that series: its own 'carry prove' does that.
    """
    job = session.job(target)
    if upstream_tests:
        return _by_upstreams_tests(job, names)
    proofs, needless, unproved = prove_carries(job, names, onto)
    rows = [(proof.carry, str(proof.verdict), reason_of(proof)) for proof in proofs]
    rows += [(name, "no proof needed", why) for name, why in needless.items()]
    judged = {proof.carry for proof in proofs}
    rows += [(name, "not proved", why) for name, why in unproved.items() if name not in judged]
    return Result(
        {"proofs": [to_builtins(proof) for proof in proofs], "needless": needless, "unproved": unproved},
        [Table(("carry", "verdict", "what was found"), rows)],
        _proof_failure(proofs, unproved),
    )


def _proof_failure(proofs: Sequence[Proof], unproved: Mapping[str, str]) -> SparkwrightError | None:
    """Return the error of the gravest fault: refuted carries, then those not absorbed, then unproved ones."""
    refuted = {proof.carry: reason_of(proof) for proof in proofs if proof.verdict == "refuted"}
    if refuted:
        told = "; ".join(f"{name}: {why}" for name, why in refuted.items())
        return ProofError(
            f"{', '.join(refuted)} refuted",
            because=f"the probe fails on the merged tree: {told}",
            next_step="correct the carry or its probe, or remove it from the patchset",
        )
    if there := [proof.carry for proof in proofs if proof.verdict == "not absorbed"]:
        return UnprovedError(
            f"{', '.join(there)} not absorbed",
            because="; ".join(f"{name}: {unproved[name]}" for name in there),
            next_step="set absorbs = false for that pull request, or correct [[superseded]]",
        )
    if unproved:
        return UnprovedError(
            f"{len(unproved)} not proved",
            because="; ".join(f"{name}: {why}" for name, why in unproved.items()),
            next_step="correct the probe, add one for that release ([[probe.later]] in carry.toml), or drop "
            "the carry if upstream no longer needs it",
        )
    return None


def _by_upstreams_tests(job: Job, files: tuple[str, ...]) -> Result:
    """Run upstream's own tests on the pristine and on the merged tree, and name what the patchset breaks.

    Those that touch what the patchset changes are run, or FILES alone, off the network. A test that passes
    on the pristine tree and fails on the merged one, and again in a process of its own, is an error. What
    cannot pass here at all, for want of a GPU, a model or a package, is counted by that reason.

    The result is recorded in patchsets/upstream-tests. While it holds without a regression, nothing is run.
    """
    found = run_upstream_tests(job, files)
    failure = None
    if found.regressions:
        broken = Counter(test.partition("::")[0] for test in found.regressions)
        failure = ProofError(
            f"{len(found.regressions)} of upstream's tests fail on the merged tree alone",
            because=", ".join(f"{count} in {file}" for file, count in broken.items()),
            next_step="correct the carry that changes what they test; the record names each",
        )
    return Result(to_builtins(found), _tested(found), failure)


def _tested(found: UpstreamTests) -> list[Part]:
    said: dict[tuple[str, str], list[str]] = {}
    for test, why in found.regressions.items():
        said.setdefault((test.partition("::")[0], why), []).append(test.partition("::")[2])
    rows = [
        (file, "regression", f"{tests[0]}{f' and {len(tests) - 1} more' if tests[1:] else ''}: {why}")
        for (file, why), tests in said.items()
    ]
    rows += [(test, "flaky", "it differed once, and not alone") for test in found.flaky]
    for reason, files in found.unjudged.items():
        rows.append((f"{sum(files.values())} in {len(files)} files", "not judged", reason))
    told = (
        f"{found.passed} of upstream's tests, in {found.files} files, pass on both trees of {found.version}"
    )
    return [Table(("tests", "verdict", "what was found"), rows), told]
