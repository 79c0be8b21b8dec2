"""Judges and samplers that serve a candidate: its wheel on a target, or its Python on this machine's CPU."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file, to_json
from sparkwright.base.errors import ConfigError
from sparkwright.engine.server import ServerFailedError
from sparkwright.engine.verifier import CheckRequest
from sparkwright.recipes import load_recipe
from sparkwright.rehearsal.outcome import error_line
from sparkwright.rehearsal.run import serve_exact
from sparkwright.search import figures
from sparkwright.search.command import timed
from sparkwright.search.judges import VERDICTS
from sparkwright.search.messages import Request
from sparkwright.search.metric import UntestableError
from sparkwright.search.model import Evaluation
from sparkwright.search.target import caller
from sparkwright.store import storing, write_atomically

if TYPE_CHECKING:
    from sparkwright.engine.verifier import Verifier
    from sparkwright.search.figures import NamedFigure
    from sparkwright.search.messages import Judged
    from sparkwright.search.realise import Realiser
    from sparkwright.search.target import Target

RECIPE = "qwen3.6-27b-dflash"
_SMOKE = "smoke"
# One start is one sample: more requests of one start make it no surer.
_SAMPLE = "smoke"
_BOOT = "boot"
JUDGED = "judged.json"


@dataclass(frozen=True)
class Serving:
    """A target, and how wheels are served there.

    Attributes:
        target: the machine.
        recipe: a recipe's name, or the name of its file.
        text: the text of the file; empty for a recipe that ships.
        profile: how much is measured; by what is judged if it is empty.
        offline: install from that machine's cache alone.
    """

    target: Target
    recipe: str
    text: str = ""
    profile: str = ""
    offline: bool = False

    def __str__(self) -> str:
        """Return the machine and the recipe, with the digest of its text."""
        digest = f" ({sha256_bytes(self.text.encode())[:12]})" if self.text else ""
        profile = f", {self.profile}" if self.profile else ""
        return f"on {self.target.name} with {self.recipe}{digest}{profile}"

    def judge(
        self, wheel: Path, folder: Path, *, checks: tuple[str, ...], levels: tuple[int, ...] = ()
    ) -> Judged:
        """Have *wheel* served and verified; the result is kept in *folder*.

        Raises:
            UntestableError: it cannot be judged there.
            TargetError: the machine cannot be reached.
        """
        usual = _SAMPLE if levels else _SMOKE if self.recipe == _SMOKE else "full"
        request = Request(
            wheel=wheel.name,
            sha256=sha256_file(wheel),
            size=wheel.stat().st_size,
            run=secrets.token_hex(8),
            who=caller(),
            checks=checks,
            levels=levels,
            recipe=self.recipe,
            recipe_text=self.text,
            profile=self.profile or usual,
            offline=self.offline,
        )
        result = self.target.judge(wheel, request)
        with storing(f"writing to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / JUDGED, to_json(to_builtins(result)))
        return result


def read_serving(target: Target, recipe: str, profile: str, *, offline: bool) -> Serving:
    """Return how *target* serves wheels by a recipe that ships, or by one in a file here.

    Raises:
        UnknownNameError: there is no such recipe.
        ConfigError: the file does not follow its format.
    """
    chosen = recipe or RECIPE
    _ = load_recipe(chosen)
    path = Path(chosen)
    if path.suffix == ".toml" and path.exists():
        return Serving(target, path.name, path.read_text(encoding="utf-8"), profile, offline)
    return Serving(target, chosen, "", profile, offline)


@dataclass(frozen=True)
class TargetJudge:
    """Good if a server with the candidate's wheel passes a check of `verify` on a target.

    Attributes:
        realiser: builds wheels.
        serving: the target.
        check: the check's name.
        name: the judge as the user gave it, with the target.
    """

    realiser: Realiser
    serving: Serving
    check: str
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Have the candidate's wheel served and verified."""
        del attempt
        return timed(lambda: self._judge(applied, folder))

    def _judge(self, applied: frozenset[str], folder: Path) -> Evaluation:
        self.serving.target.require_once()  # before anything is built for it
        wheel = self.realiser.wheel(self.realiser.candidate(applied))
        result = self.serving.judge(wheel, folder, checks=(self.check,))
        by_name = {one.name: one for one in result.outcomes}
        if not result.started and self.check != _BOOT:
            raise UntestableError(by_name[_BOOT].detail)
        found = by_name[self.check]
        return Evaluation(
            verdict=VERDICTS[found.verdict],
            signature=found.signature,
            detail=found.detail,
            evidence=str(folder / JUDGED),
        )


@dataclass(frozen=True)
class TargetSampler:
    """A figure of one start of a candidate's server on a target."""

    realiser: Realiser
    serving: Serving
    figure: NamedFigure

    @property
    def name(self) -> str:
        """The figure, the machine and the recipe."""
        return f"{self.figure} {self.serving}"

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Start the candidate's server once and measure it.

        Raises:
            UntestableError: it cannot be built, started or measured.
        """
        del number
        self.serving.target.require_once()
        wheel = self.realiser.wheel(self.realiser.candidate(applied))
        levels = (self.figure.level,)
        result = self.serving.judge(wheel, folder, checks=(figures.CHECK,), levels=levels)
        if not result.started:
            raise UntestableError(result.outcomes[0].detail)
        return self.figure.value(result.findings)


@dataclass(frozen=True)
class RehearsalSampler:
    """A figure of one start of a candidate's server on this machine's CPU."""

    realiser: Realiser
    figure: NamedFigure
    verifier: Verifier

    @property
    def name(self) -> str:
        """The figure."""
        return f"{self.figure} of a rehearsal"

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Start the candidate's server once and measure it.

        Raises:
            UntestableError: it cannot be merged, started or measured, or there is no wheel for the CPU.
        """
        del number
        candidate = self.realiser.candidate(applied)
        if candidate.point.commit:
            raise UntestableError("upstream has wheels for the CPU of releases only")
        report = self.realiser.merged(candidate)
        served = serve_exact(self.realiser.exact_job(candidate), report)
        if served is None:
            raise UntestableError(f"there is no wheel for the CPU of {report.version}")
        request = CheckRequest(
            recipe=str(served.recipe),
            python=served.python,
            profile=_SAMPLE,
            checks=(figures.CHECK,),
            categories=("code",),
            levels=(self.figure.level,),
        )
        try:
            findings = self.verifier.run(request, folder)
        except ServerFailedError as error:
            raise UntestableError(f"the server did not start: {error_line(error)}") from error
        return self.figure.value(findings)


def require_check(check: str, text: str, verifier: Verifier) -> None:
    """Do nothing if *check* can be judged on a target.

    Raises:
        ConfigError: it is unknown, or compares two servers.
    """
    if check not in verifier.checks:
        raise ConfigError(
            f"{text!r} is no judge",
            because=f"a target has the checks {', '.join(verifier.checks)}",
            next_step="take one",
        )
