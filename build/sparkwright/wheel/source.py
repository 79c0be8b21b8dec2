"""Upstream's wheel, opened to copy members from or to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkwright.base.errors import WheelError
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.elf import ELF_MAGIC, is_elf
from sparkwright.wheel.names import WheelName, parse_name
from sparkwright.wheel.record import RecordEntry, parse_record

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class StockWheel:
    """An open wheel whose RECORD lists exactly its members; see `open_source`.

    Attributes:
        name: the parts of its file name.
        listed: its RECORD by path.
    """

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

    def binaries(self) -> tuple[str, ...]:
        """Return the members that are ELF files, sorted."""
        return self._binaries

    @cached_property
    def _binaries(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.archive.members if self.is_binary(name)))


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[StockWheel]:
    """Open the wheel at *path* for the length of the block.

    Raises:
        ArchiveError: it is damaged or an unsafe archive; see `open_archive`.
        WheelError: its name or its RECORD is malformed, or it is signed and so may not change.
    """
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
