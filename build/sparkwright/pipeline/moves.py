"""Move the lock to another release, ``[native]`` included, and fill in what was measured.

Open `move_lock` first; `learn` takes binaries and costs from what was compiled: ELF files, and records in the
store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs

from sparkwright.base.config import parse_toml
from sparkwright.base.errors import LockMismatchError
from sparkwright.base.events import task
from sparkwright.lock.bump import Bumped, Decision, bump_command, rewrite
from sparkwright.lock.cmake import is_cmake_file
from sparkwright.lock.model import LOCK_FORMAT, Binary, Lock, NativePin
from sparkwright.native.device_code import DeviceCode
from sparkwright.native.inspection import Inspection
from sparkwright.pipeline.build import make, merge
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import builder_of, inputs_of, prepare, take_extensions
from sparkwright.pipeline.state import BuildState, find_only, require
from sparkwright.upstream.archive import read_sdist
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.evidence import propose_lock
from sparkwright.upstream.releases import Access


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

    *copies* are the user's folders with sources of dependencies, by the lock's names; *series* and *machines*
    are those of *text* by default.

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
    return replace(bumped, decisions=(*decisions, *unread(native, python)))


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


def unread(native: NativePin, python: Mapping[str, bytes]) -> Iterator[Decision]:
    """Yield what a person has to read of *python*, by path, before a binary is left out of the wheel."""
    for member, entry in native.drop.items():
        stem = member.rpartition("/")[2].partition(".")[0]
        name = re.compile(rf"(?<!\w){re.escape(stem)}(?!\w)".encode())
        naming = sorted(path for path, data in python.items() if name.search(data))
        if new := [path for path in naming if path not in entry.named_by]:
            yield Decision(
                f"native.drop.{member}",
                f"{', '.join(new)} names it and was not read; it stays in the wheel until then",
                f"grep -rnw {stem} vllm",
            )


# What was measured --------------------------------------------------------------------------------

_SHOWN_FROM_S = 5
"""Costs of quicker units are left out: their order hardly matters."""


def learn(job: Job) -> tuple[NativePin, tuple[Decision, ...]]:
    """Return the job's ``[native]`` tables with what was measured, and what a person has to explain.

    Nothing is compiled. Where upstream's wheel provided an extension, see `with_measured`.
    """
    from sparkwright.native.inspection import inspector_of

    native = require(job.native)
    if job.spec.arch != native.arch:
        raise LockMismatchError(
            "the lock's tables are for another card",
            because=f"they are for {native.arch}, not {job.spec.arch}",
            next_step="leave out --arch",
        )
    state = _compiled(job)
    inspector = inspector_of(native, job.access)
    binaries: dict[str, Binary] = {}
    decisions: list[Decision] = []
    for name, one in state.extensions.items():
        member = native.extensions[name].member
        found = inspector.inspect(one.sha256, partial(job.store.require_intact, one.sha256))
        why = native.binaries.get(member, Binary()).why
        binaries[member], open_end = described(member, found, why, job.target.sm)
        decisions += open_end
    learned = with_measured(native, state.extensions, binaries, _costs(job, state, native.costs))
    if learned.measured:
        left = ", ".join(name for name in native.extensions if name not in state.extensions)
        why = f"stays {learned.measured} until these are compiled too: {left}"
        decisions.append(Decision("native.measured", why, bump_command(job.spec.lock, native.unreached)))
    return learned, tuple(decisions)


def with_measured(
    native: NativePin,
    compiled: Collection[str],
    binaries: Mapping[str, Binary],
    costs: Mapping[str, tuple[float, int]],
) -> NativePin:
    """Return *native* with what was measured of the extensions *compiled*.

    While upstream's wheel provides others, their entries, the costs of earlier builds and the release that
    all these are of stay as they are: an entry holds the reason for code of another card, which no build
    measures.
    """
    others = [spec.member for name, spec in native.extensions.items() if name not in compiled]
    if not others:
        return structs.replace(native, binaries=dict(binaries), costs=dict(costs), measured="")
    kept = {member: native.binaries[member] for member in others if member in native.binaries}
    return structs.replace(native, binaries={**binaries, **kept}, costs={**native.costs, **costs})


def described(member: str, found: Inspection, why: str, sm: str) -> tuple[Binary, list[Decision]]:
    """Return the table's entry for *member*, and the request to explain code for another card than *sm*."""
    device: DeviceCode = found.device
    others = sorted({*device.cubins, *device.ptx} - {sm})
    entry = Binary(cubins=dict(device.cubins), ptx=dict(device.ptx), why=why if others else "")
    if not others or why:
        return entry, []
    example = next((group.examples[0] for group in device.kernels if {*group.arches} & {*others}), "")
    return entry, [
        Decision(
            f"native.binaries.{member}.why",
            f"it holds code for {', '.join(others)}, such as {example or 'a kernel without a name'}: the "
            "audit fails until the entry says why",
            "sparkwright wheel --plan --kernels native --json",
        )
    ]


def _compiled(job: Job) -> BuildState:
    """Return the results up to the extensions, all from the store but for the merge."""
    state = merge(job, make)
    state.toolchain = make(prepare(job))
    take_extensions(job, state, find_only)
    known = {*state.extensions, *state.stock_extensions}
    if missing := [name for name in require(job.native).extensions if name not in known]:
        raise LockMismatchError(
            "there is nothing to learn from yet",
            because=f"{', '.join(missing)} was not compiled for this lock",
            next_step="sparkwright wheel --kernels native compiles it",
        )
    return state


def _costs(job: Job, state: BuildState, old: Mapping[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    """Return seconds and MiB of the units that took longest, first ones first.

    A unit that another machine compiled keeps the lock's.
    """
    from sparkwright.native.build import configured
    from sparkwright.native.schedule import UnitCosts

    if not state.extensions:
        return dict(old)
    costs = UnitCosts(job.store, job.target, old)
    units = configured(builder_of(job), inputs_of(job, state)).configuration.units
    known: dict[str, tuple[float, int]] = {}
    for name in sorted({unit.name for unit in units}):
        if (cost := costs.learned(name)) is not None:
            known[name] = (round(cost.seconds), cost.mib)
        elif name in old:
            known[name] = old[name]
    longest = sorted(known.items(), key=lambda item: (-item[1][0], item[0]))
    return {name: cost for name, cost in longest if cost[0] > _SHOWN_FROM_S}
