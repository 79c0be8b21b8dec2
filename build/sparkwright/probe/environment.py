"""Make the Python environment of probes, and the folders of vLLM's files that they import.

Probes import vLLM's own modules, which want torch and a dozen other packages. Those live in an
environment of their own, made once and kept in the store, so that the tool itself stays small. Trees are
read-only, kept in the store, checked before and after.

Importing vLLM compiles hundreds of modules, and two trees differ in a handful. So every file gets one
fixed time, Python's bytecode is kept beside the trees, and two trees share that of the files that both have.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError, ProcessError
from sparkwright.base.events import task, warn
from sparkwright.base.process.run import install_packages, make_venv, run
from sparkwright.git.repository import Repository
from sparkwright.git.trees import check_out, make_read_only
from sparkwright.store.disk import remove_tree
from sparkwright.store.paths import Store

_SHOWN = ("torch", "triton", "numpy")
_READY = "ready.json"


def requirements() -> str:
    """Return the pinned requirements of the environment, in pip's format."""
    return resources.files("sparkwright.probe").joinpath("requirements.txt").read_text(encoding="utf-8")


def environment_key() -> str:
    """Return the key of the environment: its requirements, and the Python and the machine that it is for."""
    return digest_of([requirements(), sys.version, sysconfig.get_platform()])[:16]


def prepare_environment(store: Store, *, offline: bool = False) -> Path:
    """Return the environment's interpreter; the environment is made when it is not there yet."""

    def fill(python: Path, listed: Path) -> str:
        listed.write_text(requirements(), encoding="utf-8")
        install_packages(python, ["--requirement", listed])
        return json.dumps(_versions(python))

    return make_once(store, environment_key(), "probes", fill, offline=offline)


def make_once(store: Store, key: str, what: str, fill: Callable[[Path, Path], str], *, offline: bool) -> Path:
    """Return the interpreter of the environment *key* for *what*; it is made when it is not there yet.

    *fill* installs its packages, by a file for their list, and returns what is kept of it in ``ready.json``.

    Raises:
        NotInStoreError: it is not there, and the network is off.
        EnvironmentSetupError: a package could not be installed.
    """
    folder = store.environments / key
    python, ready = folder / "bin" / "python", folder / _READY
    if ready.is_file() and store.claim(folder):
        return python
    if offline:
        raise NotInStoreError(
            f"the environment for {what} has not been made",
            because="the network is off",
            next_step="run it once without --offline",
        )
    with store.lock(f"environment-{key}", f"the environment for {what}"):
        if ready.is_file():
            return python
        remove_tree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with task(f"make the environment for {what} (torch and what vLLM imports; minutes, once)"):
                make_venv(folder)
                kept = fill(python, folder.with_name(f"{folder.name}.txt"))
        except ProcessError as error:
            raise EnvironmentSetupError(
                f"the environment for {what} could not be made",
                because=error.because,
                next_step="check the package index and the disk, then run again",
            ) from error
        ready.write_text(kept, encoding="utf-8")
    return python


def _versions(python: Path) -> dict[str, str]:
    script = (
        "import importlib.metadata as m, json, platform;"
        f"found = {{name: m.version(name) for name in {_SHOWN!r}}};"
        "print(json.dumps({'python': platform.python_version(), **found}))"
    )
    versions: dict[str, str] = json.loads(run([python, "-I", "-c", script]).text)
    return versions


def describe_environment(python: Path) -> dict[str, str]:
    """Return versions of the interpreter and the packages that matter to a verdict."""
    versions: dict[str, str] = json.loads((python.parents[1] / _READY).read_text(encoding="utf-8"))
    return versions


# Trees --------------------------------------------------------------------------------------------

_KIND = "tree-fingerprint"
_MOMENT_NS = 946_684_800 * 10**9


def _place(store: Store, tree: str, under: str) -> Path:
    return store.trees / (f"{tree}-{under}" if under else tree)


def tree_folder(store: Store, repository: Repository, tree: str, *, under: str) -> Path:
    """Return a folder with the files of *tree* below *under*; made once, remade when it was touched."""
    folder = _place(store, tree, under)
    key = folder.name
    with store.lock(f"tree-{key}", f"the checked-out tree {tree[:12]}"):
        recorded = store.find_record(_KIND, key)
        if folder.is_dir():
            if recorded is None or recorded.get("fingerprint") != fingerprint(folder):
                warn(f"the checked-out tree {tree[:12]} was changed; it is written again")
                remove_tree(folder)
            elif store.claim(folder):
                return folder
        with task(f"check out {tree[:12]}"), store.scratch() as scratch:
            fresh = scratch / "tree"
            check_out(repository, tree, fresh, under=under)
            _fix_times(fresh)
            make_read_only(fresh)
            # Recorded first: killed in between, the folder is missing and not under suspicion.
            store.put_record(_KIND, key, {"fingerprint": fingerprint(fresh)})
            remove_tree(store.bytecode_of(folder))
            fresh.chmod(0o755)  # renaming a folder needs the right to write to it
            store.publish_folder(fresh, folder)
            folder.chmod(0o555)
    return folder


def part_of(repository: Repository, tree: str, names: Sequence[str]) -> str:
    """Return id of the tree that has only those of *names* at its top that *tree* has there."""
    top = repository.objects.node(tree)
    entries = {name: top[name] for name in names if name in top}
    return repository.objects.edit(None, entries) or repository.objects.write("tree", b"")


def _fix_times(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - thousands of files
            os.utime(path, ns=(_MOMENT_NS, _MOMENT_NS), follow_symlinks=False)


def bytecode_folder(store: Store) -> Path:
    """Return where Python keeps bytecode of what probes import (``-X pycache_prefix``)."""
    return store.bytecode


def forget_bytecode(store: Store, folder: Path) -> None:
    """Remove the bytecode of the modules in *folder*, whose files people edit.

    Python compares size and second of change alone, so that a file written twice in a second runs as it was.
    """
    for path in store.bytecode_of(folder).glob("*.pyc"):
        path.unlink(missing_ok=True)


def share_bytecode(store: Store, repository: Repository, trees: tuple[str, str], *, under: str) -> None:
    """Give each of two *trees* the bytecode that the other one has of files that are alike in both."""
    if trees[0] == trees[1]:
        return
    differing = repository.changed(*trees)
    one, other = (store.bytecode_of(_place(store, tree, under)) for tree in trees)
    for source, target in ((one, other), (other, one)):
        for path in source.rglob("*.pyc"):
            module = path.relative_to(source)
            link, text = target / module, module.with_name(f"{module.name.split('.')[0]}.py")
            if not link.exists() and text.as_posix() not in differing:
                link.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # a run wrote or replaced it
                    link.hardlink_to(path)


def fingerprint(folder: Path) -> str:
    """Return a digest of paths and modes below *folder*, and of each file's size and time of change."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        place = os.path.relpath(parent, folder)
        for name in sorted([*names, *folders]):
            state = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - thousands of files
            size, changed = (0, 0) if stat.S_ISDIR(state.st_mode) else (state.st_size, state.st_mtime_ns)
            found.append([place, name, size, state.st_mode, changed])
    return digest_of(found)
