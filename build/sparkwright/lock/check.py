"""Compare ``upstream.lock`` with the files of the release: nothing in it is taken on trust."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import LockMismatchError
from sparkwright.lock.model import Lock
from sparkwright.lock.statements import ReleaseEvidence, Statement, statements


class LockFinding(NamedTuple):
    """One disagreement between the lock and the release.

    Attributes:
        locked: the lock's value; `None` if it has none.
        released: the release's value; `None` if it states none.
        witness: the file that states it, or should.
        because: the reason, where there is no other value to show.
    """

    key: str
    locked: str | None
    released: str | None
    witness: str
    because: str = ""

    def __str__(self) -> str:
        locked = "the lock has no value" if self.locked is None else f"the lock has {self.locked}"
        if self.because:
            return f"{self.key}: {locked}, but {self.because}"
        released = "no value is stated" if self.released is None else f"{self.released} is stated"
        return f"{self.key}: {locked}, but {released} by {self.witness}"


def check(lock: Lock, evidence: ReleaseEvidence) -> list[LockFinding]:
    """Return every disagreement, in the order of the lock's keys; empty when the lock is right.

    A key that nothing in *evidence* states is a disagreement too: it was not verified.
    """
    locked = flatten(lock)
    findings: list[LockFinding] = []
    stated: set[str] = set()
    for statement in statements(evidence):
        stated.add(statement.key)
        value = locked.get(statement.key)
        if value is None or not agrees(statement, value):
            findings.append(LockFinding(statement.key, value, statement.value, statement.witness))
    findings += [
        LockFinding(key, value, None, f"{evidence.name} or the wheels that were read")
        for key, value in locked.items()
        if key not in stated
    ]
    order = {key: number for number, key in enumerate(locked)}
    return sorted(findings, key=lambda finding: order.get(finding.key, len(order)))


class Unconfirmed(NamedTuple):
    """A value of the lock of which only the beginning was verified.

    Attributes:
        key: dotted key in the lock.
        stated: the part of it that the release states.
        rest: the remaining digits in the lock, which may be wrong.
    """

    key: str
    stated: str
    rest: str


def unconfirmed(lock: Lock, evidence: ReleaseEvidence) -> list[Unconfirmed]:
    """Return the digits of the commit that nothing in *evidence* states: a release abbreviates its own."""
    key, commit = "release.commit", lock.release.commit
    values = [item.value for item in statements(evidence) if item.key == key and item.value]
    known = max((len(value) for value in values if commit.startswith(value)), default=0)
    return [Unconfirmed(key, commit[:known], commit[known:])] if commit[known:] else []


def disagreement(findings: Sequence[LockFinding]) -> LockMismatchError:
    """Return the error that lists *findings*."""
    return LockMismatchError(
        "the lock and the release disagree",
        because="; ".join(str(finding) for finding in findings),
        next_step="sparkwright lock bump VERSION writes the values of the release",
    )


def flatten(lock: Lock) -> dict[str, str]:
    """Return the lock's values by dotted key, without those that no release states anything about.

    These are ``format``, ``series``, ``[rehearsal]`` and ``[native]``, for which see `check_native`.
    """
    unstated = {"format", "series", "native", "rehearsal"}
    return dict(_walk("", {key: value for key, value in to_builtins(lock).items() if key not in unstated}))


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, str(value)


def agrees(statement: Statement, locked: str) -> bool:
    """Tell if *statement* and the lock's value *locked* mean the same."""
    value = statement.value
    if value is None:
        return False
    same = _COMPARISONS.get(statement.key)
    return same(locked, value) if same else locked == value


def _same_commit(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)  # either may be abbreviated


def _same_address(one: str, other: str) -> bool:
    return _plain_address(one) == _plain_address(other)


def _plain_address(address: str) -> str:
    return address.rstrip("/").removesuffix(".git").lower()


def same_version(one: str, other: str) -> bool:
    """Tell if two versions are equal by PEP 440, as 13.0.3 and 13.0.3.0 are."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _same_specifiers(one: str, other: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(one) == SpecifierSet(other)
    except InvalidSpecifier:
        return False


# Keys whose values may be equal although their text differs.
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "release.commit": _same_commit,
    "release.git": _same_address,
    "release.requires-python": _same_specifiers,
    "release.version": same_version,
}
