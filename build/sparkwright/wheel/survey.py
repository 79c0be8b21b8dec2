"""Read every member of a wheel once, for all facts that the checks need."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ArchiveError
from sparkwright.base.members import MOST_PYTHON, MOST_TEXT, most_bytes
from sparkwright.base.text import human_size
from sparkwright.wheel.archive import Archive, WheelMember
from sparkwright.wheel.elf import HEADER_SIZE, is_elf
from sparkwright.wheel.record import entry_from_digest
from sparkwright.wheel.source import StockWheel

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
        size: of its content, in bytes.
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
    """Refuse *members* that are too large to be read; only their headers are looked at.

    Raises:
        ArchiveError: one is too large, or all together are.
    """
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
    archive: Archive,
    members: Iterable[str],
    folder: Path,
    upstream: StockWheel | None,
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
