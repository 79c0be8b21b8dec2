"""The remote tier against a server that does right, and one that does anything else."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kit import Recorder
from store_servers import HostileStore, Misbehaviour, hostile_store

from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.lock.model import Artifact
from sparkwright.store.paths import Store, open_store
from sparkwright.store.remote.client import RemoteLimits, RemoteSettings
from sparkwright.store.remote.entries import TRAVELLING, place_of, public_of, require_key
from sparkwright.store.remote.tier import RemoteReport, RemoteTier
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.network import IndexSettings

LIMITS = RemoteLimits(stall_s=20)
HASTY = RemoteLimits(stall_s=1, least_rate=100_000)
OBJECT = b"an object" * 1000
DIGEST = sha256_bytes(OBJECT)
KEY = digest_of("a key")
RECORD = {"sha256": DIGEST, "size": len(OBJECT)}


@pytest.fixture
def server() -> Iterator[HostileStore]:
    with hostile_store() as running:
        yield running


class Machines:
    """Machines that share one server; each has its own store, and by default all have one key."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def __call__(self, name: str, **changes: object) -> Store:
        settings = RemoteSettings(url=self.url, key_file=self.folder / "key.pem", limits=LIMITS)
        return open_store(self.folder / name, RemoteTier(replace(settings, **changes)))


@pytest.fixture
def machine(tmp_path: Path, server: HostileStore) -> Callable[..., Store]:
    return Machines(tmp_path, server.url)


def add(store: Store, data: bytes = OBJECT) -> str:
    """Put a file into *store*, as a compiler's result comes there."""
    with store.scratch() as scratch:
        (scratch / "made").write_bytes(data)
        store.adopt_file(scratch / "made", sha256_bytes(data))
    return sha256_bytes(data)


def filled(store: Store, kind: str = "extension") -> Store:
    """Have *store* hold, and write to the remote tier, one object and the record that names it."""
    add(store)
    store.put_record(kind, KEY, RECORD)
    return store


def done(store: Store) -> RemoteReport:
    assert store.remote is not None
    return store.remote.report


def warnings(heard: Recorder) -> list[str]:
    return [event["message"] for event in heard.of("warning")]


# Reading and writing -------------------------------------------------------------------------


def test_a_result_of_one_machine_is_found_on_another(machine, server: HostileStore) -> None:
    filled(machine("a"))
    other = machine("b")
    assert other.find_record("extension", KEY) == RECORD
    path = other.find_file(DIGEST, size=len(OBJECT))
    assert path == other.file_path(DIGEST)
    assert path.read_bytes() == OBJECT
    assert path.stat().st_mode & 0o777 == 0o444
    report = done(other)
    assert (report.hits, report.misses, report.refused, report.written) == (2, 0, 0, 0)
    assert report.bytes_read > len(OBJECT)
    assert open_store(other.home).find_record("extension", KEY) == RECORD, "it is local from now on"


def test_the_layout_is_bazels(machine, server: HostileStore) -> None:
    filled(machine("a"))
    assert set(server.objects) == {f"cas/{DIGEST}", place_of("extension", KEY)}
    assert server.objects[f"cas/{DIGEST}"] == OBJECT
    folder, _, name = place_of("extension", KEY).partition("/")
    assert (folder, len(name)) == ("ac", 64)
    assert server.asked("PUT")[-1].startswith("ac/"), "a record comes after the file that it names"


def test_what_is_there_is_not_written_again(machine, server: HostileStore) -> None:
    filled(machine("a"))
    server.requests.clear()
    filled(machine("b"))
    assert server.asked("PUT") == [place_of("extension", KEY)]


def test_what_nobody_has_is_asked_for_once(machine, server: HostileStore) -> None:
    store = machine("a")
    for _ in range(3):
        assert store.find_file(DIGEST) is None
        assert store.find_record("unit", KEY) is None
    assert len(server.requests) == 2
    assert done(store).misses == 2


@pytest.mark.parametrize("kind", ["merge", "unit-cost", "configuration", "tree-fingerprint", "release-sdist"])
def test_what_belongs_to_one_machine_stays_there(machine, server: HostileStore, kind: str) -> None:
    store = machine("a")
    store.put_record(kind, KEY, {"folder": "/home/me"})
    assert machine("b").find_record(kind, KEY) is None
    assert done(store).written == 0
    assert server.requests == []
    assert kind not in TRAVELLING


def test_a_download_is_shared(machine, server: HostileStore) -> None:
    store = machine("b")
    store.share(add(store))
    assert done(store).written == 1
    assert machine("c").find_intact(DIGEST) is not None


def test_nothing_is_written_where_that_is_off(machine, server: HostileStore) -> None:
    store = filled(machine("a", write=False))
    store.share(DIGEST)
    assert done(store).written == 0
    assert server.requests == []


def test_a_look_at_this_store_alone(machine, server: HostileStore) -> None:
    filled(machine("a"))
    server.requests.clear()
    assert machine("b").find_intact(DIGEST, remote=False) is None
    assert server.requests == []


# Who is believed -----------------------------------------------------------------------------


def test_a_record_of_an_unknown_writer_does_not_count_and_is_told_once(machine, heard, tmp_path):
    filled(machine("a"))
    store = machine("b", key_file=tmp_path / "another.pem")
    for kind in ("extension", "unit"):
        assert store.find_record(kind, KEY) is None
    assert store.find_record("extension", KEY) is None
    (told,) = warnings(heard)
    assert public_of(require_key(tmp_path / "key.pem")).id in told
    assert done(store).refused >= 1


def test_a_named_writer_counts(machine, tmp_path: Path) -> None:
    filled(machine("a"))
    writers = {"builder": public_of(require_key(tmp_path / "key.pem")).text}
    store = machine("b", key_file=tmp_path / "another.pem", writers=writers)
    assert store.find_record("extension", KEY) == RECORD


def test_an_entry_does_not_count_under_another_key(machine, server, heard):
    filled(machine("a"))
    other = digest_of("another key")
    server.objects[place_of("extension", other)] = server.objects[place_of("extension", KEY)]
    server.objects[place_of("unit", KEY)] = server.objects[place_of("extension", KEY)]
    store = machine("b")
    assert store.find_record("extension", other) is None
    assert store.find_record("unit", KEY) is None
    assert store.find_record("extension", KEY) == RECORD
    (told,) = warnings(heard)
    assert "another key" in told


def test_a_changed_entry_does_not_count(machine, server: HostileStore, heard: Recorder) -> None:
    filled(machine("a"))
    place = place_of("extension", KEY)
    good = json.loads(server.objects[place])
    changed = [
        {**good, "record": json.dumps({**RECORD, "sha256": "0" * 64})},
        {**good, "signature": good["signature"][::-1]},
        {**good, "signature": "?"},
        {**good, "signature": "", "writer": ""},
        {**good, "format": 2},
        {**good, "record": "[]"},
        {"kind": "extension"},
    ]
    bodies = [json.dumps(entry).encode() for entry in changed]
    for body in [*bodies, b"", b"\xff", b"{" * 100_000, b'{"format":' + b"[" * 100_000]:
        server.objects[place] = body
        assert machine(f"b{len(server.requests)}").find_record("extension", KEY) is None, body[:80]
    server.objects[place] = json.dumps(good).encode()
    assert machine("good").find_record("extension", KEY) == RECORD


# A server that misbehaves --------------------------------------------------------------------

WRONG = {
    "other bytes": Misbehaviour(body=b"x" * len(OBJECT)),
    "too few bytes": Misbehaviour(cut=100),
    "too many bytes": Misbehaviour(body=OBJECT + b"more"),
    "no end": Misbehaviour(endless=True),
    "an error": Misbehaviour(status=500),
    "no permission": Misbehaviour(status=403),
    "no answer": Misbehaviour(hang=True),
    "a byte at a time": Misbehaviour(drip_s=0.1),
    "elsewhere": Misbehaviour(redirect="http://127.0.0.2:9/cas"),
}


@pytest.mark.parametrize("fault", WRONG.values(), ids=WRONG.keys())
def test_a_bad_answer_is_no_result_and_no_error(machine, server, heard, fault):
    filled(machine("a"))
    store = machine("b", limits=HASTY if fault.hang or fault.drip_s else LIMITS)
    server.faults["GET"] = fault
    assert store.find_file(DIGEST, size=len(OBJECT)) is None
    assert not store.file_path(DIGEST).exists()
    assert list(store.scratch_root.iterdir()) == []
    server.faults.clear()
    assert machine("c").find_file(DIGEST) is not None


def test_no_more_is_read_than_a_locked_file_has(machine, server: HostileStore) -> None:
    filled(machine("a"))
    store = machine("b")
    asked = []
    real = store.remote.fetch_file
    store.remote.fetch_file = lambda *words, **named: asked.append(words[2]) or real(*words, **named)
    locked = Artifact(filename="x.whl", sha256=DIGEST, size=len(OBJECT))
    path = fetch_artifact(store, locked, IndexSettings())
    assert (asked, path.read_bytes()) == ([len(OBJECT)], OBJECT)
    other = Artifact(filename="x.whl", sha256=DIGEST, size=len(OBJECT) - 1)
    assert machine("c").find_intact(other.sha256, size=other.size) is None


def test_a_failure_is_told_once_and_ends_the_reading(machine, server: HostileStore, heard: Recorder) -> None:
    store = machine("a")
    server.faults["GET"] = Misbehaviour(status=503)
    for number in range(9):
        assert store.find_file(sha256_bytes(bytes([number]))) is None
    assert len(server.requests) == 2, "it is asked for twice, and then no more"
    (told,) = warnings(heard)
    assert "503" in told
    assert done(store).stopped == "it answered 503"


def test_one_failure_is_tried_again(machine, server: HostileStore) -> None:
    filled(machine("a"))
    server.faults["GET"] = Misbehaviour(status=500, times=1)
    assert machine("b").find_file(DIGEST) is not None


def test_a_wrong_object_is_written_anew_by_who_made_the_right_one(machine, server: HostileStore) -> None:
    filled(machine("a"))
    server.objects[f"cas/{DIGEST}"] = b"damaged"
    store = machine("b")
    assert store.find_file(DIGEST) is None
    add(store)
    store.put_record("extension", KEY, RECORD)
    assert server.objects[f"cas/{DIGEST}"] == OBJECT


def test_a_damaged_file_is_not_written(machine, server: HostileStore) -> None:
    store = machine("a")
    add(store)
    path = store.file_path(DIGEST)
    path.chmod(0o644)
    path.write_bytes(OBJECT[::-1])
    store.put_record("extension", KEY, RECORD)
    assert f"cas/{DIGEST}" not in server.objects


@pytest.mark.parametrize("status", [401, 403, 405, 500, 507])
def test_a_server_that_takes_nothing_is_still_read(machine, server, heard, status):
    filled(machine("a"))
    store = machine("b")
    server.faults["PUT"] = Misbehaviour(status=status)
    for number in range(5):
        store.put_record("extension", digest_of(number), RECORD)
    assert done(store).written == 0
    assert len(warnings(heard)) == 1
    assert store.find_record("extension", KEY) == RECORD


def test_an_object_that_is_too_large_there_is_left_out(machine, server: HostileStore) -> None:
    store = machine("a")
    server.faults["PUT"] = Misbehaviour(status=413, times=1)
    add(store)
    store.put_record("extension", KEY, RECORD)
    store.put_record("proof", KEY, {"carry": "one"})
    assert (done(store).written, done(store).stopped) == (2, "")


def test_credentials_go_to_that_server_alone(machine, server: HostileStore) -> None:
    """Another host that it redirects to gets none, and what comes from there counts by its digest."""
    with hostile_store() as other:
        other.objects["cas/" + DIGEST] = OBJECT
        server.faults["GET"] = Misbehaviour(redirect=f"{other.url}/cas/{DIGEST}")
        store = machine("a", token="planted")  # noqa: S106
        assert store.find_file(DIGEST) is not None
        headers = {name.lower() for _, _, sent in other.requests for name in sent}
        assert "authorization" not in headers
    assert {sent.get("authorization") for _, _, sent in server.requests} == {"Bearer planted"}


def test_a_server_that_never_answers_a_write_is_given_up(machine, server: HostileStore) -> None:
    store = machine("a", limits=replace(HASTY, stall_s=0.1))
    server.hold.clear()
    began = time.monotonic()
    filled(store)
    assert time.monotonic() - began < 10
    assert "timed out" in done(store).stopped
    assert open_store(store.home).find_record("extension", KEY) == RECORD


def test_a_full_disk_ends_the_reading_and_not_the_command(machine, server, heard, monkeypatch):
    filled(machine("a"))
    store = machine("b")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert store.find_file(DIGEST) is None
    assert not store.file_path(DIGEST).exists()
    (told,) = warnings(heard)
    assert "no space left" in told
    assert machine("c").find_file(DIGEST) is not None


def test_threads_that_want_one_file_at_once_all_get_it(machine, server: HostileStore) -> None:
    filled(machine("a"))
    store = machine("b")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: store.find_file(DIGEST), range(8)))
    assert None not in found


def test_two_machines_write_one_key_at_once(machine, server: HostileStore) -> None:
    """Whichever entry stays is whole, and so is what it names."""
    records = [{"sha256": add(machine(str(number)), bytes([number]) * 99), "size": 99} for number in range(4)]

    def write(number: int) -> None:
        machine(str(number)).put_record("extension", KEY, records[number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    reader = machine("reader")
    found = reader.find_record("extension", KEY)
    assert found in records
    assert reader.find_file(found["sha256"], size=99) is not None
