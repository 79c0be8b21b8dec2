"""The findings of preflight, and the refusal of a start by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sparkwright.base.errors import PreflightError

Level = Literal["refuse", "warn", "note"]
_ORDER: tuple[Level, ...] = ("refuse", "warn", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, before a server is started.

    Attributes:
        check: short name of the check.
        level: ``refuse`` stops the start, ``warn`` costs speed or reliability, ``note`` informs.
        because: the facts that it rests on.
        liftable: true where the finding is a prediction or a judgement, which ``--force`` overrules.
    """

    check: str
    level: Level
    what: str
    because: str = ""
    next_step: str = ""
    liftable: bool = False


def sorted_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *found* by level, the worst first, and otherwise in the order of the checks."""
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.level)))


def refusals(found: Iterable[Finding], *, force: bool = False) -> tuple[Finding, ...]:
    """Return the findings that stop a start; with *force*, those that cannot be overruled."""
    return tuple(one for one in found if one.level == "refuse" and not (force and one.liftable))


def require_clear(found: Iterable[Finding], *, force: bool = False) -> None:
    """Do nothing if nothing in *found* stops a start.

    Raises:
        PreflightError: something does; its message has every refusal with its remedy.
    """
    stopping = refusals(found, force=force)
    if not stopping:
        return
    lift = ["--force starts all the same"] if all(one.liftable for one in stopping) else []
    raise PreflightError(
        "the server would not start, or not survive" if len(stopping) > 1 else stopping[0].what,
        because="\n".join(
            f"{one.what}: {one.because} [{one.check}]"
            if len(stopping) > 1
            else f"{one.because} [{one.check}]"
            for one in stopping
        ),
        next_step="\n".join([*dict.fromkeys(one.next_step for one in stopping if one.next_step), *lift]),
    )
