"""Statements of a release about itself, gathered for `sparkwright.lock.check` and `sparkwright.lock.bump`.

Every file is fetched by digest before a word of it is believed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import structs

from sparkwright.base.errors import FetchError, UnknownNameError, WheelError
from sparkwright.base.events import emit
from sparkwright.git.remotes import list_remote
from sparkwright.lock.bump import successor
from sparkwright.lock.check import CudaEvidence
from sparkwright.lock.model import Artifact, Lock, Package
from sparkwright.lock.statements import (
    VERSION_FILE,
    ReleaseEvidence,
    WheelEvidence,
    is_evidence,
    is_other_commit,
    machine_of,
    stated_commit,
)
from sparkwright.upstream.archive import read_sdist
from sparkwright.upstream.download import fetch_artifact, fetch_members
from sparkwright.upstream.index import IndexFile, find
from sparkwright.upstream.releases import PROJECT, Access, Pristine, as_artifact

_MAX_TEXT_BYTES = 16 << 20
_PATIENCE_S = 20.0


def gather(access: Access, lock: Lock, *, pristine: Pristine | None = None) -> ReleaseEvidence:
    """Return the evidence about the release that *lock* pins; see `gather_commit` for a commit.

    The index is asked how it names the files with the lock's digests, and the git remote what the
    release's tag is; if either does not answer, a ``lock.unverified`` event says what that leaves open.

    *pristine* is the pinned tree, to be compared with the sdist where it came from git.
    """
    sdist = lock.required_sdist()
    names = _names_on_index(access, lock)
    wheels = []
    for artifact in lock.wheels.values():
        path = fetch_artifact(access.store, artifact, access.settings)
        wheels.append(read_wheel(path, _as_found(artifact, path, names)))
    path = fetch_artifact(access.store, sdist, access.settings)
    return ReleaseEvidence(
        sdist=_as_found(sdist, path, names),
        texts=_texts(path),
        wheels=tuple(wheels),
        tree=tree_texts(access, pristine.tree) if pristine and pristine.commit else None,
        tag_commit=_tag_commit(access, lock.release.git, lock.release.version),
        commit=pristine.commit if pristine else None,
    )


def gather_cuda(access: Access, lock: Lock) -> CudaEvidence | None:
    """Return the versions that the pinned torch and CUDA's packages state; `None` without ``[native]``."""
    if lock.native is None:
        return None
    toolkit = lock.native.toolkit
    torch = next((packages["torch"] for packages in toolkit.target.values() if "torch" in packages), None)
    if torch is None:  # which `check_native` will say
        return None
    return CudaEvidence(torch=_metadata(access, torch), release=_metadata(access, toolkit.release))


def _metadata(access: Access, package: Package) -> bytes:
    artifact = Artifact(filename=package.filename, sha256=package.sha256, size=package.size)
    path = fetch_artifact(access.store, artifact, access.settings)
    try:
        with zipfile.ZipFile(path) as archive:
            return _member(archive, f"{package.project}-{package.version}.dist-info/METADATA")
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise WheelError(f"{package.filename} could not be read", because=str(error).strip("'\"")) from error


def propose_lock(access: Access, old: Lock, version: str, machines: Collection[str] = ()) -> Lock:
    """Return the lock of the release *version*, with what it does not state as in *old*.

    The wheels are taken as the index lists them, and of each only the commit that it states is read: the
    rest is, when the new lock is checked.
    """
    listed = find(PROJECT, version, access.settings)
    sdist = as_artifact(_only(listed, version, "sdist"), access.settings)
    texts = _texts(fetch_artifact(access.store, sdist, access.settings))
    stated = stated_commit(texts.get(VERSION_FILE, b""))
    wheels = {
        machine: _with_origin(access, as_artifact(_only(listed, version, machine), access.settings), stated)
        for machine in machines or old.wheels
    }
    evidence = ReleaseEvidence(
        sdist=sdist, texts=texts, tag_commit=_tag_commit(access, old.release.git, version)
    )
    return successor(old, evidence, wheels)


def _with_origin(access: Access, wheel: Artifact, sdist_commit: str | None) -> Artifact:
    """Return *wheel* with the commit that it states, where that is not the sdist's."""
    try:
        with (
            fetch_members(access.store, wheel, VERSION_FILE.__eq__, access.settings) as path,
            zipfile.ZipFile(path) as archive,
        ):
            commit = stated_commit(_member(archive, VERSION_FILE))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise WheelError(f"{wheel.filename} could not be read", because=str(error).strip("'\"")) from error
    return structs.replace(wheel, built_from=commit) if is_other_commit(commit, sdist_commit) else wheel


def read_wheel(path: Path, file: Artifact) -> WheelEvidence:
    """Return what the wheel at *path* says."""
    try:
        with zipfile.ZipFile(path) as archive:
            folder = "-".join(file.filename.split("-")[:2]) + ".dist-info"
            read = (f"{folder}/METADATA", f"{folder}/WHEEL", VERSION_FILE)
            return WheelEvidence(file, *(_member(archive, name) for name in read))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise WheelError(f"{file.filename} could not be read", because=str(error).strip("'\"")) from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > _MAX_TEXT_BYTES:
        raise ValueError(f"its {name} has {info.file_size} bytes")
    return archive.read(info)


def _texts(sdist: Path) -> dict[str, bytes]:
    return {entry.path: entry.data for entry in read_sdist(sdist) if is_evidence(entry.path)}


def tree_texts(access: Access, tree: str) -> dict[str, bytes]:
    """Return the files of *tree* that state values of a lock, by path."""
    files = access.repository.files(tree)
    return {path: access.repository.blob(entry.blob) for path, entry in files.items() if is_evidence(path)}


def _names_on_index(access: Access, lock: Lock) -> dict[str, str]:
    """Return file name by digest, as the index lists the release; empty where it was not asked."""
    if not access.settings.offline:
        try:
            listed = find(PROJECT, lock.release.version, access.settings)
        except (FetchError, UnknownNameError) as error:
            _unverified("the names of the release's files", str(error))
        else:
            return {file.sha256: file.filename for file in listed if file.sha256}
    return {}


def _as_found(artifact: Artifact, path: Path, names: dict[str, str]) -> Artifact:
    """Return the lock's *artifact* as it really is: what the index calls it, and how large it is."""
    filename = names.get(artifact.sha256, artifact.filename)
    return Artifact(filename=filename, sha256=artifact.sha256, size=path.stat().st_size)


def _tag_commit(access: Access, address: str, version: str) -> str | None:
    """Return the commit of the release's tag at the git remote; `None` where it did not say."""
    if access.settings.offline:
        return None
    tag = f"refs/tags/v{version}"
    try:
        found = list_remote(access.repository, address, [tag], timeout=_PATIENCE_S).get(tag)
    except FetchError as error:
        _unverified("the commit beyond the digits that the release states", str(error))
        return None
    if found is None:
        _unverified(
            "the commit beyond the digits that the release states", f"{address} has no tag v{version}"
        )
        return None
    return found.commit


def _unverified(what: str, why: str) -> None:
    emit("lock.unverified", what=what, why=why)


def _only(listed: Iterable[IndexFile], version: str, wanted: str) -> IndexFile:
    """Return the one file among *listed* that is the sdist, or the wheel for the machine *wanted*."""
    tags = {file: file.filename.removesuffix(".whl").rpartition("-")[2] for file in listed}
    found = [file for file, tag in tags.items() if wanted == ("sdist" if file.is_sdist else machine_of(tag))]
    if len(found) != 1:
        names = ", ".join(file.filename for file in found) or "none"
        raise FetchError(
            f"there is not one {wanted} file of version {version}", because=f"the index lists {names}",
            next_step="choose another version, or write this one into the lock by hand",
        )  # fmt: skip
    return found[0]
