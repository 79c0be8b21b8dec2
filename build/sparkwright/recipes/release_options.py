"""Compare the options of a recipe with those of one vLLM release, as its own parser states them.

Nothing here runs vLLM: `sparkwright.engine.release` asks a release.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from sparkwright.base.config import Model
from sparkwright.recipes.recipe import Recipe, serve_arguments
from sparkwright.recipes.shared import shared_instead

Kind = Literal["flag", "value", "variable", "shell variable", "speculative key", "parser", "deprecated"]
_OURS = "VLLM_"  # other programs' variables are not judged


class Question(Model, frozen=True):
    """The options of a recipe, of which a release is asked.

    Attributes:
        line: arguments of ``vllm serve``.
        variables: names of the recipe's variables that are vLLM's.
        shell: those of the user's beside them.
    """

    line: tuple[str, ...]
    flags: dict[str, Any]
    speculative: dict[str, Any]
    variables: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()


def question_of(recipe: Recipe, environment: Iterable[str] = (), more: tuple[str, ...] = ()) -> Question:
    """Return the question of *recipe*, with its use applied, in a shell with the variables *environment*."""
    # Address and port change from start to start, and the answer does not depend on them.
    line = (*serve_arguments(recipe, host="localhost", port=8000)[1:], *more)
    own = tuple(name for name in recipe.environment if name.startswith(_OURS))
    shell = tuple(sorted(name for name in {*environment} - {*own} if name.startswith(_OURS)))
    return Question(line, recipe.flags, recipe.speculative, own, shell)


class Problem(Model, frozen=True):
    """One option of a recipe that a release does not have, or refuses.

    Attributes:
        kind: the kind of option; ``parser`` for an error of the release's parser on the whole command
            line, and ``deprecated`` for an option that a later release will lack.
        name: the option; for a value, the option and the value.
        nearest: the nearest name of this release; empty where none is near.
    """

    kind: Kind
    name: str
    because: str
    nearest: str = ""

    @property
    def refuses(self) -> bool:
        """True unless the option still works, or is not the recipe's."""
        return self.kind not in {"deprecated", "shell variable"}

    @property
    def instead(self) -> str:
        """Return the replacement of an option that releases dropped; empty for others."""
        return shared_instead(self.name.removeprefix("--")) if self.refuses else ""

    def __str__(self) -> str:
        """Return one line."""
        near = f"; the nearest name is {self.nearest}" if self.nearest else ""
        return f"{self.kind} {self.name}: {self.because}{f'; use {self.instead}' if self.instead else near}"
