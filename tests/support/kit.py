"""Material of the tests: generated trees, carries, upstream repositories and environments."""

import atexit
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomlkit

import sparkwright
from sparkwright.base import events
from sparkwright.base.digests import digest_of
from sparkwright.base.process.run import run
from sparkwright.carries.model import CARRY_FORMAT, Carry, load_carry
from sparkwright.git.repository import Repository, git_environment
from sparkwright.git.trees import FileEntry, import_files
from sparkwright.merge.absorb import History
from sparkwright.merge.engine import MergeRequest, merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.probe.upstream_tests import packages_folder
from sparkwright.store.paths import Store

Content = str | bytes | FileEntry
VERSION = "1.0.0"
DIGEST = "0" * 64
_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Upstream"), ("EMAIL", "upstream@localhost"), ("DATE", "1000000000 +0000"))
}


def entry(content: Content) -> FileEntry:
    if isinstance(content, FileEntry):
        return content
    return FileEntry("100644", content.encode() if isinstance(content, str) else content)


def make_tree(repository: Repository, files: Mapping[str, Content]) -> str:
    """Return the id of a tree of *files* (path to content)."""
    return import_files(repository, [(path, entry(content)) for path, content in files.items()])


def read_tree(repository: Repository, tree: str) -> dict[str, str]:
    """Return the text of every file of *tree*."""
    return {path: repository.blob(found.blob).decode() for path, found in repository.files(tree).items()}


def write_diff(repository: Repository, before: Mapping[str, Content], after: Mapping[str, Content]) -> bytes:
    """Return the ``-U0`` patch between two sets of files, as the product itself writes it."""
    return repository.diff(make_tree(repository, before), make_tree(repository, after), context=0)


def spec(name: str, **changes: Any) -> dict[str, Any]:
    """Return the tables of a sound ``carry.toml``; a change to `None` leaves a key out."""
    tables: dict[str, Any] = {
        "format": CARRY_FORMAT,
        "name": name,
        "title": f"Change {name}",
        "kind": "own",
        "scope": "runtime",
        "runner": "both",
        "requires": [],
        "why": "it is wrong",
        "symptom": "it fails",
        "drop-when": "upstream fixes it",
        "evidence": {"level": "cpu", "demonstrated": [], "claimed": []},
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return {key: value for key, value in tables.items() if value is not None}


def toml(tables: Mapping[str, Any]) -> str:
    """Return *tables* as TOML, which tomlkit takes long for; most tests write the same few."""
    return _toml(json.dumps(tables))


@functools.lru_cache(maxsize=512)
def _toml(text: str) -> str:
    return tomlkit.dumps(json.loads(text))


def revision(release: str = VERSION, **changes: Any) -> dict[str, Any]:
    return {"release": release, "sdist-sha256": DIGEST, "patch": f"{release}.patch", **changes}


def write_carry(
    root: Path,
    name: str,
    *,
    patches: Mapping[str, bytes],
    probe: str = "",
    probing: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Return a carry's folder below *root*, with *patches* by release; *changes* go to its TOML.

    *probing* goes to the table of its probe.
    """
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Any] = {"revision": [revision(release) for release in patches] or None}
    for release, patch in patches.items():
        (folder / f"{release}.patch").write_bytes(patch)
    if probe:
        (folder / "probe.py").write_text(probe)
        tables["probe"] = {"file": "probe.py", "seconds": 20, "memory-mib": 2000, **(probing or {})}
    (folder / "carry.toml").write_text(toml(spec(name, **{**tables, **changes})))
    return folder


def make_carry(
    root: Path,
    repository: Repository,
    name: str,
    before: Mapping[str, Content],
    after: Mapping[str, Content],
    **changes: Any,
) -> Carry:
    """Return a carry of our own that makes *after* of *before*; other files stay as they are."""
    whole = {
        path: content
        for path, content in {**before, **after}.items()
        if after.get(path, content) is not DELETED
    }
    patch = write_diff(repository, before, whole)
    return load_carry(write_carry(root, name, patches={VERSION: patch}, **changes))


DELETED = FileEntry("", b"")
"""Stands for a file that a carry removes."""


@dataclass
class Scene:
    """One merge: a release with *base* files, a pin with *target* files, and carries written for *base*."""

    repository: Repository
    root: Path
    base: dict[str, Content]
    target: dict[str, Content] | None = None
    history: History | None = None
    offline: bool = False
    version: str = "1.1.0"
    carries: list[Carry] = field(default_factory=list)
    store: Store | None = None

    def add(self, name: str, after: Mapping[str, Content], **changes: Any) -> Carry:
        carry = make_carry(self.root, self.repository, name, self.base, after, **changes)
        self.carries.append(carry)
        return carry

    def merge(self) -> MergeReport:
        base = make_tree(self.repository, self.base)
        target = self.base if self.target is None else self.target
        request = MergeRequest(
            pristine=make_tree(self.repository, target),
            version=self.version,
            carries=self.carries,
            find_base=lambda _: base,
            history=self.history,
            offline=self.offline,
            store=self.store,
        )
        return merge_patchset(self.repository, request)


def git(folder: Path, *arguments: str) -> str:
    """Run git as an upstream maintainer, without reading any user or system configuration."""
    return run(["git", *arguments], cwd=folder, env={**git_environment(), **_WHO}).text


class UpstreamRepository:
    """An upstream with real history, made with real git, that serves any commit over ``file://``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.git("config", "uploadpack.allowFilter", "true")

    @property
    def address(self) -> str:
        return self.folder.as_uri()

    def git(self, *arguments: str) -> str:
        return git(self.folder, *arguments)

    def commit(self, subject: str, files: Mapping[str, Content | None]) -> str:
        """Commit *files* (`None` removes one) to the current branch; returns the commit's id."""
        for path, content in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                target.unlink()
            else:
                target.write_bytes(entry(content).data)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def pull(self, number: int, base: str, commits: Sequence[Mapping[str, Content | None]]) -> str:
        """Make a pull request of *commits* on *base*, as ``refs/pull/N/head``; return its head."""
        self.git("checkout", "--quiet", "--detach", base)
        for index, files in enumerate(commits):
            self.commit(f"work {index}", files)
        head = self.git("rev-parse", "HEAD")
        self.git("update-ref", f"refs/pull/{number}/head", head)
        self.git("checkout", "--quiet", "main")
        return head


class Recorder:
    """Every event that was emitted while it listened."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    @property
    def warnings(self) -> list[str]:
        return [data["message"] for data in self.of("warning")]


def python(
    script: str, *arguments: object, prefix: tuple[str, ...] = (), stdin: bool = False
) -> subprocess.Popen[str]:
    """Start *script* in a process of its own, with the package on its path."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(sparkwright.__file__).parents[1])},
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Return what *process* wrote; it must end well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """Return a command prefix that mounts a disk of *size* at *folder*; skip where that is denied."""
    folder.mkdir()
    return _mounted(f'mount -t tmpfs -o size={size} tmpfs "$1"', folder)


def read_only(folder: Path) -> tuple[str, ...]:
    """Return a command prefix for which nothing in *folder*, where it runs, can be written."""
    return _mounted('mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1"', folder)


def _mounted(mount: str, folder: Path) -> tuple[str, ...]:
    words = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mount} && shift && exec "$@"')
    prefix = (*words, "sh", str(folder))
    if run([*prefix, "true"], accept=range(256)).status:
        pytest.skip("mounting is denied on this machine")
    return prefix


def write_program(path: Path, text: str, interpreter: str = "/bin/sh") -> Path:
    """Write a program of *text* for *interpreter*, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return path


def load_file(path: Path) -> Any:
    """Return the module in *path*, where no search finds it."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module  # dataclasses and models look it up there
    found.loader.exec_module(module)
    return module


def seed_environment(store: Store, requirements: str) -> Path:
    """Pretend that the environment for probes was made: this interpreter, without torch."""
    key = digest_of([requirements, sys.version, sysconfig.get_platform()])[:16]
    folder = store.environments / key
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    (folder / "ready.json").write_text(json.dumps({"python": "3", "torch": "none"}))
    share_library(store)
    return python


def seed_test_packages(store: Store) -> Path:
    """Pretend that the packages for upstream's tests were installed: those that run this test."""
    folder = packages_folder(store)
    folder.mkdir(parents=True)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        (folder / name).symlink_to(Path(found.origin).parent)
    return folder


def share_library(store: Store) -> None:
    """Compile the standard library that probes import once for all tests of a process, not in each store."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    compiled = store.bytecode / library.relative_to("/")
    compiled.parent.mkdir(parents=True, exist_ok=True)
    compiled.symlink_to(_compiled_library(), target_is_directory=True)


@functools.cache
def _compiled_library() -> Path:
    """Make an empty folder for bytecode that goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="sparkwright-bytecode-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
