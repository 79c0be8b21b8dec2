"""A store that a disk or a power cut damaged: what is damaged counts as missing, and comes back by itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from wheelkit import sha256
from world import Ran, World

from sparkwright.base.errors import ProcessError
from sparkwright.store.disk import remove_tree


@pytest.fixture
def world(world: World) -> World:
    world.record_proofs()
    return world


def empty(path: Path) -> None:
    spoil(path, b"")


def cut(path: Path) -> None:
    spoil(path, path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one byte in the middle, and nothing that `stat` shows but the time of change of its state."""
    data, state = bytearray(path.read_bytes()), path.stat()
    data[len(data) // 2] ^= 1
    spoil(path, bytes(data))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def spoil(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def stored(world: World, kind: str) -> Path:
    """A file of the store: our wheel, or upstream's wheel or sdist."""
    lock = world.release.lock
    if kind == "ours":
        (record,) = (world.store.records / "wheel").rglob("*.json")
        return world.store.file_path(json.loads(record.read_bytes())["sha256"])
    return world.store.file_path((lock.sdist if kind == "sdist" else lock.wheel("aarch64")).sha256)


def made(world: World) -> str:
    """The digest of the wheel that the first run makes, as the file has it."""
    world.good("wheel")
    return sha256(world.wheels[0])


def requires(world: World, digest: str, ran: Ran) -> None:
    """The wheel is the one of the first run, and what was said of it is what it is."""
    assert ran.json["sha256"] == digest
    assert sha256(world.wheels[0]) == digest
    assert (world.dist / "simple/vllm/index.html").read_text().count(f"#sha256={digest}") == 1


@pytest.mark.parametrize("damage", [empty, cut, flip, folder])
def test_a_damaged_finished_wheel_is_not_delivered_but_made_again(
    world: World, damage: Callable[[Path], None]
) -> None:
    digest = made(world)
    remove_tree(world.dist)
    damage(stored(world, "ours"))
    requires(world, digest, world.good("wheel", "--json"))
    world.good("store", "verify")


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("kind", ["theirs", "sdist"])
def test_a_damaged_download_is_fetched_again(world: World, kind: str, damage: Callable[[Path], None]) -> None:
    digest = made(world)
    if kind == "theirs":
        remove_tree(world.dist)
        stored(world, "ours").unlink()
    else:
        for place in ("git", "records"):
            remove_tree(world.store.home / place)
    damage(stored(world, kind))
    before = len(world.index.downloads)
    requires(world, digest, world.good("wheel", "--json"))
    assert len(world.index.downloads) == before + 1
    world.good("store", "verify")


def test_a_wheel_in_the_users_folder_is_there_only_if_its_digest_is_right(world: World) -> None:
    digest = made(world)
    world.good("wheel", "--json")
    assert world.steps()["place"] == "found"
    flip(world.wheels[0])
    requires(world, digest, world.good("wheel", "--json"))
    assert world.steps()["place"] == "made"
    world.good("wheel")
    assert world.steps()["place"] == "found"


@pytest.mark.parametrize("content", [b"{}", b'{"sha256": "../../x"}', None])
def test_malformed_records_count_as_missing(world: World, content: bytes | None) -> None:
    """Of every kind at once, and for one content of each alone; `None` is a folder in a record's place."""
    for path in world.root.glob("carries/*/proofs/*.json"):
        path.unlink()  # so that the store's are needed
    digest = made(world)
    kinds = sorted(path.name for path in world.store.records.iterdir())
    assert {"audit", "digest", "index", "merge", "proof", "sdist-tree", "wheel"} <= set(kinds)
    for chosen in (kinds, *([kind] for kind in kinds if content == b"{}")):
        for path in [path for kind in chosen for path in (world.store.records / kind).rglob("*.json")]:
            if content is None:
                folder(path)
            else:
                path.write_bytes(content)
        requires(world, digest, world.good("wheel", "--json"))
    assert world.good("wheel").status == 0
    assert set(world.steps().values()) == {"found"}


def loose(world: World) -> list[Path]:
    return sorted(path for path in (world.store.git / "objects").glob("??/*") if path.is_file())


def pack(world: World, suffix: str = ".pack") -> Path:
    """All objects as one pack, as a large import writes them, or its index."""
    where = ["git", "--git-dir", str(world.store.git)]
    subprocess.run([*where, "repack", "-a", "-d", "-k", "--quiet"], check=True)
    (found,) = (world.store.git / "objects" / "pack").glob(f"*{suffix}")
    return found


# What a power cut leaves of files that were just written, and what a disk loses.
DAMAGES: dict[str, Callable[[World], object]] = {
    "objects emptied": lambda world: [empty(path) for path in loose(world)],
    "object emptied": lambda world: empty(random.Random(1).choice(loose(world))),
    "objects gone": lambda world: [path.unlink() for path in loose(world)],
    "pack cut": lambda world: cut(pack(world)),
    "pack flipped": lambda world: flip(pack(world)),
    "index emptied": lambda world: empty(pack(world, ".idx")),
    "head emptied": lambda world: empty(world.store.git / "HEAD"),
    "objects folder gone": lambda world: remove_tree(world.store.git / "objects"),
    "folder gone": lambda world: remove_tree(world.store.git),
}


@pytest.mark.parametrize(
    ("command", "damage"), [("merge", "objects emptied"), *(("wheel", damage) for damage in DAMAGES)]
)
def test_damaged_git_objects_come_back(world: World, damage: str, command: str) -> None:
    digest = made(world)
    tree = world.good("merge", "--json").json["tree"]
    for kind in ("merge", "wheel"):
        remove_tree(world.store.records / kind)
    DAMAGES[damage](world)
    if command == "wheel":
        requires(world, digest, world.good("wheel", "--json"))
    else:
        assert world.good("merge", "--json").json["tree"] == tree
    world.good("wheel")
    world.good("store", "verify", "--remove")  # what is not needed may lie there still
    world.good("store", "verify")
    requires(world, digest, world.good("wheel", "--json"))


@pytest.mark.parametrize("command", [("merge",), ("store", "verify", "--remove")])
def test_the_repository_is_not_begun_again_under_other_runs(world: World, command: tuple[str, ...]) -> None:
    digest = made(world)
    remove_tree(world.store.records / "merge")
    inode = world.store.git.stat().st_ino
    DAMAGES["objects emptied"](world)
    with world.store.running():
        ran = world.call(*command)
    assert ran.status == ProcessError.exit_code, ran.said
    assert "other runs use them" in ran.said
    assert world.store.git.stat().st_ino == inode
    world.good(*command)
    requires(world, digest, world.good("wheel", "--json"))


@pytest.mark.parametrize("damage", ["object emptied", "pack flipped", "objects folder gone"])
def test_verify_reports_unsound_git_objects_and_removes_them(world: World, damage: str) -> None:
    digest = made(world)
    world.good("store", "verify")
    DAMAGES[damage](world)
    ran = world.call("store", "verify", "--json")
    assert ran.status == 70
    assert [fault["path"] for fault in ran.json["damaged"]] == [str(world.store.git)]
    world.good("store", "verify", "--remove")
    world.good("store", "verify")
    requires(world, digest, world.good("wheel", "--json"))
