"""A branch for a person to review: revisions refreshed one commit a carry, and the lock moved last.

Revisions for a newer release change nothing at the present pin, so every commit of the branch builds. The
lock moves only where no carry is red; onto a commit the lock alone moves. Otherwise the branch ends with an
empty commit that names what holds the release back, and since when. It is written into the clone's objects;
its work tree is not touched.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkwright.base.config import Model
from sparkwright.base.errors import ConfigError, NeedsPersonError
from sparkwright.base.page import text_environment
from sparkwright.base.text import clean, code_span, plural
from sparkwright.carries.files import add_revision, declare_superseded
from sparkwright.carries.model import Carry, load_carry
from sparkwright.git.clone import ProjectClone
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.lock.bump import rewrite
from sparkwright.lock.model import LOCK_NAME, PATCHSETS, Lock
from sparkwright.merge.prepare import BaseFinder, CarryEditor
from sparkwright.nightly.model import (
    MEANINGS,
    Judgement,
    Night,
    NightVerdict,
    Standing,
    TargetNight,
)
from sparkwright.probe.proof import Proof, proof_file, write_proof
from sparkwright.store.paths import Store

BRANCHES = "sparkwright/"
BASE_TRAILER = "Proposal-Base"
_JUDGED = ("carries", PATCHSETS)


class ProposedCommit(Model, frozen=True):
    """A commit of a proposal: its id and the first line of its message."""

    id: str
    subject: str


class HeldBack(Model, frozen=True):
    """A carry that keeps the lock from moving."""

    carry: str
    judgement: Judgement
    since: str = ""
    keeps: str = ""


class Proposal(Model, frozen=True):
    """A branch that was written for one release or commit.

    Attributes:
        target: the release, or the first digits of the commit.
        moved: whether the branch was written: it was missing, or differed.
    """

    target: str
    branch: str
    base: str
    head: str
    commits: tuple[ProposedCommit, ...]
    pins: bool
    held: tuple[HeldBack, ...] = ()
    notes: tuple[str, ...] = ()
    moved: bool = True
    pushed: bool = False


@dataclass(frozen=True)
class _Edit:
    """The files of the project that one commit changes, below the project's folder."""

    files: Mapping[str, bytes]
    message: str


@dataclass(frozen=True)
class Proposer:
    """The inputs of proposals.

    Attributes:
        carries: the carries of the patchset, as the clone's HEAD has them.
        branches: beginning of the branches' names, which ends with the release's: a series has its own.
    """

    clone: ProjectClone
    store: Store
    repository: Repository
    carries: Sequence[Carry]
    find_base: BaseFinder
    pin: str
    lock_name: str = LOCK_NAME
    branches: str = BRANCHES

    def propose(
        self, found: TargetNight, lock: Lock | None, proofs: Mapping[str, Proof] | None = None
    ) -> Proposal | str:
        """Write the branch for what was *found* about one target; returns why not where there is nothing.

        *lock* is `None` where the target's is not known; *proofs* are those on the target, by carry.

        Raises:
            ConfigError: what was judged is not what the clone's HEAD has, or the branch is checked out.
            NeedsPersonError: the branch has a commit of another writer.
        """
        target = found.target
        if lock is None:
            return f"{target.label}: there is no lock of it, since no wheel was built of it"
        if found.failed:
            return f"{target.label}: its wheel, its rehearsal or upstream's tests failed"
        self._require_judged(found)
        held = self._held(found)
        notes: list[str] = []
        with self.store.scratch() as scratch:
            staying = {one.carry for one in held}
            # A revision, and what supersedes a carry, are of releases: a commit is only pinned.
            release = target.kind == "release"
            free = [carry for carry in self.carries if release and carry.name not in staying]
            tried = [self._edit(found, carry, lock, scratch, notes) for carry in free]
        edits = [edit for edit in tried if edit is not None]
        names = [one.carry for one in held]
        if held and not edits:
            return f"{target.label}: no revision changes, and {', '.join(names)} held back"
        if held:
            carries = [found.carry(name) for name in names]
            message = commit_message("held", found, pin=self.pin, carries=carries, notes=notes)
            edits.append(_Edit({}, message))
        elif (pinning := self._pin(found, lock, proofs or {}, notes)) is not None:
            edits.append(pinning)
        if not edits:
            return f"{target.label}: it is the pin already, and no revision changes"
        return self._write(found, edits, held, notes)

    def _held(self, found: TargetNight) -> tuple[HeldBack, ...]:
        """Return the carries that keep the lock from moving: red, or needless and required by another.

        On a commit every needless one does: it can be declared superseded from a release on alone.
        """
        commit = found.target.kind == "commit"
        required = {
            name
            for carry in self.carries
            for name in carry.spec.requires
            if found.carry(carry.name).judgement not in {Judgement.NOT_NEEDED, Judgement.DECLARED}
        }
        return tuple(
            HeldBack(carry=one.name, judgement=one.judgement, since=one.red_since, keeps=one.holds)
            for one in found.carries
            if one.standing is Standing.RED
            or (one.standing is Standing.DROP and (commit or one.name in required))
        )

    def _require_judged(self, found: TargetNight) -> None:
        """Refuse a clone whose HEAD differs from what was judged: the files in its work tree."""
        if {one.name for one in found.carries} != {carry.name for carry in self.carries}:
            raise ConfigError(
                "no branch can be proposed",
                because="the patchset has other carries than the night judged",
                next_step="run 'sparkwright nightly --again --propose'",
            )
        if edited := self.clone.edited((self.lock_name, *_JUDGED)):
            raise ConfigError(
                "no branch can be proposed",
                because=f"{', '.join(edited[:3])} differ from the commit that is checked out",
                next_step="commit or stash these changes, and run the command again",
            )

    def _edit(
        self, found: TargetNight, carry: Carry, lock: Lock, scratch: Path, notes: list[str]
    ) -> _Edit | None:
        """Return the change to the folder of *carry*, made in a copy; `None` if it stays as it is."""
        judged = found.carry(carry.name)
        copy = scratch / carry.name
        if judged.judgement is Judgement.NOT_NEEDED:
            shutil.copytree(carry.folder, copy)
            because = f"Its probe passes on the pristine tree of {found.target.version}."
            if judged.culprit is not None and judged.culprit.commit:
                because += f" The outcome changed with {judged.culprit.commit}."
            version = found.target.version
            declare_superseded(
                load_carry(copy), releases=f">={version}", by=f"vLLM {version}", because=because
            )
            message = commit_message("superseded", found, carry=judged)
            return _Edit(_changed(carry.folder, copy), message)
        if judged.standing is not Standing.GOOD or judged.judgement is Judgement.DECLARED:
            return None
        made = self._refreshed(found, carry, notes)
        if made is None:
            return None
        shutil.copytree(carry.folder, copy)
        changed = add_revision(load_carry(copy), lock, made)
        name = next(one.patch for one in changed.spec.revision if one.release == lock.release.version)
        message = commit_message("refreshed", found, carry=judged, patch=name)
        return _Edit(_changed(carry.folder, copy), message)

    def _refreshed(self, found: TargetNight, carry: Carry, notes: list[str]) -> bytes | None:
        """Return the change of *carry* on the target; `None` if it has that."""
        if carry.spec.pull is not None:
            notes.append(f"{carry.name} is a pull request, held at its pinned head")
            return None
        if carry.spec.source is not None:
            notes.append(f"{carry.name} changes {carry.spec.source}, not vLLM's own tree")
            return None
        target = found.target
        editor = CarryEditor(self.repository, target.tree, target.version, self.find_base)
        merged = editor.merged(carry)
        if not merged.clean:
            notes.append(f"{carry.name} conflicts in {', '.join(merged.conflicts)}, which are no code")
            return None
        patch = self.repository.diff(target.tree, merged.tree, context=0)
        now = carry.revision_for(target.version)
        present = None if now is None else (carry.folder / now.patch).read_bytes()
        return None if patch in {b"", present} else patch

    def _pin(
        self, found: TargetNight, lock: Lock, proofs: Mapping[str, Proof], notes: Sequence[str]
    ) -> _Edit | None:
        """Return the change that moves the lock, with the proofs on the new pin; `None` if it is there."""
        path = self.clone.root / self.lock_name
        bumped = rewrite(path.read_text(encoding="utf-8"), lock)
        if not bumped.changes:
            return None
        files = {self.lock_name: bumped.text.encode()}
        with self.store.scratch() as scratch:
            for name, proof in proofs.items():
                version = lock.release.version
                written = write_proof(scratch, proof, version).read_bytes()
                files[f"carries/{name}/{proof_file(version)}"] = written
        told = {"changes": bumped.changes, "notes": [*notes, *bumped.notes]}
        return _Edit(files, commit_message("pinned", found, **told))

    def _write(
        self, found: TargetNight, edits: Sequence[_Edit], held: tuple[HeldBack, ...], notes: Sequence[str]
    ) -> Proposal:
        branch = f"{self.branches}{found.target.label}"
        before = self.clone.branch(branch)
        self._require_ours(branch, before)
        commits = tuple(self._commits(edits))
        head = commits[-1].id
        if head != before:
            self.clone.move(branch, head, expected=before)
        return Proposal(
            target=found.target.label,
            branch=branch,
            base=self.clone.head,
            head=head,
            commits=commits,
            pins=not held,
            held=held,
            notes=tuple(notes),
            moved=head != before,
        )

    def _require_ours(self, branch: str, tip: str | None) -> None:
        """Refuse a branch that is checked out, or that a person worked on."""
        if tip is not None and self.clone.own_base(tip, BASE_TRAILER) is None:
            raise NeedsPersonError(
                f"the branch {branch} is not overwritten",
                because=f"its commit {tip[:12]}, or one below it, is not ours alone",
                next_step=f"merge it, or rename it with 'git branch -m {branch} NAME'",
            )
        if place := self.clone.place(branch):
            raise ConfigError(
                f"the branch {branch} is not moved",
                because=f"it is checked out in {place}",
                next_step="check another branch out there",
            )

    def _commits(self, edits: Sequence[_Edit]) -> Iterator[ProposedCommit]:
        """Write one commit for each edit, dated as the one that they stand on, and yield them."""
        repository, parent = self.clone.repository, self.clone.head
        base = self.clone.commit(parent)
        tree = base.tree
        for edit in edits:
            if edit.files:
                entries = {
                    f"{self.clone.prefix}{path}": FileEntry("100644", data)
                    for path, data in edit.files.items()
                }
                tree = patch_tree(repository, tree, entries)
            message = f"{edit.message}\n\n{BASE_TRAILER}: {self.clone.head}"
            parent = repository.commit(tree, parents=[parent], message=message, seconds=base.seconds)
            yield ProposedCommit(id=parent, subject=message.partition("\n")[0])


def _changed(before: Path, after: Path) -> dict[str, bytes]:
    """Return the files of a carry's folder that its copy has in another form, by path in the project."""
    files = {path.name: path.read_bytes() for path in after.iterdir() if path.is_file()}
    return {
        f"carries/{before.name}/{name}": data
        for name, data in sorted(files.items())
        if not (before / name).is_file() or (before / name).read_bytes() != data
    }


# The report ---------------------------------------------------------------------------------------

VERDICTS = {
    NightVerdict.GREEN: "Green",
    NightVerdict.NEEDS_PERSON: "Needs a person",
    NightVerdict.NOTHING_NEW: "Nothing new",
}
_TEMPLATES = Path(__file__).parent / "template"
_SYMBOLS = {Standing.GOOD: "✓", Standing.DROP: "○", Standing.RED: "✗"}
_BARS = {Standing.GOOD: "▁", Standing.DROP: "▄", Standing.RED: "█"}
_FULL_ID = 40
_LONGEST_MESSAGE = 300
# By these a forge closes our issues and links our pull requests, where upstream's words are about its own.
_REFERENCES = re.compile(r"\bGH-(?=\d)|#(?=\d)", re.IGNORECASE)


def render_markdown(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as Markdown.

    *upstream* is the git address that links to commits begin with.
    """

    def linked(commit: str) -> str:
        address = commit_address(upstream, commit)
        return f"[{code_span(commit[:12])}]({address})" if address else code_span(commit[:12])

    made = text_environment(_TEMPLATES)
    made.globals |= {
        "VERDICTS": VERDICTS, "SYMBOLS": _SYMBOLS, "MEANINGS": MEANINGS, "linked": linked, "tally": tally,
        "bars": lambda marks: "".join(_BARS[one.judgement.standing] for one in marks),
    }  # fmt: skip
    page = made.get_template("night.md.jinja").render(
        night=night,
        branches=[one for one in proposals if not isinstance(one, str)],
        unproposed=[one for one in proposals if isinstance(one, str)],
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def commit_message(kind: str, found: TargetNight, **told: Any) -> str:
    """Return the message of a proposal's commit: the macro *kind* of its template, with what is *told*."""
    made = text_environment(_TEMPLATES, quiet)
    made.globals |= {"linked": lambda commit: commit[:12], "tally": tally}
    text = getattr(made.get_template("commit.jinja").module, kind)(found, **told)
    return re.sub(r"\n{3,}", "\n\n", str(text)).strip()


def quiet(text: str) -> str:
    """Return upstream's *text* as one line without mentions, links or paragraph breaks."""
    line = " ".join(clean(text, _LONGEST_MESSAGE).split())
    return _REFERENCES.sub("pull ", line).replace("@", "(at)").replace("://", ":")


def commit_address(upstream: str, commit: str) -> str:
    """Return the address of an upstream commit's page, or nothing where the repository has none."""
    full = len(commit) == _FULL_ID and set(commit) <= set("0123456789abcdef")
    try:
        parts = urlsplit(upstream)
    except ValueError:
        return ""
    # https alone, so that no other scheme becomes a link.
    if not full or parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        return ""
    return f"{upstream.removesuffix('/').removesuffix('.git')}/commit/{commit}"


def tally(targets: Sequence[TargetNight]) -> str:
    """Return how many carries are good, to be dropped and red, over all *targets*."""
    standings = [one.standing for found in targets for one in found.carries]
    good, drop, red = (standings.count(standing) for standing in Standing)
    parts = [f"{good} good"] + ([f"{drop} to drop"] if drop else []) + ([f"{red} red"] if red else [])
    return f"{plural(len(standings), 'outcome')} on {plural(len(targets), 'target')}: {', '.join(parts)}"
