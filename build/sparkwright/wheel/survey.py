"""Read every member of a wheel once, for all facts that the checks need, and its Python files with ruff."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ArchiveError
from sparkwright.base.process.run import run
from sparkwright.base.text import human_size
from sparkwright.base.wheel_members import MOST_PYTHON, MOST_TEXT, most_bytes
from sparkwright.wheel.archive import Archive, WheelMember
from sparkwright.wheel.source import HEADER_SIZE, StockWheel, entry_from_digest, is_elf

_MARKER = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)
_SEPARATOR = re.compile(rb"^={7}\r?$", re.MULTILINE)
_THREADS = 2  # more would only wait for the interpreter lock: most members are small
# Upstream's Python files have 30 MB together and its whole wheel 0.6 GB.
_MOST_PYTHON_IN_ALL = 256 << 20
_MOST_IN_ALL = 8 << 30


@dataclass(frozen=True)
class Facts:
    """The content of a member, as far as checks need it.

    Attributes:
        sha256: digest of its content, 64 hex digits; empty when it is damaged.
        beginning: its first 20 bytes.
        conflict: whether it holds a conflict as git writes it into a file.
        damage: the reason that it could not be read, or the empty string.
    """

    sha256: str
    size: int
    beginning: bytes
    conflict: bool
    damage: str = ""

    @property
    def binary(self) -> bool:
        """Tell if it is an ELF file."""
        return is_elf(self.beginning)


def check_sizes(archive: Archive, members: Iterable[str]) -> None:
    """Refuse *members* that are too large to be read; only their headers are looked at."""
    sizes = {name: archive.members[name].size for name in members}
    python = {name: size for name, size in sizes.items() if name.endswith(".py")}
    large = [name for name, size in python.items() if size > MOST_PYTHON]
    large += [
        name
        for name, size in sizes.items()
        if size > MOST_TEXT and not is_elf(archive.beginning(name, HEADER_SIZE))
    ]
    faults = [
        f"{name} has {human_size(sizes[name])}, and at most {human_size(most_bytes(name))} are read"
        for name in large
    ]
    faults += [
        f"{what} have {human_size(size)} together, and at most {human_size(most)} are read"
        for what, size, most in (
            ("its Python files", sum(python.values()), _MOST_PYTHON_IN_ALL),
            ("its members", sum(sizes.values()), _MOST_IN_ALL),
        )
        if size > most
    ]
    if faults:
        raise ArchiveError(f"{archive.path.name} is not read", because=faults[0])


def survey(
    archive: Archive, members: Iterable[str], folder: Path, upstream: StockWheel | None
) -> tuple[dict[str, Facts], dict[str, str]]:
    """Read *members* of *archive* and write the Python files that upstream has not into *folder*, numbered.

    Numbers instead of names, because no name can then lead outside the folder, or into one that ruff
    skips by its name.

    Args:
        archive: the wheel.
        members: the members to read; see `check_sizes`.
        folder: an empty folder.
        upstream: a wheel of known digest. A binary whose compressed bytes are those of its
            namesake there is that binary: it takes its digest from the RECORD there and need
            not be inflated, which would take most of the time. `None` to read and write all.

    Returns:
        The facts by member, and the member's name by the name of its file in *folder*.
    """
    # The largest first, or the last binary would leave the other thread idle.
    wanted = (archive.members[name] for name in members)
    ordered = sorted(wanted, key=lambda member: (-member.size, member.name))
    numbers = {
        member.name: f"{number:06}.py" for number, member in enumerate(ordered) if member.name.endswith(".py")
    }

    theirs = {one.digest for one in upstream.listed.values()} if upstream else ()

    def look(name: str) -> tuple[str, Facts]:
        if upstream is not None and _same_binary(archive, upstream, name):
            beginning = archive.beginning(name, HEADER_SIZE)
            sha256, size = upstream.listed[name].sha256, archive.members[name].size
            return name, Facts(sha256, size, beginning, conflict=False)
        return name, _look(archive, name, folder / numbers[name] if name in numbers else None, theirs)

    with ThreadPoolExecutor(_THREADS, "survey") as pool:
        facts = dict(pool.map(look, [member.name for member in ordered]))
    return facts, {number: name for name, number in numbers.items()}


def _same_binary(archive: Archive, upstream: StockWheel, name: str) -> bool:
    """Tell if *name* is a large binary with the same compressed bytes as in *upstream*."""
    ours, theirs = archive.members[name], upstream.archive.members.get(name)
    if theirs is None or ours.size < CHUNK or not upstream.is_binary(name):
        return False
    if _summary(ours) != _summary(theirs):
        return False
    pieces = zip(archive.compressed(ours), upstream.archive.compressed(theirs), strict=True)
    return all(mine == other for mine, other in pieces)


def _summary(member: WheelMember) -> tuple[int, int, int, int]:
    return member.method, member.crc, member.compressed_size, member.size


def _look(archive: Archive, name: str, copy: Path | None, theirs: Container[str]) -> Facts:
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
    if copy is not None and entry_from_digest(name, digest.digest(), size).digest not in theirs:
        copy.write_bytes(content)
    return Facts(digest.hexdigest(), size, beginning, conflict=_holds_conflict(content))


def _holds_conflict(content: bytes) -> bool:
    """Tell if *content* has a conflict marker and a separator, each on its own line."""
    near = b"<<<<<<< " in content or b">>>>>>> " in content
    return near and bool(_MARKER.search(content) and _SEPARATOR.search(content))


# Syntax -------------------------------------------------------------------------------------------

_MINORS = range(7, 15)
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)  # a stack that overflowed
# Errors of CPython's compiler beyond its grammar: late __future__ imports, too many starred
# targets, and break, continue, yield, return, bare except, nonlocal and global out of place.
_RULES = "E9,F404,F622,F701,F702,F704,F706,F707,PLE0117,PLE0118"


def floor_of(requires_python: str) -> str:
    """Return the oldest Python 3 that the PEP 440 specifier *requires_python* allows, such as ``3.10``."""
    allowed = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in _MINORS if allowed.contains(f"3.{minor}.99")), f"3.{_MINORS[-1]}")


def syntax_errors(folder: Path, floor: str) -> Sequence[tuple[str, str]]:
    """Return the syntax errors that the Python *floor* finds in the files in *folder*.

    Returns:
        The file's name, and the line with the reason, for each error.
    """
    return _errors(folder, sorted(path.name for path in folder.iterdir()), floor)


def _errors(folder: Path, files: Sequence[str], floor: str) -> Sequence[tuple[str, str]]:
    """Return the errors among *files*; a file that crashes ruff, as deep nesting does, is one too."""
    from ruff.__main__ import find_ruff_bin

    if not files:
        return []
    # One thread, so that ruff never reads several files that take gigabytes at once.
    done = run(
        [find_ruff_bin(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", _RULES,
         "--target-version", "py" + floor.replace(".", ""), "--output-format", "json", *files],
        cwd=folder, env={**os.environ, "RAYON_NUM_THREADS": "1"}, accept=(0, 1, *_CRASHES),
    )  # fmt: skip
    if done.status in _CRASHES:
        if len(files) == 1:
            return [(files[0], "no line: it cannot be parsed, its nesting is too deep")]
        half = len(files) // 2
        return [*_errors(folder, files[:half], floor), *_errors(folder, files[half:], floor)]
    found: list[Mapping[str, object]] = json.loads(done.stdout)
    return [(os.path.basename(str(one["filename"])), _reason(one)) for one in found]  # noqa: PTH119


def _reason(error: Mapping[str, object]) -> str:
    location = error.get("location")
    line = location.get("row") if isinstance(location, dict) else "?"
    return f"line {line}: {error.get('message')}"
