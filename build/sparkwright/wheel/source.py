"""Upstream's wheel, opened to copy members from or to compare with; RECORD; the beginning of ELF files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

from sparkwright.base.errors import WheelError
from sparkwright.base.wheel_members import name_fault
from sparkwright.lock.cmake import CMAKE_PATHS
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.names import VERSION_FILE, WheelName, parse_name

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class StockWheel:
    """An open wheel whose RECORD lists exactly its members; see `open_source`."""

    archive: Archive
    name: WheelName
    listed: Mapping[str, RecordEntry]

    @property
    def info(self) -> str:
        """Its metadata folder, with a slash at the end."""
        return self.name.dist_info + "/"

    def is_binary(self, member: str) -> bool:
        """Tell if *member* is an ELF file, by its content."""
        return is_elf(self.archive.beginning(member, len(ELF_MAGIC)))

    @cached_property
    def binaries(self) -> tuple[str, ...]:
        """The members that are ELF files, sorted."""
        return tuple(sorted(name for name in self.archive.members if self.is_binary(name)))


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[StockWheel]:
    """Open the wheel at *path* for the length of the block."""
    name = parse_name(path.name)
    with open_archive(path) as archive:
        listed = parse_record(archive.read(f"{name.dist_info}/RECORD"))
        if odd := sorted(set(listed) ^ set(archive.members)):
            raise WheelError(
                f"{path.name} is malformed",
                because=f"its members and its RECORD disagree about {', '.join(odd[:5])}",
            )
        if signed := [file for file in _SIGNATURES if f"{name.dist_info}/{file}" in listed]:
            raise WheelError(f"{path.name} cannot be changed", because=f"{signed[0]} signs its content")
        yield StockWheel(archive, name, listed)


# RECORD (PEP 376, PEP 427) ------------------------------------------------------------------------

_FIELDS = 3


@dataclass(frozen=True)
class RecordEntry:
    """One line of RECORD.

    Attributes:
        digest: ``sha256=`` and urlsafe base64 without padding; empty for RECORD itself.
        size: in bytes; `None` for RECORD itself.
    """

    path: str
    digest: str = ""
    size: int | None = None

    @property
    def sha256(self) -> str:
        """The digest as 64 hex digits."""
        algorithm, _, text = self.digest.partition("=")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if algorithm != "sha256" or len(raw) != hashlib.sha256().digest_size:
            raise WheelError(f"RECORD has no SHA-256 of {self.path}", because=f"it has {self.digest!r}")
        return raw.hex()


def entry_of(path: str, content: bytes) -> RecordEntry:
    """Return the line for a member called *path* with that *content*."""
    return entry_from_digest(path, hashlib.sha256(content).digest(), len(content))


def entry_from_digest(path: str, sha256: bytes, size: int) -> RecordEntry:
    """Return the line for a member of *size* bytes whose SHA-256 is the 32 bytes *sha256*."""
    text = base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()
    return RecordEntry(path, f"sha256={text}", size)


def parse_record(data: bytes) -> dict[str, RecordEntry]:
    """Return RECORD's lines by path, in their order."""
    entries: dict[str, RecordEntry] = {}
    try:
        for row in csv.reader(io.StringIO(data.decode(), newline="")):
            if not row:
                continue
            if len(row) != _FIELDS or not (row[2] == "" or row[2].isdecimal()):
                raise WheelError("RECORD is malformed", because=f"it has the line {','.join(row)!r}")
            path, digest, size = row
            if path in entries:
                raise WheelError("RECORD is malformed", because=f"it names {path} twice")
            entries[path] = RecordEntry(path, digest, int(size) if size else None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise WheelError("RECORD is malformed", because=str(error)) from error
    return entries


def format_record(entries: Iterable[RecordEntry]) -> bytes:
    """Return *entries* as RECORD's bytes: CSV, one line each, ended by a line feed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for entry in entries:
        writer.writerow([entry.path, entry.digest, "" if entry.size is None else entry.size])
    return text.getvalue().encode()


# ELF files (System V ABI, chapter 4) --------------------------------------------------------------

ELF_MAGIC = b"\x7fELF"
HEADER_SIZE = 20
_MACHINE = slice(18, 20)
_LITTLE, _BIG = 1, 2
_MACHINES = {62: "x86_64", 183: "aarch64"}


def is_elf(beginning: bytes) -> bool:
    """Tell if a file with this *beginning* is an ELF file."""
    return beginning.startswith(ELF_MAGIC)


def machine_of(beginning: bytes) -> str:
    """Return the machine that an ELF file is for, by its first 20 bytes.

    Returns:
        ``aarch64``, ``x86_64``, ``unknown (N)`` for another ``e_machine``, or ``damaged``.
    """
    if len(beginning) < HEADER_SIZE or beginning[5] not in {_LITTLE, _BIG}:
        return "damaged"
    number = int.from_bytes(beginning[_MACHINE], "little" if beginning[5] == _LITTLE else "big")
    return _MACHINES.get(number, f"unknown ({number})")


# Changes of the merge, as changes of members ------------------------------------------------------

# The rules for paths are upstream's build: ``setup.py`` reads ``requirements/cuda.txt`` and what that
# includes for the wheel's metadata, loads ``tools/build_rust.py`` for its Rust parts, and
# hands the rest to CMake.


@dataclass(frozen=True)
class WheelDelta:
    """Changes of members by path; see `delta`."""

    replaced: Mapping[str, bytes]
    added: Mapping[str, bytes]
    removed: frozenset[str]


def delta(upstream: StockWheel, changes: Mapping[str, bytes | None]) -> WheelDelta:
    """Return *changes* as changes of the members of *upstream*'s wheel.

    A path whose new content equals the member's changes nothing.
    """
    if metadata := of_kind(changes, "metadata"):
        raise WheelError(
            "the wheel's metadata would be wrong",
            because=f"it is taken from upstream's wheel, and the merge changed {', '.join(metadata)}",
            next_step="leave out the carries that change these files",
        )
    members = upstream.archive.members
    replaced: dict[str, bytes] = {}
    added: dict[str, bytes] = {}
    removed: set[str] = set()
    for path in of_kind(changes, "shipped"):
        content = changes[path]
        if path == VERSION_FILE or (path in members and upstream.is_binary(path)):
            raise WheelError(f"{path} cannot be changed", because="upstream's build makes it; git has none")
        if content is None:
            removed.update({path} & set(members))
        elif path not in members:
            added[path] = content
        elif entry_of(path, content).digest != upstream.listed[path].digest:
            replaced[path] = content
    _check_added(upstream, tuple(added))
    return WheelDelta(replaced, added, frozenset(removed))


def _check_added(upstream: StockWheel, added: tuple[str, ...]) -> None:
    """Refuse new files that upstream's ``package_data`` does not seem to include."""
    if unsafe := [fault for name in added if (fault := name_fault(name))]:
        raise WheelError("new files cannot be shipped", because=unsafe[0])
    others = [name for name in added if not name.endswith(".py")]
    folders = {name.rpartition("/")[0] + "/" for name in others}
    shipped = {_data_pattern(name) for name in upstream.archive.members if name.startswith(tuple(folders))}
    if unsure := [name for name in others if _data_pattern(name) not in shipped]:
        raise WheelError(
            "new files cannot be shipped",
            because=f"upstream's wheel holds nothing of their kind beside {', '.join(unsure)}",
            next_step="put them beside files of their kind, or write them as Python",
        )


def _data_pattern(name: str) -> tuple[str, str]:
    """Return the folder and the suffix of *name*, which ``package_data`` patterns match."""
    path = PurePosixPath(name)
    return str(path.parent), path.suffix


# Kinds of paths -----------------------------------------------------------------------------------

Kind = Literal["native", "metadata", "shipped", "not-shipped"]
"""The part of the wheel that a path decides: compiled code, METADATA, other files, or nothing."""

# The first pattern that matches the whole path decides.
_TABLE: tuple[tuple[str, Kind], ...] = (
    *((pattern, "native") for pattern in CMAKE_PATHS),
    (r"setup\.py", "native"),
    (r"rust/.*", "native"),
    (r"build_rust\.sh", "native"),
    (r"tools/build_rust\.py", "native"),
    (r"rust-toolchain(\.toml)?", "native"),
    (r"requirements/build/.*", "native"),
    # Nothing in setup.py reads these: they equip upstream's own testing and linting.
    (r"requirements/(test|lint|docs)(/.*|\.(in|txt))", "not-shipped"),
    (r"requirements/.*", "metadata"),
    (r"pyproject\.toml", "metadata"),
    (r"setup\.cfg", "metadata"),
    (r"MANIFEST\.in", "metadata"),
    (r"LICENSE", "metadata"),
    (r"vllm/.*", "shipped"),
    (r".*", "not-shipped"),
)
_COMPILED = tuple((re.compile(pattern), kind) for pattern, kind in _TABLE)


def classify(path: str) -> Kind:
    """Return the kind of *path*, relative to the repository's root."""
    return next(kind for pattern, kind in _COMPILED if pattern.fullmatch(path))


def of_kind(paths: Iterable[str], kind: Kind) -> tuple[str, ...]:
    """Return those of *paths* that are of that *kind*, sorted."""
    return tuple(sorted(path for path in paths if classify(path) == kind))


# The sources of a binary's code, among the native inputs. The first pattern that matches the member
# decides. Besides these, every binary depends on the build files: CMake's files, setup.py, requirements.
_SOURCES: tuple[tuple[str, str], ...] = (
    (
        r"vllm/(vllm-rs|_rust_tool_parser\..*)",
        r"rust/.*|build_rust\.sh|tools/build_rust\.py|rust-toolchain.*",
    ),
    # Whole dependencies with separate sources.
    (r"vllm/(vllm_flash_attn|third_party/deep_gemm)/.*|vllm/_flashmla_.*", r"(?!)"),
    (r"vllm/_qutlass_C\..*", r"csrc/qutlass.*"),
    (r".*", r"csrc/.*"),
)


def compiled_from(member: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths*, native inputs, whose code goes into the binary *member*; sorted.

    Build files such as ``CMakeLists.txt`` never count: a binary that was built in another way still does
    the same.
    """
    sources = next(sources for pattern, sources in _SOURCES if re.fullmatch(pattern, member))
    return tuple(sorted(path for path in paths if re.fullmatch(sources, path)))
