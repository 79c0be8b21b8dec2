"""Writing ``carries/<name>/``, with tomlkit so that people's comments and order stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.carry import Carry, load_carry, parse_patch
from sparkwright.carry.model import CARRY_FORMAT
from sparkwright.errors import ConfigError
from sparkwright.store import remove_tree, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.authoring.pull import ResolvedPull
    from sparkwright.lock import Lock

__all__ = ["Draft", "add_revision", "create_own", "create_pull", "repin"]


@dataclass(frozen=True)
class Draft:
    """What a new carry says of itself; what nobody knows yet is said to be unknown."""

    name: str
    title: str
    why: str
    symptom: str = "Not described yet."
    dies_when: str = "Not decided yet."
    runner: str = "both"
    requires: tuple[str, ...] = ()


def create_own(root: Path, draft: Draft, lock: Lock, patch: bytes) -> Carry:
    """Write a new carry of our own with one revision, against the pin.

    Raises:
        ConfigError: a carry of that name exists, or the draft is not valid.
        PatchError: the patch is not one that we take.
    """
    parse_patch(patch, name=draft.name)
    release = lock.release.version
    revision = {"release": release, "sdist-sha256": lock.sdist.sha256, "patch": f"{release}.patch"}
    tables = {**_common(draft, "own"), "revision": [revision]}
    return _create(root, draft.name, tables, {revision["patch"]: patch})


def create_pull(root: Path, draft: Draft, pull: ResolvedPull) -> Carry:
    """Write a new carry that is a pull request, pinned by head and base.

    Raises:
        ConfigError: a carry of that name exists, or the draft is not valid.
    """
    upstream = {
        "pull": pull.pin.number,
        "author": pull.author,
        "state": "open",
        "relation": "this carry is that pull request",
    }
    pinned = {
        "repository": pull.pin.repository,
        "number": pull.pin.number,
        "head": pull.pin.head,
        "base": pull.pin.base,
    }
    tables = {**_common(draft, "pull"), "upstream": [upstream], "pull": pinned}
    return _create(root, draft.name, tables, {})


def _common(draft: Draft, kind: str) -> dict[str, Any]:
    return {
        "format": CARRY_FORMAT,
        "name": draft.name,
        "title": draft.title,
        "kind": kind,
        "scope": "runtime",
        "runner": draft.runner,
        "requires": list(draft.requires),
        "why": f"{draft.why.strip()}\n",
        "symptom": f"{draft.symptom.strip()}\n",
        "dies-when": f"{draft.dies_when.strip()}\n",
        "evidence": {"level": "claimed", "demonstrated": [], "claimed": ["Nothing was reproduced here yet."]},
    }


def _create(root: Path, name: str, tables: dict[str, Any], files: dict[str, bytes]) -> Carry:
    import tomlkit

    folder = root / name
    if folder.exists():
        raise ConfigError(
            f"carry {name!r} cannot be made",
            because=f"{folder} exists",
            next_step=f"choose another name, or 'sparkwright carry refresh {name}'",
        )
    folder.mkdir(parents=True)
    try:
        for file, data in files.items():
            (folder / file).write_bytes(data)
        document = tomlkit.document()
        for key, value in tables.items():
            multiline = isinstance(value, str) and value.endswith("\n")
            document[key] = tomlkit.string(value, multiline=True) if multiline else value
        (folder / "carry.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
        return load_carry(folder)
    except BaseException:
        remove_tree(folder)
        raise


def add_revision(carry: Carry, lock: Lock, patch: bytes) -> Carry:
    """Record *patch* as the carry's revision against the pin, replacing one for the same release."""
    import tomlkit

    parse_patch(patch, name=carry.name)
    release = lock.release.version
    path = carry.folder / "carry.toml"
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    name = f"{release}.patch"
    entry = {"release": release, "sdist-sha256": lock.sdist.sha256, "patch": name}
    revisions: Any = document["revision"]
    for existing in revisions:
        if existing["release"] == release:
            existing.update(entry)
            break
    else:
        table = tomlkit.table()
        table.update(entry)
        revisions.append(table)
    write_atomically(carry.folder / name, patch)
    write_atomically(path, tomlkit.dumps(document).encode())
    return load_carry(carry.folder)


def repin(carry: Carry, pull: ResolvedPull) -> Carry:
    """Pin the pull request of *carry* at what it is now."""
    import tomlkit

    path = carry.folder / "carry.toml"
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    table: Any = document["pull"]
    table["head"], table["base"] = pull.pin.head, pull.pin.base
    write_atomically(path, tomlkit.dumps(document).encode())
    return load_carry(carry.folder)
