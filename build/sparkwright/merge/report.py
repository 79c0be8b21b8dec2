"""Outcomes of a merge, one for each carry."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from sparkwright.base.config import Model
from sparkwright.base.errors import CarryConflictError


class OutcomeKind(StrEnum):
    """The name of an outcome; every carry gets exactly one."""

    APPLIED = "applied"
    """Merged cleanly; the tree has the change."""

    ABSORBED = "absorbed"
    """Upstream seems to have the change already; the tree is left as it is, and the probe has to agree."""

    SUPERSEDED = "superseded"
    """The carry itself declares that upstream has another answer from this release on."""

    CONFLICT_IN_TESTS_OR_DOCS = "conflict-in-tests-or-docs"
    """Shipped code merged cleanly; only tests or documents conflict, and keep upstream's form."""

    CONFLICT = "conflict"
    """Code conflicts; the carry is left out."""

    REFUSED = "refused"
    """The carry could not be tried, or merged cleanly into something that is plainly broken."""

    LEFT_OUT = "left-out"
    """Nothing that is made here depends on it: what it would change is not compiled."""

    @property
    def blocks_build(self) -> bool:
        """Tell if no wheel may be made with a carry of this outcome."""
        return self in {OutcomeKind.CONFLICT, OutcomeKind.REFUSED}

    @property
    def in_tree(self) -> bool:
        """Tell if the carry's own change is in the merged tree."""
        return self in {OutcomeKind.APPLIED, OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS}

    @property
    def wants_proof(self) -> bool:
        """Tell if a probe has to show that the defect is gone: by the carry, or by upstream."""
        return self.in_tree or self is OutcomeKind.ABSORBED


class Hazard(Model, frozen=True):
    """Something that merged cleanly and still deserves a look.

    Attributes:
        kind: ``both-sides``: both sides changed this function since the base. ``doubled``: each side gave
            the name the same value, in a place of its own. ``signature``: one side calls the function as
            it was before the other changed what it takes. ``removed``: one side uses what the other removed.
            ``mode``: the carry sets the file's mode, which wheels do not have from it.
    """

    kind: Literal["both-sides", "doubled", "signature", "removed", "mode"]
    path: str
    name: str


class Outcome(Model, frozen=True):
    """The outcome of one carry.

    Attributes:
        source: the dependency whose tree it changes; empty for vLLM's own.
        paths: files that it changed in the merged tree.
        concerns: for an absorbed carry, the files that its own change is about.
        signals: for an absorbed carry, the signals that fired.
        tree: id of the tree after this carry, of its source's where it has one.
    """

    carry: str
    kind: OutcomeKind
    tree: str
    detail: str = ""
    source: str = ""
    paths: tuple[str, ...] = ()
    concerns: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    hazards: tuple[Hazard, ...] = ()

    @property
    def proof_paths(self) -> tuple[str, ...]:
        """Return files that a proof is about: those that it changed, or would have."""
        return self.paths or self.concerns

    @property
    def named_paths(self) -> tuple[str, ...]:
        """Return `paths` for people: one in a dependency's tree is named as git would, ``source:path``."""
        return tuple(f"{self.source}:{path}" if self.source else path for path in self.paths)


class MergedSource(Model, frozen=True):
    """A dependency's source to which carries were to be applied."""

    name: str
    pristine: str
    tree: str


class MergeReport(Model, frozen=True):
    """The outcomes of a patchset.

    Attributes:
        commit: id of a commit of the merged tree, on top of one commit for each applied carry.
        sources: dependencies' sources that carries change, where the store had them.
    """

    version: str
    pristine: str
    tree: str
    commit: str
    outcomes: tuple[Outcome, ...]
    sources: tuple[MergedSource, ...] = ()

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Return the outcomes that block a wheel."""
        return tuple(outcome for outcome in self.outcomes if outcome.kind.blocks_build)

    def require_merged(self) -> None:
        """Make sure that the tree is that of the whole patchset."""
        if not self.failed:
            return
        names = " ".join(outcome.carry for outcome in self.failed)
        error = CarryConflictError(
            "the patchset does not merge",
            because="; ".join(f"{one.carry}: {one.kind} ({one.detail})" for one in self.failed),
            next_step=f"'sparkwright merge' shows all outcomes, 'sparkwright carry refresh' reworks {names}",
        )
        error.refused = any(outcome.kind is OutcomeKind.REFUSED for outcome in self.failed)
        raise error

    def outcome(self, carry: str) -> Outcome:
        """Return the outcome of the carry called *carry*."""
        return next(outcome for outcome in self.outcomes if outcome.carry == carry)
