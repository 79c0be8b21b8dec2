"""Binaries and costs for the lock, from what was compiled for it: ELF files, and records in the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from msgspec import structs

from sparkwright.base.errors import LockMismatchError
from sparkwright.lock.bump import Decision, bump_command
from sparkwright.lock.native import Binary, NativePin
from sparkwright.native.device_code import DeviceCode
from sparkwright.native.inspection import Inspection
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import CompileExtension, builder_of, inputs_of
from sparkwright.pipeline.proofs import Prove
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.steps import steps_for

_SHOWN_FROM_S = 5
"""Costs of quicker units are left out: their order hardly matters."""


def learn(job: Job) -> tuple[NativePin, tuple[Decision, ...]]:
    """Return the job's ``[native]`` tables with what was measured, and what a person has to explain.

    Nothing is compiled. Where upstream's wheel provided an extension, see `with_measured`.

    Raises:
        LockMismatchError: an extension that could be compiled was not, or not for the lock's architecture.
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
    state, missing = BuildState(), []
    for step in steps_for(job):
        if isinstance(step, Prove):
            continue
        if isinstance(step, CompileExtension):
            if step.key(job, state) is None or not step.find(job, state):
                missing.append(step.extension)
        elif missing or state.extensions or state.stock_extensions:
            break
        elif not step.find(job, state):
            step.make(job, state)
    if missing:
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
    from sparkwright.native.costs import UnitCosts

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
