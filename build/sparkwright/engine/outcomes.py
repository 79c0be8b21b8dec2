"""Checks as rehearsals and bisections use them: a way to run them, and one outcome for each check.

`verify.runner` implements `Verifier`; the command line gives it to them, so that neither imports the checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.base.config import Model
from sparkwright.base.errors import ServerError
from sparkwright.distributed.tasks import Task
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.store.paths import Store

_ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception)|AssertionError)\b: ?.*")
# Raised by those that wait for the process that failed.
_FOLLOW_UPS = ("Engine core initialization failed", "Worker failed with error")
_LONGEST = 200  # characters of what a signature holds of an error
# Each rule sees the text as the one before it left it.
_RULES = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),  # colours of a terminal
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)(?:/[^\s'\":,;)\]]*)?"), "<temporary>"),
    (re.compile(r"(?<![\w./])/(?:[\w.+@-]+/)+(?=[\w.+@-])"), "<folder>/"),  # each machine has its own
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{12,64}\b(?<![a-z]{12})", re.IGNORECASE), "<id>"),
    (re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?=(?:[smuµn]?s|[KMGT]i?B|%)?\b|%)"), "#"),
    (re.compile(r"(?<=_)\d{4,}\b"), "#"),  # a process or address at the end of a name; not ``sm_121``
    (re.compile(r"\s+"), " "),
)
_VERDICTS: dict[Verdict, Literal["passed", "failed", "undecided"]] = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.INVALID: "undecided",
    Verdict.NOT_APPLICABLE: "undecided",
}
# From bad to good.
_ORDER = ("failed", "undecided", "passed")
# A server without speculation on a machine without a card: rules of a start that say nothing there.
_OF_CARDS = frozenset({"the drafter works", "KV cache and weights stay within the budget"})
# A small model repeats itself, patched or not; `parity` tells if it does so for another reason.
_OF_LARGE_MODELS = frozenset({"answers do not loop"})


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one check.

    Attributes:
        verdict: ``skipped`` where upstream's own CPU backend cannot do what is checked.
        detail: the reason, in words.
        signature: the failure without numbers, addresses and paths; empty if it did not fail.
    """

    name: str
    verdict: Literal["passed", "failed", "undecided", "skipped"]
    detail: str = ""
    signature: str = ""


def outcomes_of(
    findings: Sequence[Finding], names: Sequence[str], *, lenient: bool = True
) -> list[CheckOutcome]:
    """Return the outcome of each check of *names*: that of its worst finding.

    *lenient* leaves out findings that say nothing of a small model without a card.
    """
    return [
        _outcome(name, [finding for finding in findings if finding.check == name], lenient=lenient)
        for name in names
    ]


def _outcome(name: str, findings: Sequence[Finding], *, lenient: bool) -> CheckOutcome:
    applicable = [one for one in findings if one.verdict is not Verdict.NOT_APPLICABLE]
    # A check of which nothing is applicable has decided nothing.
    findings = applicable or findings
    counted = [
        one
        for one in findings
        if one.verdict is not Verdict.PASS
        and not (lenient and one.name in _OF_LARGE_MODELS)
        and not (lenient and one.name in _OF_CARDS and one.verdict is not Verdict.FAIL)
    ]
    if not findings:
        return CheckOutcome(name, "undecided", "it gave no finding")
    if not counted:
        return CheckOutcome(name, "passed", findings[0].cause)
    worst = min(counted, key=lambda finding: _ORDER.index(_VERDICTS[finding.verdict]))
    verdict = _VERDICTS[worst.verdict]
    signature = f"{name}: {worst.name}" if verdict == "failed" else ""
    if verdict == "failed" and (shown := _ERROR.search(worst.cause)):
        signature += f": {normalise(shown[0])[:_LONGEST]}"
    return CheckOutcome(name, verdict, worst.cause, signature)


def broken_server(error: ServerError, names: Sequence[str]) -> list[CheckOutcome]:
    """Return the outcomes where the server under test did not come up: of its start, and of nothing else."""
    line = error_line(error)
    kind = error.cause.name if isinstance(error, ServerFailedError) else "server"
    first = CheckOutcome(
        "boot", "failed", f"{error.what}: {line}", f"boot: {kind}: {normalise(line)[:_LONGEST]}"
    )
    others = [CheckOutcome(name, "undecided", "the server did not start") for name in names if name != "boot"]
    return [first, *others]


def error_line(error: ServerError) -> str:
    """Return the first line of the server's log that names an exception, or else the diagnosed cause."""
    line = error.because or error.what
    if isinstance(error, ServerFailedError):
        found = [match[0].strip() for match in _ERROR.finditer(error.log_excerpt)]
        original = [line for line in found if not any(part in line for part in _FOLLOW_UPS)]
        line = (original or found or [error.cause.because])[0]
    return " ".join(line.split())  # logs have carriage returns of progress bars in them


def normalise(text: str) -> str:
    """Return *text* without addresses, numbers, times, temporary paths and process ids, on one line.

    A number that is part of a name stays: ``sm_121a`` and ``fp8`` tell failures apart.
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()


@dataclass(frozen=True)
class CheckRequest:
    """Checks of a vLLM, which a recipe starts.

    Attributes:
        vllm: a wheel, or the interpreter of an environment.
        recipe: a recipe's name or file.
        against: interpreter of another vLLM, whose answers are compared; `None` for none.
        profile: how much is measured.
        levels: concurrencies of a sweep; the profile's if empty.
        offline: fetch nothing.
    """

    vllm: Path
    recipe: str
    checks: tuple[str, ...]
    against: Path | None = None
    profile: str = "full"
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
        judge: runs them so, and returns what they show, also of a server that does not come up.
        task: returns the task of judging elsewhere, by the name of the run's folder; its document is a
            `CheckResult`.
    """

    checks: tuple[str, ...]
    run: Callable[[CheckRequest, Path], tuple[Finding, ...]]
    judge: Callable[[CheckRequest, Path], CheckResult]
    task: Callable[[Store, CheckRequest, str], Task]
