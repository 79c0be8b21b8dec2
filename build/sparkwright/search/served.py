"""Serve candidates for a check or a figure: on this machine's CPU, or their wheels by a recipe."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
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
from sparkwright.base.events import emit
from sparkwright.distributed.cluster import Cluster, ThisMachine
from sparkwright.distributed.inputs import bring_files
from sparkwright.distributed.tasks import Done, TaskLostError
from sparkwright.engine.findings import Finding
from sparkwright.engine.outcomes import CheckOutcome, CheckRequest, CheckResult, Verifier
from sparkwright.rehearsal.model import DEFAULT, PARITY, RehearsalOptions
from sparkwright.rehearsal.run import rehearse
from sparkwright.search.candidates import Realiser
from sparkwright.search.metric import SWEEP, NamedFigure
from sparkwright.search.model import UntestableError
from sparkwright.store import storing, write_atomically

# One start is one sample: more requests of one start make it no surer.
_SAMPLE = "smoke"
_BOOT = "boot"
_JUDGED = "judged.json"
_FULL = re.compile("No space left on device|Disk quota exceeded|os error 28", re.IGNORECASE)
_UNREACHABLE = re.compile(
    "error sending request|dns error|connection|timed? ?out|temporary failure|network is unreachable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rehearsing:
    """Candidates' Python on this machine's CPU, for the checks of a rehearsal."""

    realiser: Realiser
    verifier: Verifier

    @property
    def checks(self) -> Sequence[str]:
        """Names of the checks that can judge."""
        return DEFAULT

    def __str__(self) -> str:
        """Return where candidates are served."""
        return "in a rehearsal"

    def check(self, applied: frozenset[str], check: str, folder: Path) -> tuple[CheckOutcome, str]:
        """Return the outcome of a rehearsal with one check, and its report.

        Raises:
            UntestableError: the candidate cannot be merged, or there is no wheel for the CPU.
        """
        candidate = self.realiser.candidate(applied)
        if candidate.point.commit:
            raise UntestableError("upstream has wheels for the CPU of releases only")
        report = self.realiser.merged(candidate)
        options = RehearsalOptions(
            checks=(check,),
            offline=self.realiser.access.settings.offline,
            out=folder / "rehearsal",
            against_pristine=check == PARITY,
        )
        result = rehearse(self.realiser.exact_job(candidate), report, self.verifier, options)
        if not result.exact:
            raise UntestableError(f"there is no wheel for the CPU of {report.version}")
        return next(one for one in result.checks if one.name == check), result.report


@dataclass(frozen=True)
class Serving:
    """Candidates' wheels, served by a recipe.

    Attributes:
        machines: run the servers: other ones, or this one.
        recipe: a recipe's name or file.
        verifier: runs the checks.
        profile: how much is measured; by what is judged if it is empty.
    """

    realiser: Realiser
    machines: Cluster | ThisMachine
    recipe: str
    verifier: Verifier
    profile: str = ""

    @property
    def checks(self) -> Sequence[str]:
        """Names of the checks that can judge."""
        return self.verifier.checks

    def __str__(self) -> str:
        """Return the machines and the recipe, with the digest of its file."""
        path = Path(self.recipe)
        digest = f" ({sha256_file(path)[:12]})" if path.suffix == ".toml" and path.is_file() else ""
        profile = f", {self.profile}" if self.profile else ""
        machines = self.machines.address.name if isinstance(self.machines, Cluster) else "this machine"
        return f"on {machines} with {path.name}{digest}{profile}"

    def check(self, applied: frozenset[str], check: str, folder: Path) -> tuple[CheckOutcome, str]:
        """Return the outcome of one check of the candidate's server, and where all of them are.

        Raises:
            UntestableError: the candidate cannot be built, installed or started.
        """
        result = self._verified(applied, folder, checks=(check,))
        by_name = {one.name: one for one in result.outcomes}
        if not result.started and check != _BOOT:
            raise UntestableError(by_name[_BOOT].detail)
        return by_name[check], str(folder / _JUDGED)

    def measure(self, applied: frozenset[str], level: int, folder: Path) -> Sequence[Finding]:
        """Return the findings of a sweep of one start, with *level* requests at a time.

        Raises:
            UntestableError: the candidate cannot be built, installed or started.
        """
        result = self._verified(applied, folder, checks=(SWEEP,), levels=(level,))
        if not result.started:
            raise UntestableError(result.outcomes[0].detail)
        return result.findings

    def _verified(
        self, applied: frozenset[str], folder: Path, *, checks: tuple[str, ...], levels: tuple[int, ...] = ()
    ) -> CheckResult:
        """Have the candidate's wheel served and verified; the result and the run are kept in *folder*."""
        usual = _SAMPLE if levels or self.recipe == _SAMPLE else "full"
        request = CheckRequest(
            vllm=self.realiser.wheel(self.realiser.candidate(applied)),
            recipe=self.recipe,
            profile=self.profile or usual,
            checks=checks,
            levels=levels,
            offline=self.realiser.access.settings.offline,
        )
        store, found = self.machines.store, list[CheckResult]()

        def take(done: Done) -> bool:
            result = convert(done.value, CheckResult)
            if not bring_files(store, done.files, folder):
                return False
            found.append(result)
            emit("step.finished", machine=done.machine, seconds=round(done.seconds, 3))
            return True

        try:
            asked = self.verifier.task(store, request, f"run-{secrets.token_hex(8)}")
        except ConfigError as error:  # the candidate's release has no locked runtime
            raise UntestableError(str(error)) from error
        try:
            self.machines.run([asked], take)
        except (EnvironmentSetupError, IncompatibleOptionsError, LockMismatchError, TaskLostError) as error:
            raise UntestableError(str(error)) from error
        except ServerError as error:  # of an installation: a full disk says nothing of the wheel
            for kind, pattern in ((StorageError, _FULL), (FetchError, _UNREACHABLE)):
                if pattern.search(error.because):
                    raise kind(error.what, because=error.because, next_step=error.next_step) from error
            raise UntestableError(str(error)) from error
        (result,) = found
        with storing(f"writing to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _JUDGED, to_json(to_builtins(result)))
        return result


@dataclass(frozen=True)
class FigureSampler:
    """A figure of one start of a candidate's server."""

    host: Serving
    figure: NamedFigure

    @property
    def name(self) -> str:
        """The figure, and where it is measured."""
        return f"{self.figure} {self.host}"

    def sample(self, applied: frozenset[str], folder: Path) -> float:
        """Start the candidate's server once and measure it.

        Raises:
            UntestableError: it cannot be made, started or measured.
        """
        return self.figure.value(self.host.measure(applied, self.figure.level, folder))
