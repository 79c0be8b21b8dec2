"""The second of two machines: the link between them, what they have to have in common, and copies."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import Recorder
from preflight_kit import recipe

from sparkwright.base.errors import ClusterError
from sparkwright.base.events import Event, subscribe
from sparkwright.base.ssh import SshHost
from sparkwright.recipes.recipe import serve_arguments
from sparkwright.serve.peer import CHILD, End, MachineFacts, Peer, _differences, links_between
from sparkwright.serve.peer_copy import Copied, copy, list_model, list_tree
from sparkwright.serve.peer_worker import PeerPlaces, order_worker

PAIR = recipe("org/model", nodes=2)
GIB = 1 << 20  # in KiB


def facts(host: int = 1, **changes: Any) -> MachineFacts:
    """Return a Spark's facts: both halves of a ConnectX port, the slow port, Wi-Fi that is down, a bridge."""
    devices = {}
    for name, speed, state in (
        ("enp1s0f0np0", "200000", "up"), ("enP2p1s0f0np0", "200000", "up"), ("enP7s7", "10000", "up"),
        ("wlP9s9", "", "down"), ("docker0", "10000", "up"),
    ):  # fmt: skip
        devices |= {f"class/net/{name}/speed": speed, f"class/net/{name}/operstate": state}
    for name, device in (("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")):
        devices[f"class/net/{name}/device"] = devices[f"class/net/{name}/device/infiniband/{device}"] = ""
        devices[f"class/infiniband/{device}/ports/1/state"] = "4: ACTIVE"
    addresses = [
        ("docker0", "172.17.0.1/16"), ("wlP9s9", f"10.9.9.{host}/24"), ("enP7s7", f"192.168.1.{host}/24"),
        ("enP7s7", f"fe80::{host}/64"), ("enp1s0f0np0", f"169.254.10.{host}/16"),
        ("enP2p1s0f0np0", f"10.0.2.{host}/30"),
    ]  # fmt: skip
    values = {
        "machine": "aarch64", "libc": "2.39", "python": "3.12", "compiler": True, "headers": True,
        "capability": "12.1", "driver": "580.95.05", "shared": True, "total_kib": 121 * GIB,
        "available_kib": 115 * GIB, "memlock": -1, "home": "/home/b/.cache/sparkwright-peer",
        "hub": "/home/b/hub", "addresses": tuple(addresses), "devices": devices,
    }  # fmt: skip
    return MachineFacts(**{**values, **changes})


@pytest.fixture
def peer() -> Peer:
    own, other = End("enA", "10.0.0.1", ("rocep1", "rocep2")), End("enB", "10.0.0.2", ("rocep1", "rocep2"))
    return Peer(SshHost("spark-b"), facts(2), own, other, 200_000, Path("/usr/bin/python3.12"), ())


class TestLink:
    def test_the_fastest_that_both_share_comes_first(self) -> None:
        found = [
            (one.mbps, one.here.interface, one.there.address) for one in links_between(facts(1), facts(2))
        ]
        assert found == [
            (200_000, "enp1s0f0np0", "169.254.10.2"),
            (200_000, "enP2p1s0f0np0", "10.0.2.2"),
            (10_000, "enP7s7", "192.168.1.2"),
        ]

    def test_devices_that_are_not_active_are_left_out(self) -> None:
        quiet = facts(1).devices | {"class/infiniband/rocep1s0f0/ports/1/state": "1: DOWN"}
        found = {
            one.here.interface: one.here.devices for one in links_between(facts(1, devices=quiet), facts(2))
        }
        assert found == {"enp1s0f0np0": (), "enP2p1s0f0np0": ("roceP2p1s0f0",), "enP7s7": ()}

    def test_both_machines_get_their_own_ends(self, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
        head = peer.head(PAIR)
        assert head.environment == {
            "NCCL_SOCKET_IFNAME": "=enA", "VLLM_HOST_IP": "10.0.0.1", "NCCL_IB_HCA": "=rocep1,rocep2"
        }  # fmt: skip
        assert head.why["NCCL_SOCKET_IFNAME"] == "the link to spark-b: enA, 200 Gb/s"
        places = PeerPlaces.of(peer, Path("/store/environments/KEY/bin/python"), Path("/store/caches"))
        variables = {
            **head.environment, "GLOO_SOCKET_IFNAME": "mine", "VLLM_API_KEY": "secret", "PATH": "/mine",
            "TRITON_CACHE_DIR": "/store/caches/ab/triton", "NCCL_DEBUG": "INFO",
        }  # fmt: skip
        python = Path("/store/environments/KEY/bin/python")
        order = order_worker(places, head, variables, python, host="0.0.0.0", port=8000)  # noqa: S104
        home = peer.facts.home
        assert order.environment == {
            "NCCL_SOCKET_IFNAME": "=enB", "GLOO_SOCKET_IFNAME": "enB", "VLLM_HOST_IP": "10.0.0.2",
            "NCCL_IB_HCA": "=rocep1,rocep2", "NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1",
            "HF_HUB_CACHE": "/home/b/hub", "TRITON_CACHE_DIR": f"{home}/caches/ab/triton",
        }  # fmt: skip
        assert order.argv[0] == f"{home}/environments/KEY/bin/python"
        assert order.argv[-7:] == (
            "--nnodes",
            "2",
            "--node-rank",
            "1",
            "--master-addr",
            "10.0.0.1",
            "--headless",
        )
        assert order.folders == (f"{home}/run", f"{home}/caches/ab/triton")
        own = serve_arguments(head, host="h", port=1)
        assert own[-6:] == ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"libc": "2.40"}, None),
        ({"driver": "580.1"}, None),
        ({"machine": "x86_64"}, "has another architecture"),
        ({"libc": "2.4"}, "has an older glibc"),
        ({"capability": "9.0"}, "has another card"),
        ({"capability": ""}, "has another card"),
        ({"python": ""}, "has no /usr/bin/python3.12"),
        ({"python": "3.11"}, "has another /usr/bin/python3.12"),
        ({"compiler": False}, "has no C compiler"),
        ({"headers": False}, "has no Python headers"),
        ({"available_kib": 60 * GIB}, "has too little memory left"),
        ({"available_kib": 60 * GIB, "shared": False}, None),
    ],
)
def test_a_machine_has_to_have_what_this_one_has(changes: dict[str, Any], what: str | None) -> None:
    found = list(_differences(facts(1), facts(2, **changes), PAIR, Path("/usr/bin/python3.12")))
    assert next((one[0] for one in found), None) == what


def test_a_python_of_the_users_need_not_be_there() -> None:
    own = Path("/home/a/.local/share/uv/python/cpython-3.12/bin/python3.12")
    assert not list(_differences(facts(1), facts(2, python="", headers=False), PAIR, own))


# Copies -----------------------------------------------------------------------------------------------------


class ThisMachine:
    """A second machine that is this one, without ssh."""

    host = SshHost("spark-b")
    facts = SimpleNamespace(home="/copies", hub="/hub")

    def argv(self, *words: str) -> tuple[str, ...]:
        return ("python3", "-c", CHILD.read_text(), *words)


def bring(copied: Copied, folder: Path, stop: threading.Event | None = None) -> int:
    """Copy, and return the bytes that were missing."""
    heard = Recorder()
    with subscribe(heard):
        copy(ThisMachine(), "it", str(folder), copied, stop or threading.Event())  # type: ignore[arg-type]
    (started,) = heard.of("task.started")
    return int(started["total"])


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "own"
    (root / "bin").mkdir(parents=True)
    (root / "lib" / "__pycache__").mkdir(parents=True)
    (root / "lib" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (root / "lib" / "large").write_bytes(os.urandom(5 << 20))
    (root / "lib" / "empty").touch()
    (root / "bin" / "tool").write_text(f"#!{root}/bin/python\n")
    (root / "bin" / "tool").chmod(0o755)
    (root / "bin" / "python").symlink_to(f"{root}/base/python")
    (root / "lib64").symlink_to("lib")
    return root


def test_an_environment_is_sent_once(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    copied = list_tree(tree)
    assert bring(copied, there) > 5 << 20
    assert (there / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (there / "bin" / "python").readlink() == (tree / "bin" / "python").readlink()
    assert str((there / "lib64").readlink()) == "lib"
    assert (there / "lib" / "large").stat().st_mtime_ns == (tree / "lib" / "large").stat().st_mtime_ns
    assert (there / "lib" / "empty").exists()
    assert not (there / "lib" / "__pycache__").exists()
    assert bring(copied, there) == 0
    (there / "lib" / "large").write_bytes(b"y" * (5 << 20))
    assert bring(copied, there) == 5 << 20, "it was changed there"
    assert (there / "lib" / "large").read_bytes() == (tree / "lib" / "large").read_bytes()


def test_a_copy_is_interrupted_and_made_again(tree: Path, tmp_path: Path) -> None:
    there, stop = tmp_path / "there", threading.Event()
    copied = Copied(tuple(one for one in list_tree(tree).files if one.path == "lib/large"))

    def end(event: Event) -> None:
        if event.kind == "task.progress" and event.data["done"] >= 1 << 20:
            stop.set()

    with subscribe(end), pytest.raises(ClusterError, match="it"):
        bring(copied, there, stop)
    assert not (there / "lib" / "large").exists()
    assert bring(copied, there) == 5 << 20
    assert [one.name for one in (there / "lib").iterdir()] == ["large"]


def test_a_file_that_is_cut_meanwhile_is_not_taken(tree: Path, tmp_path: Path) -> None:
    copied = list_tree(tree)
    (tree / "lib" / "large").write_bytes(b"short")
    with pytest.raises(ClusterError, match="cannot be copied"):
        bring(copied, tmp_path / "there")
    assert not (tmp_path / "there" / "lib" / "large").exists()


def test_a_model_of_the_hub_keeps_its_form_and_a_folder_its_contents(tmp_path: Path) -> None:
    root = tmp_path / "models--a--b"
    snapshot = root / "snapshots" / "abc"
    for folder in (snapshot / "sub", root / "blobs", root / "refs"):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    for name in ("weights", "sub/code.py"):
        blob = root / "blobs" / name.replace("/", "-")
        blob.write_text(name)
        (snapshot / name).symlink_to("../" * (3 + name.count("/") - 1) + f"blobs/{blob.name}")
    (root / "blobs" / "other-revision").touch()
    there = tmp_path / "there"
    hub = list_model(snapshot, root)
    bring(hub, there)
    assert (there / "snapshots" / "abc" / "sub" / "code.py").read_text() == "sub/code.py"
    assert (there / "snapshots" / "abc" / "weights").is_symlink()
    assert (there / "refs" / "main").read_text() == "abc"
    assert {path.name for path in (there / "blobs").iterdir()} == {"weights", "sub-code.py"}
    os.utime(there / "blobs" / "weights", (1, 1))
    assert bring(hub, there) == 0, "its name says what is in it"
    bring(list_model(snapshot, snapshot), tmp_path / "plain")
    assert (tmp_path / "plain" / "weights").read_text() == "weights"
    assert not (tmp_path / "plain" / "weights").is_symlink()
