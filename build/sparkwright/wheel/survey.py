"""One pass over a wheel that learns from each member all that the checks ask for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from sparkwright.base import process
from sparkwright.base.config import Model
from sparkwright.base.digests import CHUNK, digest_of
from sparkwright.base.errors import ArchiveError
from sparkwright.wheel.archive import MOST_TEXT
from sparkwright.wheel.elf import HEADER_SIZE, is_elf

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.store import Store
    from sparkwright.wheel.archive import Archive, WheelMember
    from sparkwright.wheel.source import StockWheel

_MARKER = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)
_SEPARATOR = re.compile(rb"^={7}\r?$", re.MULTILINE)
_THREADS = 2  # more of them only wait for the interpreter lock: most members are small
# Upstream's largest Python file has 0.3 MB, all of them have 30 MB and its whole wheel 0.6 GB. Ruff takes up
# to 2.4 GB for each MiB of Python that is made to be hard to read.
_MOST_PYTHON = 1 << 20
_MOST_PYTHON_IN_ALL = 256 << 20
_MOST_IN_ALL = 8 << 30
_MINORS = range(7, 15)
# What CPython's compiler refuses beyond its grammar: late __future__ imports, too many starred
# targets, and break, continue, yield, return, bare except, nonlocal and global out of place.
_KIND = "compiles"
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)  # a stack that overflowed
_RULES = "E9,F404,F622,F701,F702,F704,F706,F707,PLE0117,PLE0118"


@dataclass(frozen=True)
class Facts:
    """What a member holds.

    Attributes:
        sha256: digest of its content, 64 hex digits; empty when it is damaged.
        size: of its content, in bytes.
        beginning: its first 20 bytes.
        conflict: whether it holds a conflict as git writes it into a file.
        damage: why it could not be read, or the empty string.
    """

    sha256: str
    size: int
    beginning: bytes
    conflict: bool
    damage: str = ""

    @property
    def binary(self) -> bool:
        """Whether it is an ELF file."""
        return is_elf(self.beginning)


def check_sizes(archive: Archive, members: Iterable[str]) -> None:
    """Refuse *members* that are too large to be read; only their headers are looked at.

    Raises:
        ArchiveError: one is too large, or all together are.
    """
    sizes = {name: archive.members[name].size for name in members}
    python = {name: size for name, size in sizes.items() if name.endswith(".py")}
    large = [name for name, size in python.items() if size > _MOST_PYTHON]
    large += [
        name
        for name, size in sizes.items()
        if size > MOST_TEXT and not is_elf(archive.beginning(name, HEADER_SIZE))
    ]
    faults = [f"{name} has {sizes[name]} bytes" for name in large]
    faults += [
        f"{what} have {size} bytes together"
        for what, size, most in (
            ("its Python files", sum(python.values()), _MOST_PYTHON_IN_ALL),
            ("its members", sum(sizes.values()), _MOST_IN_ALL),
        )
        if size > most
    ]
    if faults:
        raise ArchiveError(f"{archive.path.name} is not read", because=f"{faults[0]}, more than wheels have")


def survey(
    archive: Archive,
    members: Iterable[str],
    folder: Path,
    upstream: StockWheel | None,
    compiling: Container[str] = (),
) -> tuple[dict[str, Facts], dict[str, str]]:
    """Read *members* of *archive* and write the Python files among them into *folder*, numbered.

    Numbers instead of names, because no name can then lead outside, or into a folder that a
    tool leaves out by its name.

    Args:
        archive: the wheel.
        members: what to read; see `check_sizes`.
        folder: an empty folder.
        upstream: a wheel of known digest. A binary whose compressed bytes are those of its
            namesake there is that binary: it takes its digest from the RECORD there and need
            not be inflated, which would take most of the time. `None` to read all.
        compiling: SHA-256 of files that are known to compile, and are not written.

    Returns:
        The facts by member, and the member's name by the name of its file in *folder*.
    """
    # The largest first, or the last binary would leave the other thread idle.
    wanted = (archive.members[name] for name in members)
    ordered = sorted(wanted, key=lambda member: (-member.size, member.name))
    numbers = {
        member.name: f"{number:06}.py" for number, member in enumerate(ordered) if member.name.endswith(".py")
    }

    def look(name: str) -> tuple[str, Facts]:
        if upstream is not None and _same_binary(archive, upstream, name):
            beginning = archive.beginning(name, HEADER_SIZE)
            sha256, size = upstream.listed[name].sha256, archive.members[name].size
            return name, Facts(sha256, size, beginning, conflict=False)
        return name, _look(archive, name, folder / numbers[name] if name in numbers else None, compiling)

    with ThreadPoolExecutor(_THREADS, "survey") as pool:
        facts = dict(pool.map(look, [member.name for member in ordered]))
    return facts, {number: name for name, number in numbers.items()}


def _same_binary(archive: Archive, upstream: StockWheel, name: str) -> bool:
    """Whether *name* is a large binary with the compressed bytes that *upstream* has for it."""
    ours, theirs = archive.members[name], upstream.archive.members.get(name)
    if theirs is None or ours.size < CHUNK or not upstream.is_binary(name):
        return False
    if _summary(ours) != _summary(theirs):
        return False
    pieces = zip(archive.compressed(ours), upstream.archive.compressed(theirs), strict=True)
    return all(mine == other for mine, other in pieces)


def _summary(member: WheelMember) -> tuple[int, int, int, int]:
    return member.method, member.crc, member.compressed_size, member.size


def _look(archive: Archive, name: str, copy: Path | None, compiling: Container[str]) -> Facts:
    digest = hashlib.sha256()
    size = 0
    beginning = b""
    text: list[bytes] = []
    try:
        for piece in archive.chunks(name):
            digest.update(piece)
            size += len(piece)
            beginning = beginning if len(beginning) >= HEADER_SIZE else (beginning + piece)[:HEADER_SIZE]
            if not is_elf(beginning):
                text.append(piece)
    except ArchiveError as error:
        return Facts("", size, beginning, conflict=False, damage=error.because)
    content = b"".join(text)
    if copy is not None and digest.hexdigest() not in compiling:
        copy.write_bytes(content)
    return Facts(digest.hexdigest(), size, beginning, conflict=_holds_conflict(content))


def _holds_conflict(content: bytes) -> bool:
    """Whether *content* has a marker and a separator on lines of their own, as no heading in a text has."""
    near = b"<<<<<<< " in content or b">>>>>>> " in content
    return near and bool(_MARKER.search(content) and _SEPARATOR.search(content))


def floor_of(requires_python: str) -> str:
    """The oldest Python 3 that the PEP 440 specifier *requires_python* allows, such as ``3.10``."""
    allowed = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in _MINORS if allowed.contains(f"3.{minor}.99")), f"3.{_MINORS[-1]}")


class _Compiling(Model, frozen=True):
    """SHA-256 of files in which no syntax error was found."""

    files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Syntax:
    """What an old Python could not compile; what it could is remembered by content.

    Attributes:
        floor: the Python, such as ``3.10``.
        store: where that is kept; `None` looks at every file every time.
    """

    floor: str
    store: Store | None = None

    @cached_property
    def known(self) -> frozenset[str]:
        """SHA-256 of the files of the latest wheel that compile."""
        found = self.store and self.store.find_record_as(_Compiling, _KIND, self._key)
        return found.files if found else frozenset()

    def remember(self, files: Iterable[str]) -> None:
        """Take in that the files with these SHA-256 compile, in place of what was known."""
        kept = frozenset(files)
        if self.store is not None and kept != self.known:
            self.store.put_record(_KIND, self._key, {"files": sorted(kept)})

    @property
    def _key(self) -> str:
        return digest_of([_RULES, version("ruff"), self.floor])

    def errors(self, folder: Path) -> Sequence[tuple[str, str]]:
        """The errors among the files in *folder*.

        Returns:
            The file's name, and the line with the reason, for each error.

        Raises:
            ProcessError: ruff itself failed.
        """
        return self._errors(folder, sorted(path.name for path in folder.iterdir()))

    def _errors(self, folder: Path, files: Sequence[str]) -> Sequence[tuple[str, str]]:
        """The errors among *files*; one that ends ruff by a signal, as deep nesting does, is one as well."""
        from ruff.__main__ import find_ruff_bin

        if not files:
            return []
        # With one thread, or several files that take gigabytes could be read at once.
        done = process.run(
            [find_ruff_bin(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", _RULES,
             "--target-version", "py" + self.floor.replace(".", ""), "--output-format", "json", *files],
            cwd=folder, env={**os.environ, "RAYON_NUM_THREADS": "1"}, accept=(0, 1, *_CRASHES),
        )  # fmt: skip
        if done.status in _CRASHES:
            if len(files) == 1:
                return [(files[0], "no line: it cannot be parsed, its nesting is too deep")]
            half = len(files) // 2
            return [*self._errors(folder, files[:half]), *self._errors(folder, files[half:])]
        found: list[Mapping[str, object]] = json.loads(done.stdout)
        return [(os.path.basename(str(one["filename"])), _reason(one)) for one in found]  # noqa: PTH119


def _reason(error: Mapping[str, object]) -> str:
    location = error.get("location")
    line = location.get("row") if isinstance(location, dict) else "?"
    return f"line {line}: {error.get('message')}"
