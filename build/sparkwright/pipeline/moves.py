"""Move the lock to another release, ``[native]`` included; open `move_lock` first."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs

from sparkwright.base.config import parse_toml
from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import WheelError
from sparkwright.base.events import task
from sparkwright.lock import LOCK_FORMAT, Bumped, Lock
from sparkwright.lock.bump import Decision, rewrite
from sparkwright.lock.cmake import is_cmake_file
from sparkwright.lock.native import NativePin
from sparkwright.native.device_code import Tally
from sparkwright.upstream import Access, fetch_artifact, fetch_members, propose_lock
from sparkwright.upstream.archive import read_sdist


def move_lock(
    access: Access,
    text: str,
    version: str,
    *,
    copies: Mapping[str, Path] | None = None,
    series: str = "",
    machines: Sequence[str] = (),
) -> Bumped:
    """Return the lock *text* moved to the release *version*; nothing is written but the store.

    Args:
        access: where files come from and go to.
        text: the present lock.
        version: the release.
        copies: the user's folders with dependencies' sources, by the lock's names.
        series: the series of the result, if another than that of *text*.
        machines: the machines whose wheels are pinned; those of *text* by default.

    Raises:
        FetchError, NotInStoreError: a file of the release, or a package, could not be had.
        LockMismatchError: the release contradicts itself, or its torch states no CUDA.
        ConfigError: *text* is no lock, or a copy is of no source.
    """
    old = parse_toml(text.encode(), Lock, newest_format=LOCK_FORMAT, name="upstream.lock")
    new = propose_lock(access, old, version, machines)
    if series:
        new = structs.replace(new, series=series)
    if old.native is None:
        return rewrite(text, new)
    from sparkwright.native.bump import propose_native

    with task(f"[native] for {version}"):
        cmake, python = _read(access, new)
        native, decisions = propose_native(access, new, old.native, cmake, copies=copies)
    bumped = rewrite(text, structs.replace(new, native=native))
    dropped = _dropped(access, old, new, native, python)
    return replace(bumped, decisions=(*decisions, *dropped))


def _read(access: Access, lock: Lock) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the release's CMake files, and its Python files, by path."""
    cmake: dict[str, str] = {}
    python: dict[str, bytes] = {}
    for entry in read_sdist(fetch_artifact(access.store, lock.required_sdist(), access.settings)):
        if is_cmake_file(entry.path):
            cmake[entry.path] = entry.data.decode(errors="replace")
        elif entry.path.startswith("vllm/") and entry.path.endswith(".py"):
            python[entry.path] = entry.data
    return cmake, python


def _dropped(
    access: Access, old: Lock, new: Lock, native: NativePin, python: Mapping[str, bytes]
) -> Iterator[Decision]:
    """Yield what a person has to read before a binary is left out of the wheel."""
    before, after = _binaries(access, old), _binaries(access, new)
    for member, entry in native.drop.items():
        unread = [path for path in _naming(member, python) if path not in entry.named_by]
        if member not in after:
            yield Decision(
                f"native.drop.{member}",
                "the wheel has no such binary any more",
                f"grep -rn {_stem(member)} vllm",
            )
        elif unread:
            yield Decision(
                f"native.drop.{member}",
                f"{', '.join(unread)} names it and was not read; it stays in the wheel until then",
                f"grep -rnw {_stem(member)} vllm",
            )
    compiled = {spec.member for spec in native.extensions.values()}
    fresh = sorted(after - before - compiled - native.drop.keys())
    for member, tally in _tallies(access, new, native, fresh):
        if tally.useless:
            naming = ", ".join(_naming(member, python)) or "no Python file"
            yield Decision(
                f"native.drop.{member}",
                f"new, and none of its {tally.total} kernels runs on {native.arch}: it stays until an "
                f"entry says why the wheel works without it; {naming} names it",
                f"grep -rnw {_stem(member)} vllm",
            )


def _stem(member: str) -> str:
    return member.rpartition("/")[2].partition(".")[0]


def _naming(member: str, python: Mapping[str, bytes]) -> list[str]:
    name = re.compile(rf"(?<!\w){re.escape(_stem(member))}(?!\w)".encode())
    return sorted(path for path, data in python.items() if name.search(data))


def _tallies(
    access: Access, lock: Lock, native: NativePin, members: Sequence[str]
) -> Iterator[tuple[str, Tally]]:
    """Yield the kernels of each of upstream's binaries called *members*, counted for the lock's card."""
    from sparkwright.native.device_code import classify
    from sparkwright.native.inspection import inspector_of

    inspector = inspector_of(native, access)
    wheel = next(iter(lock.wheels.values()))
    if not members:
        return
    with (
        fetch_members(access.store, wheel, set(members).__contains__, access.settings) as path,
        access.store.scratch() as scratch,
        zipfile.ZipFile(path) as archive,
    ):
        for member in members:
            binary = scratch / "binary"
            binary.write_bytes(archive.read(member))
            found = inspector.inspect(sha256_file(binary), partial(Path, binary))
            yield member, classify(found.device, native.arch)


def _binaries(access: Access, lock: Lock) -> set[str]:
    """Return the shared objects of upstream's wheel, by its list of members alone."""
    wheel = next(iter(lock.wheels.values()))
    try:
        with (
            fetch_members(access.store, wheel, lambda _: False, access.settings) as path,
            zipfile.ZipFile(path) as archive,
        ):
            return {name for name in archive.namelist() if name.endswith(".so")}
    except zipfile.BadZipFile as error:
        raise WheelError(f"{wheel.filename} could not be read", because=str(error)) from error
