"""Variants of wheels in an index: files in ``variants/`` that only clients which know of variants take."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote

from sparkwright.base.digests import sha256_bytes, sha256_file, to_json
from sparkwright.publish.pages import PublishedFile
from sparkwright.wheel.variant import LABELS, label_of, make_variant, variant_filename, variant_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOLDER = "variants"
_UP = "../../"


def make_variants(wheels: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Write those variants of *wheels* that are missing into ``variants/`` of *folder*, and return them.

    Raises:
        ArchiveError, WheelError, StorageError: see `make_variant`.
    """
    labels = {wheel: label_of(wheel) for wheel in wheels}
    return tuple(
        make_variant(wheel, label, folder / FOLDER)
        for wheel, label in labels.items()
        if label and not (folder / FOLDER / variant_filename(wheel.name, label)).is_file()
    )


def listed_variants(
    files: Sequence[tuple[PublishedFile, bytes]], folder: Path
) -> tuple[list[PublishedFile], dict[str, bytes]]:
    """Return the entries of the variants in *folder* of its wheels, and the files that they need.

    Args:
        files: the listed wheels, each with its METADATA.
        folder: folder of the wheels.

    Returns:
        Entries for the pages; METADATA of each variant and the variants of each version, as bytes by path in
        *folder*.
    """
    entries: list[PublishedFile] = []
    needed: dict[str, bytes] = {}
    for (file, metadata), label in product(files, LABELS):
        path = folder / FOLDER / variant_filename(file.filename, label)
        if not path.is_file():
            continue
        needed[f"{FOLDER}/{path.name}.metadata"] = metadata
        entries.append(
            replace(
                file,
                filename=path.name,
                sha256=sha256_file(path),
                size=path.stat().st_size,
                url=_address(path.name),
            )
        )
        name = "-".join(file.filename.split("-")[:2]) + "-variants.json"
        data = to_json(variant_metadata(label)) + b"\n"
        if f"{FOLDER}/{name}" not in needed:  # wheels for several platforms share it
            needed[f"{FOLDER}/{name}"] = data
            entries.append(
                PublishedFile(
                    file.project, file.version, name, sha256_bytes(data), len(data), "", "", _address(name)
                )
            )
    return entries, needed


def _address(name: str) -> str:
    return f"{_UP}{FOLDER}/{quote(name, safe='')}"
