"""``upstream.lock`` for another release or commit: new values in the old text, comments and order kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from sparkwright.base.config import parse_toml, to_builtins
from sparkwright.base.errors import LockMismatchError
from sparkwright.lock.check import agrees, check_native, flatten
from sparkwright.lock.model import LOCK_FORMAT, Artifact, Dependency, Lock, Release, series_of
from sparkwright.lock.statements import ReleaseEvidence, Statement, statements

_IN_ONE_LINE = 4


class LockChange(NamedTuple):
    """A value that differs: dotted key, old value and new one (`None`: absent)."""

    key: str
    old: str | None
    new: str | None


class Decision(NamedTuple):
    """A value of the lock that no program can settle.

    Attributes:
        why: what is open, and what holds until it is settled.
        command: shows the reason.
    """

    key: str
    why: str
    command: str


@dataclass(frozen=True)
class Bumped:
    """A lock moved to another release or commit.

    Attributes:
        notes: remarks for the user: sources that are new, values that could not be verified.
        decisions: what a person has to decide before kernels are compiled.
    """

    text: str
    lock: Lock
    changes: tuple[LockChange, ...]
    notes: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()


def successor(old: Lock, evidence: ReleaseEvidence, wheels: Mapping[str, Artifact]) -> Lock:
    """Return the lock of the release or commit that *evidence* is about, at the same git address as *old*."""
    stated = _settled(evidence)
    names = sorted({key.split(".")[1] for key in stated if key.startswith("sources.")})
    fields = ("repository", "ref", "declared-in", "override")
    known, abbreviated = (evidence.commit, evidence.tag_commit, old.release.commit), stated["release.commit"]
    return Lock(
        format=LOCK_FORMAT,
        series=old.series,
        release=Release(
            version=stated["release.version"],
            commit=next((one for one in known if one and one.startswith(abbreviated)), abbreviated),
            git=old.release.git,
            requires_python=stated["release.requires-python"],
            torch=stated["release.torch"],
            tree=evidence.tree_id,
        ),
        sdist=evidence.sdist,
        wheels=dict(wheels),
        sources={
            name: Dependency(**{f.replace("-", "_"): stated[f"sources.{name}.{f}"] for f in fields})
            for name in names
        },
        native=old.native,
        rehearsal=old.rehearsal,
    )


def _settled(evidence: ReleaseEvidence) -> dict[str, str]:
    """Return one value for each key; refuse files that disagree."""
    settled: dict[str, str] = {}
    faults: list[str] = []
    for statement in statements(evidence):
        key, value, witness = statement
        if value is None:
            faults.append(f"{key} is not stated by {witness}")
        elif key in settled and not agrees(Statement(key, value, witness), settled[key]):
            faults.append(f"{key} is {value} by {witness}, and {settled[key]} elsewhere")
        else:
            settled.setdefault(key, value)
    needed = {"release.version", "release.commit", "release.requires-python", "release.torch"}
    faults += [f"{key} is stated nowhere" for key in sorted(needed - settled.keys())]
    if faults:
        raise LockMismatchError(
            f"{evidence.name} gives no lock", because="; ".join(faults),
            next_step="read those files of the release: their format has changed",
        )  # fmt: skip
    return settled


def bump_command(lock: Lock, copies: Iterable[str] = ()) -> str:
    """Return the command that bumps *lock* to its own release, with a copy of each source in *copies*."""
    series = [f"--series {lock.series}"] if lock.series else []
    given = [f"--copy {name}=FOLDER" for name in copies]
    return " ".join(["sparkwright lock bump", lock.release.version, *series, *given])


def rewrite(text: str, new: Lock) -> Bumped:
    """Return the lock's *text* with the values of *new*: comments stay, new sources come last."""
    import tomlkit

    old = parse_toml(text.encode(), Lock, newest_format=LOCK_FORMAT, name="upstream.lock")
    document = tomlkit.parse(text)
    # A release states nothing about these tables: where *new* does not change them, not a byte moves.
    kept = {
        key: document[key]
        for key in ("native", "rehearsal")
        if key in document and getattr(old, key) == getattr(new, key)
    }
    native = {"native": stated_values(new.native)} if new.native is not None else {}
    _merge(document, {**to_builtins(new), **native, **kept})
    result = tomlkit.dumps(document)
    written = parse_toml(result.encode(), Lock, newest_format=LOCK_FORMAT, name="the new lock")
    if written != new:
        raise LockMismatchError("the lock could not be rewritten", because="its layout is unusual")
    return Bumped(result, new, _changes(old, new), _notes(old, new))


def stated_values(model: Any) -> Any:
    """Return *model* as a file writes it: without what has its default value."""
    if isinstance(model, msgspec.Struct):
        fields = msgspec.structs.fields(model)
        values = {field.encode_name: getattr(model, field.name) for field in fields}
        return {
            field.encode_name: stated_values(values[field.encode_name])
            for field in fields
            if field.required or (values[field.encode_name] or None) is not None
        }
    if isinstance(model, dict):
        return {key: stated_values(value) for key, value in model.items()}
    return [stated_values(value) for value in model] if isinstance(model, (list, tuple)) else model


def _merge(table: Any, values: Mapping[str, Any]) -> None:
    """Set *table* to exactly *values*, editing only the entries that differ."""
    import tomlkit

    for key in [key for key in table if key not in values]:
        table.remove(key)
    for key, value in values.items():
        if not isinstance(value, dict):
            if table.get(key) != value:
                line = isinstance(table, tomlkit.items.InlineTable)
                table[key] = _array(value, one_line=line) if isinstance(value, list) else value
            continue
        if key not in table:
            table.add(key, _inline(value) if _is_package(value) else tomlkit.table())
            if "ref" in value:
                table[key].add(tomlkit.comment("New with this release: not yet described."))
        _merge(table[key], value)
        if not value and table[key].is_super_table():  # without a table in it, it has no line of its own
            table.remove(key)
            table.add(key, tomlkit.table(is_super_table=False))


def _is_package(value: Mapping[str, Any]) -> bool:
    """Tell if *value* is written on one line, as files of the package index are."""
    return "filename" in value or (all(isinstance(count, int) for count in value.values()) and bool(value))


def _inline(value: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.inline_table()
    table.update({key: inner for key, inner in value.items() if not isinstance(inner, dict)})
    return table


def _array(values: list[Any], *, one_line: bool) -> Any:
    """Return *values* as an array of one line, or of one line for each where that would be long."""
    import tomlkit

    array = tomlkit.array()
    array.extend(values)
    return array.multiline(not one_line and len(values) > _IN_ONE_LINE)


def _changes(old: Lock, new: Lock) -> tuple[LockChange, ...]:
    before, after = flatten(old), flatten(new)
    keys = [*after, *(key for key in before if key not in after)]
    return tuple(
        LockChange(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    )


def _notes(old: Lock, new: Lock) -> tuple[str, ...]:
    fresh = sorted(new.sources.keys() - old.sources.keys())
    full = len(new.release.commit) == 40  # noqa: PLR2004 - a full SHA-1 object id
    return (
        *([] if full else ["release.commit is abbreviated: no git remote could be reached for the rest"]),
        *(f"sources.{name} is new: describe it in a comment of the lock" for name in fresh),
        *(
            f"wheels.{name} is known by its first download alone: no index states a digest for it"
            for name, wheel in new.wheels.items()
            if wheel.trust == "first-download"
        ),
        *(
            f"wheels.{name} is that of commit {wheel.commit}, which has the same native inputs"
            for name, wheel in new.wheels.items()
            if wheel.commit not in {None, new.release.commit}
        ),
        *(
            f"wheels.{name} was built from {wheel.built_from}, and the sdist from {new.release.commit[:9]}"
            for name, wheel in new.wheels.items()
            if wheel.built_from
        ),
        *_series_notes(new),
        *_native_notes(new),
        *_rehearsal_notes(new),
    )


def _series_notes(new: Lock) -> tuple[str, ...]:
    line = series_of(new.release.version)
    if new.series in {"", line}:
        return ()
    version = new.release.version
    make = f"sparkwright lock bump {version} --new-series {line}"
    note = (
        f"a wheel of {version} belongs to series {line}: serve, lock runtime and companion look for it there"
    )
    return (f"{note}, not in {new.series}; '{make}' makes the series",)


def _native_notes(new: Lock) -> tuple[str, ...]:
    """List the ``[native]`` values that do not fit the *new* release, or were measured on an older one."""
    if new.native is None or not (findings := check_native(new)):
        return ()
    if new.native.release == new.release.version:
        return tuple(str(finding) for finding in findings)
    measured = [name for name in ("binaries", "costs") if getattr(new.native, name)]
    return (
        f"[native] is unchanged, for {new.native.release}: nothing is compiled until it is regenerated",
        *(str(finding) for finding in findings if finding.key != "native.release"),
        *(f"native.{name} was measured on {new.native.release}" for name in measured),
    )


def _rehearsal_notes(new: Lock) -> tuple[str, ...]:
    if new.rehearsal is None or new.rehearsal.release == new.release.version:
        return ()
    older = new.rehearsal.release
    return (f"[rehearsal] is unchanged, for {older}: this release's wheels for the CPU are taken by name",)
