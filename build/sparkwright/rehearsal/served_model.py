"""The model of a rehearsal, a GGUF file out of a package as a folder that vLLM serves; and its recipe."""

from __future__ import annotations

import os
from pathlib import Path

from sparkwright.base.digests import digest_of, sha256_bytes, sha256_file
from sparkwright.base.errors import ProcessError, RehearsalError
from sparkwright.base.events import task, warn
from sparkwright.base.process.run import run
from sparkwright.git.trees import make_read_only
from sparkwright.lock.model import Artifact
from sparkwright.lock.native import Package
from sparkwright.native.packages import unpack_package
from sparkwright.recipes.recipe import shipped_path
from sparkwright.store import Store, remove_tree, write_atomically
from sparkwright.upstream.releases import Access

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
_KIND = "model"
# Part of the folder's name: raised when the model is written otherwise.
_RULES = 1
_SCRIPT = Path(__file__).with_name("dequantise.py")
_LIMIT_S = 1800.0


def prepare_model(access: Access, artifact: Artifact, python: Path) -> Path:
    """Return the folder with the model of the package *artifact*; its files are verified, or written again.

    Args:
        access: store and network settings.
        artifact: the package.
        python: an interpreter with transformers and gguf.

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
            record = store.find_record(_KIND, key)
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
            store.put_record(_KIND, key, {"from": artifact.sha256, "files": _digests(target)})
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
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    return path
