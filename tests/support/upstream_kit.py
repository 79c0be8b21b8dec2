"""A small upstream for tests: its git repository, its release, and ways to reach both."""

from dataclasses import replace
from pathlib import Path

from kit import UpstreamRepository
from small_release import sdist_files

from sparkwright.git.repository import open_repository
from sparkwright.store.paths import open_store
from sparkwright.upstream.network import IndexSettings
from sparkwright.upstream.releases import Access

GENERATED = ("PKG-INFO", "vllm/_version.py")  # in the sdist, and not in git


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def make_upstream(folder: Path) -> str:
    """Upstream's repository with three commits, the second tagged v1.2.0; returns that one's id."""
    upstream = UpstreamRepository(folder)
    upstream.commit("First", {"README.md": b"first\n"})
    sources = {path: data for path, data in sdist_files().items() if path not in GENERATED}
    pinned = upstream.commit("Release (#2)", sources)
    upstream.git("tag", "--annotate", "--message", "1.2.0", "v1.2.0")
    upstream.commit("Go on (#3)", {"vllm/__init__.py": b"later = True\n"})
    return pinned


def make_access(home: Path, index_url: str = "", *, offline: bool = False) -> Access:
    """Return a store of its own; without an index, one that cannot be reached."""
    store = open_store(home)
    settings = IndexSettings(
        index_url=index_url or "http://127.0.0.1:9/simple/",
        offline=offline,
        timeout_s=5,
        attempts=1,
        backoff_s=0.01,
    )
    return Access(store, open_repository(store.git), settings)


def offline(access: Access) -> Access:
    """Return the same *access* without a network."""
    return replace(access, settings=replace(access.settings, offline=True))
