"""A small upstream for tests: its git repository, its release, and ways to reach both."""

import os
import subprocess
from pathlib import Path

from small_release import sdist_files

from sparkwright.git.repository import open_repository
from sparkwright.store.paths import open_store
from sparkwright.upstream.network import IndexSettings
from sparkwright.upstream.releases import Access

GENERATED = ("PKG-INFO", "vllm/_version.py")  # in the sdist, and not in git


def git(folder: Path, *arguments: str) -> str:
    """Run git as upstream's maintainers do, with nobody's configuration."""
    who = {f"GIT_{role}_{part}": "upstream" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    env = os.environ | who | dates | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit_all(folder: Path, message: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def make_upstream(folder: Path) -> str:
    """Upstream's repository with three commits, the second tagged v1.2.0; returns that one's id."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    write_files(folder, {"README.md": b"first\n"})
    commit_all(folder, "First")
    write_files(folder, {path: data for path, data in sdist_files().items() if path not in GENERATED})
    pinned = commit_all(folder, "Release (#2)")
    git(folder, "tag", "--annotate", "--message", "1.2.0", "v1.2.0")
    write_files(folder, {"vllm/__init__.py": b"later = True\n"})
    commit_all(folder, "Go on (#3)")
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
