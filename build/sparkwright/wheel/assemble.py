"""Assemble the wheel: upstream's wheel, the merged tree's changed files, the version stamp.

Start reading at `assemble`. Upstream's wheel already is the pristine tree plus its build, so
every member that the merge did not touch is copied, above all the binaries.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.base.errors import DigestError, NativeInputsError, WheelError
from sparkwright.base.events import emit
from sparkwright.lock.model import Lock
from sparkwright.store.disk import atomic_file, storing
from sparkwright.wheel.names import (
    VERSION_FILE,
    WheelName,
    parse_name,
    stamp_metadata,
    stamp_version_file,
    stamp_wheel,
)
from sparkwright.wheel.recorded import PROVIDERS, RECORD_FOLDER, SBOM, RecordedBinary, WheelRecord
from sparkwright.wheel.rewrite import Kept, Packed, Stored, holds, layout, write_parts
from sparkwright.wheel.source import (
    RecordEntry,
    StockWheel,
    WheelDelta,
    compiled_from,
    delta,
    entry_from_digest,
    entry_of,
    format_record,
    of_kind,
    open_source,
)

UPSTREAM = "upstream-wheel"


@dataclass(frozen=True)
class BinarySource:
    """A binary that does not come from upstream's wheel.

    Attributes:
        provider: the kind of its origin: ``compiled``.
        origin: identifies it among that kind, such as its native key.
        deflated: its content as a raw deflate stream, made by `deflate`, which the wheel takes unchanged;
            without one the content is stored uncompressed.
    """

    path: Path
    provider: str
    origin: str
    deflated: Path | None = None


@dataclass(frozen=True)
class AssemblyPlan:
    """The inputs that decide the bytes of the wheel.

    Attributes:
        upstream_wheel: upstream's wheel for the same release; its file name gives the tags.
        changes: every path that the merge changed, relative to the repository's root, with
            its new content, or `None` where the merge deleted it.
        record: files to put under ``sparkwright/`` in the metadata folder, by name, as JSON values.
        providers: binaries from elsewhere than upstream's wheel, by member name.
        upstream_binaries: the reason to use a binary of upstream's wheel although native inputs
            changed, by member name; only changes of build files can be excused so.
        left_out: the reason to leave out a binary of upstream's wheel, by member name.
        platform: platform tag of the wheel, such as ``manylinux_2_34_aarch64``; upstream's if empty.
        lock: the pin, which the wheel's bill of materials names parts of; without one there is no such bill.
    """

    upstream_wheel: Path
    upstream_sha256: str
    version: str
    changes: Mapping[str, bytes | None]
    record: Mapping[str, Any] = field(default_factory=dict)
    providers: Mapping[str, BinarySource] = field(default_factory=dict)
    upstream_binaries: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    lock: Lock | None = None

    @property
    def name(self) -> WheelName:
        """The name of the new wheel."""
        name = parse_name(self.upstream_wheel.name).with_version(self.version)
        return name.with_platform(self.platform) if self.platform else name


@dataclass(frozen=True)
class BuiltWheel:
    """A finished wheel."""

    path: Path
    sha256: str
    size: int


def assemble(plan: AssemblyPlan, out: Path) -> BuiltWheel:
    """Write the wheel that *plan* describes into the folder *out*, named after its version.

    The same plan gives the same bytes on every machine. The file appears complete or not at
    all; one of the same name is replaced.
    """
    started = time.monotonic()
    filename = plan.name.filename
    with (
        ThreadPoolExecutor(1, "verify") as verifier,
        storing(f"writing {filename}"),
        open_source(plan.upstream_wheel) as upstream,
    ):
        digest = verifier.submit(sha256_file, plan.upstream_wheel)
        providers = _providers(upstream, plan)
        changed = delta(upstream, plan.changes)
        parts = layout(_entries(upstream, plan, changed, providers))
        with atomic_file(out / filename) as descriptor:
            sha256 = write_parts(parts, descriptor)
            size = os.fstat(descriptor).st_size
            _verify(plan, digest.result())
    emit("wheel.assembled", filename=filename, sha256=sha256, size=size,
         seconds=round(time.monotonic() - started, 3))  # fmt: skip
    return BuiltWheel(out / filename, sha256, size)


def _verify(plan: AssemblyPlan, actual: str) -> None:
    if actual != plan.upstream_sha256:
        raise DigestError(
            f"{plan.upstream_wheel.name} is not the wheel that the lock names",
            because=f"its SHA-256 is {actual}, not {plan.upstream_sha256}",
            next_step="remove it and run again, so that it is fetched again",
        )


def _providers(upstream: StockWheel, plan: AssemblyPlan) -> tuple[RecordedBinary, ...]:
    """Return the origin of each binary; refuse upstream's where the merge changed their sources."""
    binaries = upstream.binaries
    for named in (plan.providers, plan.upstream_binaries, plan.left_out):
        if unknown := sorted(set(named) - set(binaries)):
            raise WheelError(
                "a binary is not in upstream's wheel",
                because=f"upstream's wheel has no binary {', '.join(unknown)}",
            )
    if both := sorted(set(plan.left_out) & (set(plan.providers) | set(plan.upstream_binaries))):
        raise WheelError("a binary cannot be left out", because=f"{both[0]} is provided as well")
    kept = set(binaries) - set(plan.left_out)
    _check_native_inputs(plan, kept - set(plan.providers))
    found = []
    for member in sorted(kept):
        if source := plan.providers.get(member):
            sha256, size = sha256_file(source.path), source.path.stat().st_size
            provider, origin = source.provider, source.origin
        else:
            sha256, size = upstream.listed[member].sha256, upstream.archive.members[member].size
            provider, origin = UPSTREAM, upstream.archive.path.name
        found.append(
            RecordedBinary(member=member, sha256=sha256, size=size, provider=provider, origin=origin)
        )
    return tuple(found)


def _check_native_inputs(plan: AssemblyPlan, theirs: Iterable[str]) -> None:
    """Refuse upstream's binaries *theirs* where they may not be used; see `native_faults`."""
    excuses = {member: plan.upstream_binaries.get(member, "") for member in theirs}
    if faults := native_faults(of_kind(plan.changes, "native"), excuses):
        raise NativeInputsError(
            "upstream's binaries may not be used",
            because="; ".join(faults),
            next_step="leave out the carries that change these files, or compile the binaries",
        )


def native_faults(native: Sequence[str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the reasons that upstream's binaries may not be used with the changed native inputs.

    *theirs* are upstream's binaries with the excuse for the use of each, usually empty.
    """
    if not native:
        return ()
    stale = {member: compiled_from(member, native) for member in sorted(theirs)}
    faults = [
        f"the merge changed {', '.join(paths)}, and upstream compiled {member} without that"
        for member, paths in stale.items()
        if paths
    ]
    unexcused = [member for member, because in sorted(theirs.items()) if not because and not stale[member]]
    if unexcused:
        faults.append(
            f"the merge changed {', '.join(native)}, and upstream built {', '.join(unexcused)} without that"
        )
    return tuple(faults)


def _entries(
    upstream: StockWheel, plan: AssemblyPlan, changed: WheelDelta, providers: Sequence[RecordedBinary]
) -> list[Kept | Packed | Stored]:
    """Return all members of the new wheel: upstream's in their order, added ones, metadata, RECORD last."""
    new_info = plan.name.dist_info + "/"
    contents = {**changed.replaced, **_stamped(upstream, plan.name)}
    body: list[Kept | Packed | Stored] = []
    info: list[Kept | Packed | Stored] = []
    for old, member in upstream.archive.members.items():
        if old in changed.removed or old in plan.left_out or old == upstream.info + "RECORD":
            continue
        if old in plan.providers:
            body.append(_provided(old, plan.providers[old], executable=member.executable))
            continue
        is_info = old.startswith(upstream.info)
        new = new_info + old.removeprefix(upstream.info) if is_info else old
        content = contents.get(old)
        (info if is_info else body).append(
            Kept(upstream.archive, member, new)
            if content is None
            else Stored(new, content, member.executable)
        )
    body += [Stored(path, content) for path, content in sorted(changed.added.items())]
    info += [Stored(new_info + path, content) for path, content in _record_files(plan, providers)]
    entries = body + info
    lines = [_line(entry, upstream.listed, providers) for entry in entries]
    record = format_record([*lines, RecordEntry(new_info + "RECORD")])
    return [*entries, Stored(new_info + "RECORD", record)]


def _provided(member: str, source: BinarySource, *, executable: bool) -> Packed | Stored:
    """Return the entry for a binary that does not come from upstream's wheel."""
    content = source.path.read_bytes()
    if source.deflated is None:
        return Stored(member, content, executable)
    deflated = source.deflated.read_bytes()
    if not holds(deflated, content):
        raise WheelError(f"{member} cannot be packed", because="its deflated data is not its content")
    return Packed(member, deflated, zlib.crc32(content), len(content), executable)


def _line(
    entry: Kept | Packed | Stored, listed: Mapping[str, RecordEntry], providers: Sequence[RecordedBinary]
) -> RecordEntry:
    """Return the line of RECORD for *entry*: kept and packed members have known digests."""
    if isinstance(entry, Stored):
        return entry_of(entry.name, entry.content)
    if isinstance(entry, Packed):
        sha256 = next(one.sha256 for one in providers if one.member == entry.name)
        return entry_from_digest(entry.name, bytes.fromhex(sha256), entry.size)
    return replace(listed[entry.member.name], path=entry.name)


def _stamped(upstream: StockWheel, name: WheelName) -> dict[str, bytes]:
    """Return the three stamped files, by their old names, for a wheel called *name*."""
    archive, version = upstream.archive, name.version
    metadata, wheel = upstream.info + "METADATA", upstream.info + "WHEEL"
    return {
        metadata: stamp_metadata(archive.read(metadata), version),
        wheel: stamp_wheel(archive.read(wheel), name.tags),
        VERSION_FILE: stamp_version_file(archive.read(VERSION_FILE), version),
    }


def _record_files(plan: AssemblyPlan, providers: Sequence[RecordedBinary]) -> list[tuple[str, bytes]]:
    """Return the files that are added to the metadata folder, by their names in it."""
    if PROVIDERS in plan.record:
        raise WheelError(f"{PROVIDERS} cannot be given", because="the assembler writes it")
    files = {**plan.record, PROVIDERS: to_builtins(providers)}
    added = [(f"{RECORD_FOLDER}/{name}", to_json(value)) for name, value in sorted(files.items())]
    if plan.lock is None:
        return added
    from sparkwright.wheel.sbom import sbom

    return [(SBOM, sbom(WheelRecord.of(files), plan.lock)), *added]
