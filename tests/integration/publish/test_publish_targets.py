"""One contract for every place that is published to: a folder, moto's S3 server, and releases of a forge."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import forge
import pytest
from wheelkit import sha256

from sparkwright.base.errors import LostRaceError, PublishError, TamperedError, UploadError
from sparkwright.publish.places import open_target
from sparkwright.publish.release import Asset, read_forge
from sparkwright.publish.target import Target

WHEEL = "vllm-0.24.0+spark.3.aaaaaaaa-cp38-abi3-manylinux_2_28_aarch64.whl"
FILE = f"files/ab/{WHEEL}"
PAGE = "stable/simple/vllm/index.json"
KINDS = ("folder", "s3")
_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty target of each kind."""
    return empty(request, tmp_path, monkeypatch)


def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "target")
    credentials(monkeypatch)
    return f"s3://wheels/t{next(_numbers)}?endpoint={request.getfixturevalue('s3')}"


def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return file_of(tmp_path, 300_000)


def file_of(folder: Path, size: int, seed: int = 1) -> Path:
    path = folder / f"{seed}-{size}.whl"
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def sizes(target: Target, prefix: str) -> dict[str, int]:
    return {path: entry.size for path, entry in target.files(prefix).items()}


# Files that never change ----------------------------------------------------------------------------


class Place(NamedTuple):
    """One path of a target or one asset of a release: it takes a file, and never another one."""

    put: Callable[[Path, str], None]
    read: Callable[[], bytes | None]
    files: Callable[[], list[str]]


def place_at(address: str) -> Place:
    def read() -> bytes | None:
        found = open_target(address).read(WHEEL)
        return found and found.data

    # Each publisher opens the target itself, with a connection of its own.
    return Place(
        lambda file, digest: open_target(address).put_file(WHEEL, file, digest),
        read,
        lambda: sorted(open_target(address).files("")),
    )


def asset_of(hub: forge.Forge) -> Place:
    client = read_forge({**hub.environment, "PIP_CONFIG_FILE": os.devnull})

    def put(file: Path, digest: str) -> None:
        client.send("v1", "main", [Asset(WHEEL, file, file.stat().st_size, digest, "")])

    return Place(put, lambda: hub.published().get(WHEEL), lambda: sorted(hub.published()))


@pytest.fixture(params=[*KINDS, "forge"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param != "forge":
        yield place_at(empty(request, tmp_path, monkeypatch))
        return
    (tmp_path / "pages").mkdir()
    with forge.forge(tmp_path / "forge", tmp_path / "pages") as hub:
        yield asset_of(hub)


def test_what_is_put_is_there(place: Place, wheel: Path) -> None:
    assert place.read() is None
    for _ in range(2):  # again, as the next run does
        place.put(wheel, sha256(wheel))
        assert (place.read(), place.files()) == (wheel.read_bytes(), [WHEEL])


def test_a_published_file_never_changes(place: Place, wheel: Path, tmp_path: Path) -> None:
    place.put(wheel, sha256(wheel))
    other = file_of(tmp_path, 300_000, seed=2)
    with pytest.raises((TamperedError, PublishError)) as raised:
        place.put(other, sha256(other))
    assert "files never change" in raised.value.because or "releases never change" in raised.value.next_step
    assert place.read() == wheel.read_bytes()


def test_a_file_with_another_digest_is_not_published(place: Place, wheel: Path) -> None:
    with pytest.raises((TamperedError, UploadError)):
        place.put(wheel, "0" * 64)
    assert place.read() is None
    place.put(wheel, sha256(wheel))
    assert place.read() == wheel.read_bytes()


# Pointers -------------------------------------------------------------------------------------------


def test_a_pointer_is_replaced_only_from_the_state_that_was_read(address: str) -> None:
    target = open_target(address)
    first = target.replace(PAGE, b"one", expected=None)
    assert target.read(PAGE).tag == first
    second = target.replace(PAGE, b"two", expected=first)
    assert target.read(PAGE).data == b"two"
    for stale in (None, first, "unknown"):
        with pytest.raises(LostRaceError, match="another publisher wrote it first"):
            target.replace(PAGE, b"three", expected=stale)
    assert target.read(PAGE).data == b"two"
    assert target.read(PAGE).tag == second
    with pytest.raises(LostRaceError):
        target.replace("stable/none.json", b"x", expected=second)
    assert target.read("stable/none.json") is None


def test_files_are_listed_by_folder(address: str, wheel: Path) -> None:
    target = open_target(address)
    assert sorted(target.files("")) == []
    target.put_file(FILE, wheel, sha256(wheel))
    target.replace(PAGE, b"x", expected=None)
    target.replace("stable/channel.json", b"x", expected=None)
    target.replace("stable-2/a b+c.json", b"x", expected=None)
    assert sorted(target.files("")) == sorted([FILE, PAGE, "stable/channel.json", "stable-2/a b+c.json"])
    assert (
        sorted(target.files("stable"))
        == sorted(target.files("stable/"))
        == sorted([PAGE, "stable/channel.json"])
    )
    assert sorted(target.files("files/")) == [FILE]
    assert sorted(target.files("absent")) == []


def test_a_file_is_removed_and_can_be_put_again(address: str, tmp_path: Path) -> None:
    target, wheel = open_target(address), file_of(tmp_path, (1 << 20) + 5)
    before = time.time()
    target.put_file(FILE, wheel, sha256(wheel))
    target.replace(PAGE, b"page", expected=None)
    target.replace("stable/channel.json", b"x", expected=None)
    assert sizes(target, "") == {FILE: (1 << 20) + 5, PAGE: 4, "stable/channel.json": 1}
    assert sizes(target, "stable/simple") == {PAGE: 4}
    assert all(before - 2 < entry.modified < time.time() + 2 for entry in target.files("").values())
    for path in (FILE, PAGE, "files/ab/absent.whl", "absent.json"):
        target.remove(path)
    assert sizes(target, "") == {"stable/channel.json": 1}
    assert open_target(address).read(FILE) is None
    other = file_of(tmp_path, (1 << 20) + 7, seed=2)
    target.put_file(FILE, other, sha256(other))
    assert target.read(FILE).data == other.read_bytes()
    target.replace(PAGE, b"new", expected=None)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a//b", "../a", "a/../../b", "a\\b", "a\nb"])
def test_paths_that_lead_elsewhere_are_refused(address: str, wheel: Path, path: str) -> None:
    target = open_target(address)
    calls = (
        lambda: target.read(path),
        lambda: target.put_file(path, wheel, sha256(wheel)),
        lambda: target.replace(path, b"", expected=None),
        lambda: target.remove(path),
        lambda: target.url(path),
    )
    for call in calls:
        with pytest.raises(PublishError, match="not a relative path"):
            call()


# Two publishers -------------------------------------------------------------------------------------

_PUBLISHER = """
import sys
from sparkwright.base.errors import LostRaceError
from sparkwright.publish.places import open_target
address, path, who, rounds = sys.argv[1:]
target, won, lost = open_target(address), 0, 0
while won < int(rounds):
    found = target.read(path)
    try:
        before, tag = (found.data, found.tag) if found else (b"", None)
        target.replace(path, before + who.encode(), expected=tag)
        won += 1
    except LostRaceError:
        lost += 1
print(won, lost)
"""


def test_of_two_publishers_at_once_nothing_is_lost(address: str) -> None:
    """Each appends its letter to one pointer; a lost write would be a missing letter."""
    rounds = 6
    command = [sys.executable, "-c", _PUBLISHER, address, PAGE]
    children = [
        subprocess.Popen([*command, who, str(rounds)], stdout=subprocess.PIPE, text=True) for who in "ab"
    ]
    told = [child.communicate(timeout=240)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert [int(won) for won, _ in told] == [rounds, rounds]
    written = open_target(address).read(PAGE).data.decode()
    assert sorted(written) == ["a"] * rounds + ["b"] * rounds


def test_two_publishers_of_one_wheel_both_succeed(address: str, wheel: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        for put in [pool.submit(place_at(address).put, wheel, sha256(wheel)) for _ in range(3)]:
            put.result()
    assert place_at(address).read() == wheel.read_bytes()
    assert place_at(address).files() == [WHEEL]
