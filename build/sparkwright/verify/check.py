"""The input of a check besides its observations: sizes, prompts, and what is known of the servers.

`checks.common` has the interface of a check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.corpus import WORDS_PER_TOKEN, Corpus
from sparkwright.verify.datasets import CATEGORY, take
from sparkwright.verify.profiles import Profile


@dataclass(frozen=True)
class Context:
    """Sizes, prompts, and what is known of the servers.

    Attributes:
        facts: facts of each start of a server, by arm and boot number; empty where its log is out of reach.
            While planning, only those of servers that run already.
        band: key of the reference band that fits what is served, or empty.
        made_up: true if the model's weights are made up, so that no answer of it can be right.
        lacks: reasons by the capability (see `engine.findings`) that the server lacks and need not have.
        own: prompts of the sweep that the user chose.
    """

    profile: Profile
    corpus: Corpus
    facts: Mapping[tuple[str, int], BootFacts]
    band: str = ""
    made_up: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)
    own: tuple[Prompt, ...] = ()

    @property
    def main(self) -> BootFacts:
        """Facts of the first start of the server under test; empty ones if unknown."""
        return self.facts.get(("main", 0), BootFacts())

    @property
    def sweep_categories(self) -> tuple[str, ...]:
        """Categories of the sweep: the profile's, or that of the user's prompts."""
        return (CATEGORY,) if self.own else self.profile.categories

    def judged(self, passed: str) -> str:
        """Return *passed*, the cause of a pass, or that answers of a made-up model are not judged."""
        return "not judged: the model's weights are made up" if self.made_up else passed

    def cell(
        self,
        check: str,
        name: str,
        prompts: Sequence[Prompt],
        *,
        arm: str = "main",
        boot: int = 0,
        tags: Mapping[str, str] | None = None,
        **load: Any,
    ) -> Cell:
        """Return a cell with a request for each prompt and the profile's seed, unless *load* differs."""
        sizes = Load(**{"requests": len(prompts), "seed": self.profile.seed, **load})
        return Cell(
            check=check,
            name=name,
            load=sizes,
            prompts=tuple(prompts),
            arm=arm,
            boot=boot,
            tags=dict(tags or {}),
        )

    def document(self, tokens: int, seed: int, salt: str) -> Prompt:
        """Return a document of *tokens* tokens by the server's tokenizer, or by an estimate."""
        known = self.main.words_per_token
        words = known if known > 0 and math.isfinite(known) else WORDS_PER_TOKEN
        return self.corpus.document(tokens, seed=seed, salt=salt, words_per_token=words)

    def prompts_of(self, category: str, count: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* prompts of one of `sweep_categories`, each with a nonce of its own."""
        if self.own:
            return take(self.own, count, self.profile.seed, salt)
        return self.corpus.prompts(category, count, self.profile.seed, salt)

    def prompts_of_each(self, count: int, salt: str, categories: Sequence[str] = ()) -> tuple[Prompt, ...]:
        """Return *count* prompts of each of *categories*, by default the profile's, one after the other."""
        return tuple(
            prompt
            for category in categories or self.profile.categories
            for prompt in self.corpus.prompts(category, count, self.profile.seed, salt)
        )

    def prompts_in_turn(self, count: int, salt: str, categories: Sequence[str] = ()) -> tuple[Prompt, ...]:
        """Return *count* prompts of *categories*, by default the profile's, in turn."""
        categories = categories or self.profile.categories
        each = -(-count // len(categories))
        lists = [self.corpus.prompts(name, each, self.profile.seed, salt) for name in categories]
        return tuple(prompt for turn in zip(*lists, strict=True) for prompt in turn)[:count]
