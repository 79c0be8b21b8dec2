"""Judges and samplers that serve a candidate: its wheel by a recipe, or its Python on this machine's CPU."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.config import convert, to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.base.errors import (
    ConfigError,
    EnvironmentSetupError,
    FetchError,
    IncompatibleOptionsError,
    LockMismatchError,
    ServerError,
    StorageError,
)
from sparkwright.distributed import Done, bring_files
from sparkwright.engine.outcomes import error_line
from sparkwright.engine.server import ServerFailedError
from sparkwright.engine.verifier import CheckRequest, CheckResult, Verifier
from sparkwright.recipes import load_recipe
from sparkwright.rehearsal.run import serve_exact
from sparkwright.search import figures
from sparkwright.search.candidates import Realiser
from sparkwright.search.figures import NamedFigure
from sparkwright.search.judges import VERDICTS
from sparkwright.search.metric import UntestableError, timed
from sparkwright.search.model import Evaluation
from sparkwright.search.remote import Machines
from sparkwright.store import storing, write_atomically

_SMOKE = "smoke"
# One start is one sample: more requests of one start make it no surer.
_SAMPLE = "smoke"
_BOOT = "boot"
JUDGED = "judged.json"
_FULL = re.compile("No space left on device|Disk quota exceeded|os error 28", re.IGNORECASE)
_UNREACHABLE = re.compile(
    "error sending request|dns error|connection|timed? ?out|temporary failure|network is unreachable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Serving:
    """How wheels are served, and where.

    Attributes:
        machines: run the servers.
        recipe: a recipe's name or file.
        verifier: runs the checks.
        profile: how much is measured; by what is judged if it is empty.
        offline: fetch no packages.
    """

    machines: Machines
    recipe: str
    verifier: Verifier
    profile: str = ""
    offline: bool = False

    def __str__(self) -> str:
        """Return the machines and the recipe, with the digest of its file."""
        path = Path(self.recipe)
        digest = f" ({sha256_file(path)[:12]})" if path.suffix == ".toml" and path.is_file() else ""
        profile = f", {self.profile}" if self.profile else ""
        return f"on {self.machines} with {path.name}{digest}{profile}"

    def judge(
        self, wheel: Path, folder: Path, *, checks: tuple[str, ...], levels: tuple[int, ...] = ()
    ) -> CheckResult:
        """Have *wheel* served and verified; the result and the run are kept in *folder*.

        Raises:
            UntestableError: it cannot be judged there.
            ClusterError: no machine can be reached.
        """
        usual = _SAMPLE if levels else _SMOKE if self.recipe == _SMOKE else "full"
        request = CheckRequest(
            vllm=wheel,
            recipe=self.recipe,
            profile=self.profile or usual,
            checks=checks,
            levels=levels,
            offline=self.offline,
        )
        store = self.machines.cluster.store

        def take(done: Done) -> CheckResult | None:
            return convert(done.value, CheckResult) if bring_files(store, done.files, folder) else None

        try:
            asked = self.verifier.task(store, request, f"run-{secrets.token_hex(8)}")
        except ConfigError as error:  # the candidate's release has no locked runtime
            raise UntestableError(str(error)) from error
        try:
            result = self.machines.do(asked, take)
        except (EnvironmentSetupError, IncompatibleOptionsError, LockMismatchError) as error:
            raise UntestableError(str(error)) from error
        except ServerError as error:
            raise _of_an_installer(error) from error
        with storing(f"writing to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / JUDGED, to_json(to_builtins(result)))
        return result


def _of_an_installer(error: ServerError) -> Exception:
    """Return what the *error* of an installation says: a full disk says nothing of the wheel."""
    for kind, pattern in ((StorageError, _FULL), (FetchError, _UNREACHABLE)):
        if pattern.search(error.because):
            return kind(error.what, because=error.because, next_step=error.next_step)
    return UntestableError(str(error))


def read_serving(
    machines: Machines, recipe: str, profile: str, verifier: Verifier, *, offline: bool
) -> Serving:
    """Return how *machines* serve wheels by a recipe that ships, or by one in a file here.

    Raises:
        UnknownNameError: there is no such recipe.
        ConfigError: the file does not follow its format.
    """
    _ = load_recipe(recipe)
    return Serving(machines, recipe, verifier, profile, offline)


@dataclass(frozen=True)
class ServedJudge:
    """Good if a server with the candidate's wheel passes a check of `verify`.

    Attributes:
        realiser: builds wheels.
        serving: how they are served.
        check: the check's name.
        name: the judge as the user gave it, with the recipe.
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
class ServedSampler:
    """A figure of one start of a candidate's server."""

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
            vllm=served.python,
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
    """Do nothing if *check* can be judged on a candidate's wheel.

    Raises:
        ConfigError: it is unknown, or compares two servers.
    """
    if check not in verifier.checks:
        raise ConfigError(
            f"{text!r} is no judge",
            because=f"a served wheel has the checks {', '.join(verifier.checks)}",
            next_step="take one",
        )
