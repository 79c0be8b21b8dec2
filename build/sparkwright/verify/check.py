"""The interface of a check: plan cells, and later judge their observations; and its registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify.corpus import Corpus
from sparkwright.verify.datasets import Dataset
from sparkwright.verify.profile import Profile


@dataclass(frozen=True)
class Context:
    """The input of a check besides its observations.

    Attributes:
        corpus: prompts by category, and long documents.
        facts: facts of each start of a server, by arm and boot number; empty where its log is out of reach.
            While planning, only those of servers that run already.
        band: key of the reference band that fits what is served, or empty.
        made_up: true if the model's weights are made up, so that no answer of it can be right.
        lacks: reasons by the capability (see `verify.capabilities`) that the server lacks and need not have.
        dataset: prompts of the sweep and rates of arrivals that the user chose.
    """

    profile: Profile
    corpus: Corpus
    facts: Mapping[tuple[str, int], BootFacts]
    band: str = ""
    made_up: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)
    dataset: Dataset = field(default_factory=Dataset)

    @property
    def sweep_categories(self) -> tuple[str, ...]:
        """Categories of the sweep: the profile's, or that of the user's prompts."""
        return self.dataset.categories or self.profile.categories

    def prompts_of(self, category: str, count: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* prompts of one of `sweep_categories`, each with a nonce of its own."""
        if category not in self.dataset.categories:
            return self.corpus.prompts(category, count, self.profile.seed, salt)
        words = facts.words_per_token if (facts := self.facts.get(("main", 0))) is not None else -1.0
        return self.dataset.take(self.corpus, count, self.profile.seed, salt, words)

    def prompts_of_each(self, count: int, salt: str, categories: Sequence[str] = ()) -> tuple[Prompt, ...]:
        """Return *count* prompts of each of *categories*, by default the profile's, one after the other."""
        return tuple(
            prompt
            for category in categories or self.profile.categories
            for prompt in self.corpus.prompts(category, count, self.profile.seed, salt)
        )

    def prompts_in_turn(self, count: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* prompts of the profile's categories in turn; the same for the same *salt*."""
        categories = self.profile.categories
        each = -(-count // len(categories))
        lists = [self.corpus.prompts(name, each, self.profile.seed, salt) for name in categories]
        return tuple(prompt for turn in zip(*lists, strict=True) for prompt in turn)[:count]


class Check(Protocol):
    """A group of cells and the findings that follow from them."""

    @property
    def name(self) -> str:
        """Name on the command line, in journals and in reports."""
        ...

    def plan(self, context: Context) -> Sequence[Cell]:
        """Return the cells to measure, in order; the same for the same context."""
        ...

    def judge(self, context: Context, observations: Sequence[Observation]) -> Sequence[Finding]:
        """Return what the observations of its own cells mean; pure, and at least one finding.

        A cell that is missing, or that has failures which the check does not expect, never passes.
        """
        ...


@runtime_checkable
class AdaptiveCheck(Check, Protocol):
    """A check that measures further cells while those before leave something undecided."""

    def extend(self, context: Context, observations: Sequence[Observation]) -> Sequence[Cell]:
        """Return cells to measure after all of *observations*; none once it is decided.

        Pure, so that a resumed run goes on with the same cells.
        """
        ...


@dataclass(frozen=True)
class RegisteredCheck:
    """A check with its place in profiles: a module of `verify.checks` holds one as ``CHECK``.

    Attributes:
        profiles: position in each profile that runs it, by the profile's name; checks of a profile run in the
            order of their positions.
        tries: capabilities that a server at an address is asked for only where this check runs.
    """

    check: Check
    profiles: Mapping[str, int] = field(default_factory=dict)
    tries: tuple[str, ...] = ()
