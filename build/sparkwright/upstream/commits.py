"""Upstream's commits: their wheels, by the digest of the first download, and what they state."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec.structs import replace
from packaging.version import Version

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import FetchError, NotInStoreError, WheelError
from sparkwright.base.events import emit
from sparkwright.git.repository import Repository
from sparkwright.lock.model import Artifact
from sparkwright.lock.statements import ReleaseEvidence, WheelEvidence, stated_commit, stated_versions
from sparkwright.upstream.download import fetch_artifact, transfer
from sparkwright.upstream.evidence import read_wheel, tree_texts
from sparkwright.upstream.index import NIGHTLY, VARIANT, CommitWheel, as_file, find_wheel, list_wheels
from sparkwright.upstream.network import IndexSettings, shown
from sparkwright.upstream.releases import Access

_WHEEL = "commit-wheel"
_NIGHTLY = "nightly-commit"


def first_download(access: Access, commit: str, machine: str) -> Artifact:
    """Return upstream's wheel of *commit* for *machine*, by the digest that it had when it first came.

    That digest is recorded in the store at once, and is what counts from then on, offline too: other bytes
    under the same commit are refused by `fetch_artifact`.
    """
    if (known := known_wheel(access, commit, machine)) is not None:
        return known
    if access.settings.offline:
        raise NotInStoreError(
            f"upstream's wheel of commit {commit[:12]} for {machine} is not in the store",
            because="the network is off", next_step="run once without --offline",
        )  # fmt: skip
    what = f"the wheel of commit {commit[:12]} for {machine}"
    with access.store.lock(f"{_WHEEL}-{commit}-{machine}", what):
        if (known := known_wheel(access, commit, machine)) is not None:
            return known
        wheel = find_wheel(commit, machine, access.settings)
        if wheel is None:
            raise FetchError(
                f"{what} was not found",
                because=f"{shown(access.settings.upstream_wheels)} does not list it",
                next_step="upstream publishes wheels some commits late: wait, or take an older commit",
            )
        artifact = _take(access, wheel)
        access.store.put_record(_WHEEL, _key(commit, machine), to_builtins(artifact))
    emit("wheel.first-download", filename=artifact.filename, sha256=artifact.sha256, commit=commit)
    return artifact


def known_wheel(access: Access, commit: str, machine: str) -> Artifact | None:
    """Return the same, if the store has the record of its first download; nothing is fetched."""
    return access.store.find_record_as(Artifact, _WHEEL, _key(commit, machine))


def _key(commit: str, machine: str) -> str:
    return digest_of([commit, VARIANT, machine])


def _take(access: Access, wheel: CommitWheel) -> Artifact:
    """Bring *wheel* into the store, under the digest that it turns out to have.

    An interrupted transfer is not resumed by a later run: without a digest to expect, bytes of two files
    could be joined.
    """
    with access.store.scratch() as scratch:
        path = scratch / wheel.filename
        transfer(as_file(wheel), path, access.settings)
        artifact = Artifact(
            filename=wheel.filename,
            sha256=sha256_file(path),
            size=path.stat().st_size,
            commit=wheel.commit,
            trust="first-download",
        )
        _require_fitting(read_wheel(path, artifact))
        access.store.adopt_file(path, artifact.sha256, verified=True)
    return artifact


def _require_fitting(wheel: WheelEvidence) -> None:
    """Do nothing if *wheel* states the version of its file name, and its commit."""
    artifact, versions = wheel.file, stated_versions(wheel.metadata, wheel.version_file)
    if set(versions) != {artifact.filename.split("-")[1]}:
        raise WheelError(
            f"{artifact.filename} was refused", because=f"it states the versions {', '.join(versions)}"
        )
    stated = stated_commit(wheel.version_file)
    if stated is None or not (artifact.commit or "").startswith(stated):
        raise WheelError(
            f"{artifact.filename} was refused",
            because=f"it says that it is of commit {stated}, not {artifact.commit}",
        )


def has_wheels(access: Access, commit: str, machines: Collection[str]) -> bool:
    """Tell if the store or the index has wheels of *commit* for all *machines*."""
    missing = {machine for machine in machines if known_wheel(access, commit, machine) is None}
    if not missing or access.settings.offline:
        return not missing
    return missing <= {wheel.machine for wheel in list_wheels(commit, access.settings)}


def nightly_commit(access: Access) -> str:
    """Return the newest commit of upstream's main branch that has a wheel; offline, the last that was seen.

    Raises:
        NotInStoreError: the network is off, and none was ever seen.
        FetchError: the index did not answer, lists none, or something that does not fit.
    """
    if access.settings.offline:
        record = access.store.find_record(_NIGHTLY, _nightly_key(access.settings)) or {}
        if isinstance(commit := record.get("commit"), str):
            return commit
        raise NotInStoreError(
            "upstream's newest commit with a wheel is not known", because="the network is off",
            next_step="run once without --offline, or name a commit",
        )  # fmt: skip
    wheels = list_wheels(NIGHTLY, access.settings)
    if not wheels:
        raise FetchError(
            "upstream's newest commit with a wheel is not known",
            because=f"{shown(access.settings.upstream_wheels)} lists no wheel under {NIGHTLY}",
            next_step="name a commit instead",
        )
    access.store.put_record(_NIGHTLY, _nightly_key(access.settings), {"commit": wheels[0].commit})
    return wheels[0].commit


def _nightly_key(settings: IndexSettings) -> str:
    return digest_of([settings.upstream_wheels, VARIANT])


def gather_commit(access: Access, commit: str, tree: str, wheels: Mapping[str, Artifact]) -> ReleaseEvidence:
    """Return the evidence about *commit*: its own files, and *wheels*, which may be another commit's."""
    return ReleaseEvidence(
        sdist=None,
        texts=tree_texts(access, tree),
        wheels=tuple(
            read_wheel(
                fetch_artifact(access.store, wheel, access.settings), _as_recorded(access, machine, wheel)
            )
            for machine, wheel in wheels.items()
        ),
        commit=commit,
        tree_id=tree,
        version=_version_by_ancestor(access.repository, commit, wheels),
    )


def _version_by_ancestor(repository: Repository, commit: str, wheels: Mapping[str, Artifact]) -> str | None:
    """Return the version of *commit* by that of an ancestor's wheel; `None` if its own wheel states it."""
    origins = {wheel.commit: wheel.filename.split("-")[1] for wheel in wheels.values() if wheel.commit}
    if commit in origins or not origins:
        return None
    return version_ahead(repository, *next((stated, origin) for origin, stated in origins.items()), commit)


def _as_recorded(access: Access, machine: str, wheel: Artifact) -> Artifact:
    """Return *wheel* as this store recorded it when it first came, if it did."""
    known = known_wheel(access, wheel.commit, machine) if wheel.commit else None
    return known or replace(wheel, size=access.store.file_path(wheel.sha256).stat().st_size)


def version_ahead(repository: Repository, version: str, origin: str, commit: str) -> str:
    """Return the version of *commit*, by upstream's rule (setuptools-scm), from that of an ancestor's wheel.

    The ``dev`` number counts commits, so it rises by those in between; after a release it starts at the next.
    """
    base = Version(version)
    ahead = int(repository.command("rev-list", "--count", f"{origin}..{commit}").text)
    release, pre = list(base.release), base.pre
    if base.dev is None and pre is None:
        release[-1] += 1
    elif base.dev is None and pre is not None:
        pre = (pre[0], pre[1] + 1)
    numbers, letters = ".".join(map(str, release)), f"{pre[0]}{pre[1]}" if pre else ""
    variant = [
        mark for mark in (base.local or "").split(".") if mark and not re.fullmatch("g[0-9a-f]+", mark)
    ]
    return str(
        Version(f"{numbers}{letters}.dev{(base.dev or 0) + ahead}+{'.'.join([f'g{commit[:9]}', *variant])}")
    )
