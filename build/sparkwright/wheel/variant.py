"""A wheel's variant (PEP 825, a draft): the same wheel, and the property of cards that run its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkwright.base.digests import to_json
from sparkwright.base.errors import WheelError
from sparkwright.store import atomic_file, storing
from sparkwright.wheel.kernels import kernels_of
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.record import RecordEntry, entry_of, format_record, parse_record
from sparkwright.wheel.rewrite import Kept, Stored, layout, write_parts
from sparkwright.wheel.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

VARIANT = "variant.json"
# The format that uv 0.13 reads; PEP 825's own number is reserved for drafts, too.
_SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
_NAMESPACE, _FEATURE = "nvidia", "sm_arch"
# Clients know of no architecture with a suffix: code for sm_121a is offered to cards that run sm_121's.
_VALUES = {"12.1a": "121_real"}
LABELS = {"sm" + arch.replace(".", ""): value for arch, value in _VALUES.items()}
"""Value of the property by variant label."""
_PROVIDER = {
    "requires": ["nvidia-variant-provider"],
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
}


def label_of(wheel: Path) -> str:
    """Return the variant label of the wheel at that path, ``sm121a``; empty if there is no variant of it.

    There is one of a wheel with kernels compiled for compute capability 12.1.

    Raises:
        ArchiveError: it is damaged or an unsafe archive; see `open_archive`.
        WheelError: its record is malformed, or no JSON.
    """
    kernels = kernels_of(wheel)
    known = kernels is not None and kernels.arch in _VALUES
    return "sm" + kernels.arch.replace(".", "") if known and kernels else ""


def variant_filename(filename: str, label: str) -> str:
    """Return the file name of the variant *label* of the wheel *filename*."""
    return f"{filename.removesuffix('.whl')}-{label}.whl"


def variant_metadata(label: str) -> dict[str, Any]:
    """Return ``variant.json`` of the variant *label*; the index's file for a version has the same content.

    Raises:
        WheelError: there is no such variant.
    """
    if label not in LABELS:
        raise WheelError(f"there is no variant {label!r}", because=f"known: {', '.join(sorted(LABELS))}")
    return {
        "$schema": _SCHEMA,
        "default-priorities": {"namespace": [_NAMESPACE]},
        "providers": {_NAMESPACE: _PROVIDER},
        "variants": {label: {_NAMESPACE: {_FEATURE: [LABELS[label]]}}},
    }


def make_variant(wheel: Path, label: str, out: Path) -> Path:
    """Write the variant *label* of *wheel* into the folder *out*, and return its path.

    All members are copied, still compressed; ``variant.json`` is added, and RECORD lists it. The same wheel
    gives the same bytes.

    Raises:
        ArchiveError: *wheel* is damaged or an unsafe archive; see `open_archive`.
        WheelError: its RECORD is malformed, or there is no such variant.
        StorageError: the disk is full or cannot be written.
    """
    info = parse_name(wheel.name).dist_info + "/"
    target = out / variant_filename(wheel.name, label)
    added = Stored(info + VARIANT, to_json(variant_metadata(label)))
    with storing(f"writing {target}"), open_source(wheel) as source:
        record = info + "RECORD"
        listed = parse_record(source.archive.read(record))
        lines = [
            *(entry for name, entry in listed.items() if name != record),
            entry_of(added.name, added.content),
        ]
        kept = [
            Kept(source.archive, member, name)
            for name, member in source.archive.members.items()
            if name != record
        ]
        stored = [added, Stored(record, format_record([*lines, RecordEntry(record)]))]
        out.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as descriptor:
            write_parts(layout([*kept, *stored]), descriptor)
    return target
