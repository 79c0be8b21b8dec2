"""A whole small world for the command line: a checkout, a store, a package index, probes that run."""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import command
import kit
from http_index import Index
from native_kit import lock_text
from small_release import SmallRelease
from tiny_release import ALIGNED, CLAMPED, make_tiny

import sparkwright
from sparkwright.git.repository import open_repository
from sparkwright.probe.environment import requirements
from sparkwright.store.paths import Store, open_store

SOURCE_ROOT = Path(sparkwright.__file__).parents[1]

PROBE = """\
from probekit import expect


def probe():
    from vllm.{module} import {name}

    expect({name}({argument}) == {result}, "{name}({argument}) is not {result}")
"""
_PROOFS: dict[Path, bytes] = {}
CLAMP_PROBE = PROBE.format(module="clamp", name="clamp", argument=99, result=10)
ALIGN_PROBE = PROBE.format(module="align", name="align", argument=3, result=8)


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it has to be."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass
class World:
    """See the module's text; `index` is what the package index offers and was asked."""

    folder: Path
    index: Index
    release: SmallRelease
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The checkout."""
        return self.folder / "checkout"

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    @property
    def store(self) -> Store:
        return Store(Path(self.environment["SPARKWRIGHT_HOME"]))

    @property
    def wheels(self) -> list[Path]:
        return sorted(self.dist.glob("*.whl"))

    # Making it -------------------------------------------------------------------------

    def offer(self, release: SmallRelease) -> None:
        """Put a release on the index."""
        for name, data in release.files.items():
            self.index.add(name, data)

    def pin(self, release: SmallRelease) -> None:
        """Offer *release* and write it into ``upstream.lock``."""
        self.release = release
        self.offer(release)
        (self.root / "upstream.lock").write_text(f"# The pin.\n{lock_text(release.lock)}")

    def carry(
        self,
        name: str,
        files: Mapping[str, str | None],
        *,
        probe: str = "",
        listed: bool = True,
        **tables: Any,
    ) -> Path:
        """Write a carry that changes *files* of the release (`None` removes one)."""
        before = {path: self.release.tree.get(path) for path in files}
        old = {path: data for path, data in before.items() if data is not None}
        new = {path: text for path, text in files.items() if text is not None}
        patch = write_patch(tuple(old.items()), tuple(new.items()))
        version = self.release.version
        revision = {
            "release": version,
            "sdist-sha256": self.release.lock.sdist.sha256,
            "patch": f"{version}.patch",
        }
        written = kit.write_carry(
            self.root / "carries",
            name,
            patches={version: patch},
            probe=probe,
            **{"revision": [revision], **tables},
        )
        if listed:
            self.list_carries([*self.listed(), name])
        return written

    def listed(self) -> list[str]:
        path = self.root / "patchsets" / "spark.toml"
        return list(tomllib.loads(path.read_text())["carries"]) if path.exists() else []

    def list_carries(self, names: list[str]) -> None:
        path = self.root / "patchsets" / "spark.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(kit.toml({"format": 1, "name": "spark", "summary": "Small fixes", "carries": names}))

    def new_store(self, name: str, *, probes: bool = True) -> None:
        """Work with an empty store from here on, with or without an environment for probes."""
        self.environment["SPARKWRIGHT_HOME"] = str(self.folder / name)
        store = open_store(self.store.home)
        if probes:
            kit.seed_environment(store, requirements())

    def record_proofs(self) -> None:
        """Write the proofs of the usual carries beside them, for tests of something else.

        They are made once in a process: each takes four runs of a probe.
        """
        if not _PROOFS:
            home, asked = self.environment["SPARKWRIGHT_HOME"], len(self.index.requests)
            self.new_store("store of proofs")
            self.good("carry", "prove", "clamp", "align")
            self.environment["SPARKWRIGHT_HOME"] = home
            del self.index.requests[asked:]
            for path in self.root.glob("carries/*/proofs/*.json"):
                _PROOFS[path.relative_to(self.root)] = path.read_bytes()
        for place, data in _PROOFS.items():
            path = self.root / place
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)

    # Running ---------------------------------------------------------------------------

    def call(self, *words: str | Path) -> Ran:
        """Run the command line in this process."""
        done = command.call(*words, cwd=self.root, **self.environment)
        return Ran(done.returncode, done.stdout, done.stderr)

    def good(self, *words: str | Path) -> Ran:
        """`call`, which has to succeed."""
        ran = self.call(*words)
        assert ran.status == 0, ran.said
        return ran

    def start(
        self, *words: str | Path, script: str = "", prefix: tuple[str, ...] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """Start the real command in a process of its own; *script* goes before it in that process."""
        program = ["-c", script] if script else ["-m", "sparkwright"]
        return subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", *program, *map(str, words)],
            cwd=self.root,
            env={**clean_environment(), **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str | Path, **options: Any) -> Ran:
        """`start`, to the end."""
        return finish(self.start(*words, **options))

    # Looking ---------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """Return every event of the newest run."""
        logs = sorted(
            (self.root / ".sparkwright" / "events").glob("*.jsonl"), key=lambda log: log.stat().st_mtime_ns
        )
        return [json.loads(line) for line in logs[-1].read_text().splitlines()]

    def steps(self) -> dict[str, str]:
        """Return the steps of the newest run, each with ``found`` or ``made``."""
        return {
            event["step"]: event["kind"].removeprefix("step.")
            for event in self.events()
            if event["kind"].startswith("step.")
        }

    def listing(self) -> dict[str, int]:
        """Return every file of the store, with its time of change."""
        return files_below(self.store.home)


@lru_cache(maxsize=64)
def write_patch(before: tuple[tuple[str, bytes], ...], after: tuple[tuple[str, str], ...]) -> bytes:
    """`kit.write_diff`; most worlds hold the same few carries."""
    with tempfile.TemporaryDirectory() as folder:
        repository = open_repository(Path(folder, "git"))
        try:
            return kit.write_diff(repository, dict(before), dict(after))
        finally:
            repository.close()


def files_below(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_mtime_ns
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def clean_environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE_ROOT), "LC_ALL": "C.UTF-8"}


def finish(child: subprocess.Popen[str], *, patience_s: float = 300) -> Ran:
    out, err = child.communicate(timeout=patience_s)
    return Ran(child.returncode, out or "", err or "")


def ended(pid: int) -> bool:
    """Tell if the process has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: Callable[[], Any], *, patience_s: float = 120) -> Any:
    """Wait for a true value of *condition* and return it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it never happened")


def make_world(folder: Path, index: Index) -> World:
    """Return a world with two proved carries, ``clamp`` and ``align``, and an empty store."""
    index.json = True
    home = folder / "home"
    home.mkdir(parents=True)
    world = World(folder, index, make_tiny())
    world.environment = {
        # No page there: an index of commits without wheels, where a test serves none.
        "SPARKWRIGHT_UPSTREAM_WHEELS": index.url.replace("/simple/", "/commits/"),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
    }
    world.root.mkdir()
    world.new_store("store")
    world.pin(world.release)
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=CLAMP_PROBE)
    world.carry("align", {"vllm/align.py": ALIGNED}, probe=ALIGN_PROBE)
    return world
