"""The steps that copy the wheel into the user's folder and index it there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.lock.runtime import LockedRuntime
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require


@dataclass(frozen=True)
class Place:
    """The wheel in the user's folder."""

    name: ClassVar[str] = "place"

    def key(self, job: Job, state: BuildState) -> str | None:
        return None if state.wheel is None else digest_of([state.wheel.sha256, str(job.out)])

    def find(self, job: Job, state: BuildState) -> bool:
        if state.wheel is None:
            return False
        target = job.out / state.wheel.filename
        if not target.is_file() or target.stat().st_size != state.wheel.size:
            return False
        if _known_digest(job, target) is None:
            _note_digest(job, target, sha256_file(target))
        if _known_digest(job, target) != state.wheel.sha256:
            return False
        state.placed = target
        return True

    def make(self, job: Job, state: BuildState) -> None:
        wheel = require(state.wheel)
        state.placed = job.store.copy_out(wheel.sha256, job.out / wheel.filename)
        _note_digest(job, state.placed, wheel.sha256)


@dataclass(frozen=True)
class Publish:
    """The index over every wheel in the user's folder."""

    name: ClassVar[str] = "index"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.placed is None:
            return None
        runtimes = {name: locked.digest for name, locked in _runtimes(job).items()}
        return digest_of([*_listing(job.out), runtimes] if runtimes else _listing(job.out))

    def find(self, job: Job, state: BuildState) -> bool:
        record = job.store.find_record("index", self.key(job, state) or "")
        state.published = record is not None and record.get("pages") == _pages(job.out)
        return state.published

    def make(self, job: Job, state: BuildState) -> None:
        from sparkwright.publish import publish

        out = job.out
        listed = None
        # A run for another platform may place its wheel while this one writes pages without it.
        while listed != (listed := _listing(out)):
            index = publish(out, digests=_known_digests(job), runtimes=_runtimes(job))
            for file in index.files:
                _note_digest(job, out / file.filename, file.sha256)
        job.store.put_record("index", self.key(job, state) or "", {"folder": str(out), "pages": _pages(out)})
        state.published = True


def _runtimes(job: Job) -> dict[str, LockedRuntime]:
    """Return the locked runtimes of the checkout, by file name."""
    from sparkwright.publish.index import runtimes_in

    return runtimes_in(job.checkout.patchsets)


def _known_digests(job: Job) -> dict[str, str]:
    """Return the digests of wheels in the user's folder that were hashed before and not modified since."""
    from sparkwright.publish import wheels_in

    found = {wheel.name: _known_digest(job, wheel) for wheel in wheels_in(job.out)}
    return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


def _known_digest(job: Job, path: Path) -> str | None:
    """Return the digest of the file at *path*, if it was computed and the file was not modified since."""
    record = job.store.find_record("digest", _state_key(path)) or {}
    sha256 = record.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def _note_digest(job: Job, path: Path, sha256: str) -> None:
    job.store.put_record("digest", _state_key(path), {"sha256": sha256})


def _state_key(path: Path) -> str:
    """Return a key for the file at *path* that changes whenever the file is modified.

    It covers the time of the last change of state: unlike the time of modification, it cannot be set back.
    """
    state = path.stat()
    times = [state.st_mtime_ns, state.st_ctime_ns]
    return digest_of([str(path), state.st_dev, state.st_ino, state.st_size, *times])


def _pages(folder: Path) -> str:
    """Return the digest of the index's pages and metadata in *folder*."""
    pages = [*folder.glob("simple/**/*"), *folder.glob("*.whl.metadata")]
    return digest_of(sorted([str(path), sha256_file(path)] for path in pages if path.is_file()))


def _listing(folder: Path) -> list[list[str | int]]:
    from sparkwright.publish import wheels_in

    states = [(wheel, wheel.stat()) for wheel in wheels_in(folder)]
    return [[str(wheel), state.st_size, state.st_mtime_ns] for wheel, state in states]
