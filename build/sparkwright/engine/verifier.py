"""The interface by which rehearsals and bisections have a server verified; `verify.verifier` implements it.

The command line gives it to them, so that neither imports the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.config import Model
from sparkwright.distributed.tasks import Task
from sparkwright.engine.findings import Finding
from sparkwright.engine.outcomes import CheckOutcome
from sparkwright.store import Store


@dataclass(frozen=True)
class CheckRequest:
    """Checks of a vLLM, which a recipe starts.

    Attributes:
        vllm: a wheel, or the interpreter of an environment.
        recipe: a recipe's name or file.
        against: interpreter of another vLLM, whose answers are compared; `None` for none.
        profile: how much is measured.
        categories: of prompts; the profile's if empty.
        levels: concurrencies of a sweep; the profile's if empty.
        offline: fetch nothing.
    """

    vllm: Path
    recipe: str
    checks: tuple[str, ...]
    against: Path | None = None
    profile: str = "full"
    categories: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    seed: int = 0
    offline: bool = True


class CheckResult(Model, frozen=True):
    """The result of checks in another process.

    Attributes:
        started: true if the server came up.
        outcomes: one for each check that was requested, and for the start.
        findings: all conclusions, with their figures.
    """

    started: bool
    outcomes: tuple[CheckOutcome, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Verifier:
    """A way to run checks.

    Attributes:
        checks: names of all checks that need one server.
        run: runs the requested checks into a folder; a finished run is not repeated. Raises `ServerError`
            if no server comes up.
        task: returns the task of running them elsewhere, by the name of the run's folder; its document is a
            `CheckResult`.
    """

    checks: tuple[str, ...]
    run: Callable[[CheckRequest, Path], tuple[Finding, ...]]
    task: Callable[[Store, CheckRequest, str], Task]
