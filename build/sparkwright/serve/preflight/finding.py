"""Findings, whose levels and texts are rows of ``findings.toml``, and the refusal of a start by them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from sparkwright.base.config import Model, convert, parse_toml
from sparkwright.base.errors import PreflightError
from sparkwright.base.events import warn

Level = Literal["refuse", "warn", "note"]
LEVELS: tuple[Level, ...] = ("refuse", "warn", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, before a start; in the table facts stand in braces.

    Attributes:
        level: ``refuse`` stops the start, ``warn`` costs speed or reliability, ``note`` informs.
        liftable: true where the finding is a prediction or a judgement, which ``--force`` overrules.
    """

    check: str
    level: Level
    what: str
    because: str = ""
    next_step: str = ""
    liftable: bool = False


class _Table(Model, frozen=True):
    format: Literal[1]
    findings: dict[str, dict[str, Any]]


@functools.cache
def finding_rows() -> Mapping[str, Finding]:
    """Return every row by its name; what a NAME/CASE does not state is that of NAME."""
    data = (resources.files("sparkwright.serve.preflight") / "findings.toml").read_bytes()
    rows = parse_toml(data, _Table, newest_format=1, name="findings.toml").findings
    return {
        name: convert({"check": (check := name.partition("/")[0]), **rows[check], **row}, Finding)
        for name, row in rows.items()
    }


def finding(row: str, /, **facts: Any) -> Finding:
    """Return the finding of the table's *row* with these *facts*."""
    found = finding_rows()[row]
    texts = {name: getattr(found, name).format_map(facts) for name in ("what", "because", "next_step")}
    return replace(found, **texts)


def refusals(found: Iterable[Finding], *, force: bool = False) -> tuple[Finding, ...]:
    """Return the findings that stop a start; with *force*, those that cannot be overruled."""
    return tuple(one for one in found if one.level == "refuse" and not (force and one.liftable))


def refusal(found: Iterable[Finding], *, force: bool = False) -> PreflightError | None:
    """Return the error that has every refusal in *found* with its remedy; `None` without one."""
    stopping = refusals(found, force=force)
    if not stopping:
        return None
    several = len(stopping) > 1
    lift = ["--force starts all the same"] if all(one.liftable for one in stopping) else []
    return PreflightError(
        "the server would not start, or not survive" if several else stopping[0].what,
        because="\n".join(
            f"{f'{one.what}: ' if several else ''}{one.because} [{one.check}]" for one in stopping
        ),
        next_step="\n".join([*dict.fromkeys(one.next_step for one in stopping if one.next_step), *lift]),
    )


def require_clear(found: Iterable[Finding], *, force: bool = False) -> None:
    """Do nothing if nothing in *found* stops a start.

    Raises:
        PreflightError: something does; see `refusal`.
    """
    if error := refusal(found, force=force):
        raise error


def warn_or_refuse(found: Collection[Finding], *, force: bool = False) -> None:
    """Warn of what in *found* does not stop a start, but for notes; see `require_clear` for what does.

    Raises:
        PreflightError: something stops it.
    """
    for one in found:
        if one.level == "warn" or (one.level == "refuse" and force and one.liftable):
            warn(f"{one.what}: {one.because}", check=one.check, next_step=one.next_step)
    require_clear(found, force=force)
