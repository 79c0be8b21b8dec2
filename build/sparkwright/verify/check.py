"""The input of a check besides its observations: sizes, prompts, and what is known of the servers.

`checks.common` has the interface of a check. Options and recipes can change every number of a profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.base.config import Model
from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.corpus import WORDS_PER_TOKEN, Corpus
from sparkwright.verify.datasets import CATEGORY, take


class Profile(Model, frozen=True):
    """The sizes of a run.

    Attributes:
        checks: names of the checks that run, in order.
        levels: concurrencies of the sweep.
        requests_per_client: requests in a sweep's cell for each of its clients, at the least.
        least_requests: requests in a sweep's cell, at the least.
        off_grid: concurrencies between the sizes that graphs are captured for, for the crash hunt.
        waves: mixed-length waves of the crash hunt; with none, it drains from the largest of `off_grid` only.
        contexts: prompt lengths in tokens of the long-context check.
        soak_s: length of the prefix-cache soak, in seconds of the server's clock.
        boots: starts of each arm of a comparison, at the least; `most_boots` where fewer decide nothing.
        speed: server's seconds in one of the client's; above 1 only for a simulator.
    """

    name: str
    checks: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("code", "math", "reasoning", "prose", "dialogue", "extraction")
    levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    requests_per_client: int = 3
    least_requests: int = 24
    max_tokens: int = 400
    off_grid: tuple[int, ...] = (3, 5, 7, 9, 15, 17, 23, 25, 31, 33, 47, 63)
    waves: int = 10
    contexts: tuple[int, ...] = (16_000, 33_000)
    context_requests: int = 4
    soak_s: float = 1800.0
    soak_concurrency: int = 8
    boots: int = 3
    most_boots: int = 10
    comparison_requests: int = 24
    lossless_prompts: int = 48
    thinking: bool = False
    seed: int = 0
    speed: float = 1.0
    deadlines: Deadlines = Deadlines()


_FULL = Profile(
    name="full",
    checks=(
        *("boot", "coherence", "traffic", "sampling", "thinking", "image", "sweep", "bands", "crash"),
        *("mixed", "context", "limit", "soak", "lossless", "prefix"),
    ),
)

# Random weights generate no meaningful text, and synthetic acceptance accepts wrong tokens on purpose, so
# this profile has no check of content. Tiny models are fast, so deadlines are short.
_SMOKE = Profile(
    name="smoke",
    checks=("boot", "sweep", "crash", "context", "soak"),
    categories=("code", "prose"),
    requests_per_client=2,
    least_requests=24,
    max_tokens=96,
    waves=2,
    contexts=(16_000,),
    context_requests=2,
    soak_s=60.0,
    deadlines=Deadlines(first_token_s=120.0, stall_s=30.0),
)

# More than twenty minutes of a simulated server's time in one of the client's, on two shared cores. At c = 64
# the simulator limits the rate, whatever the speed, so outputs and prompts are few and short.
_DEMO = Profile(
    name="demo",
    # Early, the soak: a decay with the server's age would be over once all other cells are measured.
    checks=("boot", "coherence", "soak", "sweep", "crash", "context", "lossless"),
    categories=("code", "prose"),
    levels=(1, 8, 64),
    requests_per_client=1,
    least_requests=16,
    max_tokens=128,
    off_grid=(17, 33),
    waves=1,
    contexts=(16_000,),
    context_requests=2,
    soak_s=1200.0,
    lossless_prompts=24,
    speed=60.0,
    deadlines=Deadlines(first_token_s=120.0),
)

# A small model on a few cores: tens of tokens a second for all requests together.
_CPU = Profile(
    name="cpu",
    checks=("boot", "coherence", "traffic", "sweep", "prefix", "crash", "lossless"),
    categories=("code", "extraction"),
    levels=(1, 4, 8),
    requests_per_client=2,
    least_requests=8,
    max_tokens=48,
    off_grid=(3,),
    waves=1,
    lossless_prompts=20,
)

# The usual profile: at most 20 minutes on a GB10 with a model of 27 billion parameters. Two categories, so
# that they can be compared, every concurrency, the batch size of a known crash, one long prompt; nothing that
# takes hours or another server, such as a soak or plain answers.
_QUICK = Profile(
    name="quick",
    checks=("boot", "coherence", "traffic", "sampling", "sweep", "crash", "context"),
    categories=("code", "prose"),
    requests_per_client=1,
    least_requests=12,
    max_tokens=32,
    off_grid=(17,),
    waves=0,
    contexts=(8_000,),
    context_requests=1,
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (_FULL, _QUICK, _SMOKE, _DEMO, _CPU)}
"""Shipped profiles by name."""


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
