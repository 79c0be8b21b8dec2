"""Options of a verification; the journal records them, so that a run can be resumed."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import msgspec

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ConfigError
from sparkwright.verify.space import Configuration, load_base, make_space


class VerifyOptions(Model, frozen=True):
    """Options of a verification, as `sparkwright verify --help` explains them.

    One of `url`, `recipe` and `simulator` selects the source of the server. Sizes that are empty are the
    profile's.

    Attributes:
        against: a wheel or interpreter to compare with, or ``simulator`` for a healthy one; only that
            comparison is made then, as with `against_recipe`.
        speculative_tokens: tokens that the simulator drafts a step.
        boots: starts of each arm of a comparison, no more and no fewer.
        speed: server's seconds in one of the client's.
        vary: values by the setting of the recipe that is varied: only its configurations are compared then.
        slo: limits, as `parse_slo` reads them, that each of them must keep; without `vary` the highest rate
            at which they hold is searched.
        prompts_sha256: of the file of prompts, so that a resumed run sends the same.
    """

    profile: str = "full"
    url: str = ""
    model: str = ""
    log: str = ""
    recipe: str = ""
    use: str = ""
    wheel: str = ""
    python: str = ""
    unlocked: bool = False
    against: str = ""
    against_recipe: str = ""
    vary: dict[str, tuple[Any, ...]] = msgspec.field(default_factory=dict)
    slo: str = ""
    simulator: bool = False
    faults: tuple[str, ...] = ()
    speculative_tokens: int = 7
    checks: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    boots: int = 0
    thinking: bool = False
    speed: float = 0.0
    seed: int = 0
    reference: str = ""
    prompts: str = ""
    prompts_sha256: str = ""
    max_tokens: int = 0

    @property
    def title(self) -> str:
        """Short name of the verified server, as part of a folder's name."""
        if self.simulator and not self.vary:
            return "simulator"
        place = self.url.rpartition("@")[2].rpartition("://")[2]
        return re.sub(r"[^\w.+-]+", "-", place or self.recipe_name).strip("-") or "run"

    @property
    def recipe_name(self) -> str:
        """The recipe's name, which may have dots, or that of its file."""
        return PurePath(self.recipe).name.removesuffix(".toml")

    @property
    def narrowed(self) -> bool:
        """True if less, or something else, is measured than the profile says."""
        return bool(
            self.checks or self.slo or self.levels or self.categories or self.prompts or self.max_tokens
        )

    @property
    def compared(self) -> bool:
        """True if the server is only compared with others, of another wheel, recipe or setting."""
        return bool(self.against or self.against_recipe or self.vary)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations that `vary` selects, the recipe as it is first.

        Raises:
            UnknownNameError: there is no such recipe or use.
            ConfigError: they cannot be made.
        """
        return make_space(load_base(self.recipe, self.use), self.vary)

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that differ from the defaults, as a manifest records them."""
        given, usual = (msgspec.json.decode(msgspec.json.encode(one)) for one in (self, VerifyOptions()))
        return {name: value for name, value in given.items() if value != usual[name]}

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> VerifyOptions:
        """Return the options that a manifest records.

        Raises:
            ConfigError: they are not those of this program.
        """
        try:
            return convert(options, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("the run's options cannot be read", because=str(error)) from error


def recipe_and_use(text: str) -> tuple[str, str]:
    """Return the name or path of a recipe and its use, from ``RECIPE`` or ``RECIPE:USE``."""
    recipe, colon, use = text.rpartition(":")
    return (recipe, use) if colon and "/" not in use and not use.endswith(".toml") else (text, "")
