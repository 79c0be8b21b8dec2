"""The link of two Sparks, on made-up trees of sysfs with the layout of real ones."""

from dataclasses import replace

import msgspec
import pytest
from checkpoint_kit import DENSE, write_checkpoint
from preflight_kit import ENGINE, recipe, start

from sparkwright.serve.child.peer import list_devices
from sparkwright.serve.preflight import run
from sparkwright.serve.preflight.link import check_link, read_link, selects
from sparkwright.serve.preflight.run import run_preflight

FAST, SLOW = "enp1s0f0np0", "enP7s7"
GOOD = {"NCCL_SOCKET_IFNAME": FAST, "GLOO_SOCKET_IFNAME": FAST, "NCCL_IB_HCA": "rocep1s0f0"}


def tree(root, *, fast="200000", state="up", port="4: ACTIVE", rdma=True):
    """A Spark's sysfs: a ConnectX-7 port, the 10 Gb/s port, Wi-Fi, a bridge of containers, and loopback."""
    devices = root / "devices"
    for name, speed, up, physical in (
        (FAST, fast, state, True),
        ("enp1s0f1np1", None, "down", True),
        (SLOW, "10000", "up", True),
        ("wlP9s9", None, "down", True),
        ("docker0", "10000", "up", False),
        ("lo", None, "unknown", False),
    ):
        folder = devices / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{up}\n")
        if speed is not None:
            (folder / "speed").write_text(f"{speed}\n")
        if physical:
            (devices / f"pci-{name}").mkdir()
            (folder / "device").symlink_to(devices / f"pci-{name}")
        net = root / "class" / "net"
        net.mkdir(parents=True, exist_ok=True)
        (net / name).symlink_to(folder)
    (root / "class" / "net" / "bonding_masters").write_text("\n")  # a file, as the driver makes it
    if rdma:
        device = root / "class" / "infiniband" / "rocep1s0f0"
        (device / "ports" / "1").mkdir(parents=True)
        (device / "ports" / "1" / "state").write_text(f"{port}\n")
        (device / "device" / "net" / FAST).mkdir(parents=True)
    return root


def end(devices, host="spark-1", variables=GOOD, **keys):
    return read_link(variables, list_devices(devices), host=host, **{"nccl": "2.30.7", **keys})


def levels(*ends) -> dict[str, str]:
    return {one.check: one.level for one in check_link(ends)}


@pytest.fixture
def pair(tmp_path):
    return end(tree(tmp_path / "a")), end(tree(tmp_path / "b"), "spark-2")


def test_sysfs_is_read(tmp_path):
    link = end(tree(tmp_path))
    found = {one.name: one for one in link.interfaces}
    assert set(found) == {FAST, SLOW, "enp1s0f1np1", "wlP9s9", "docker0"}
    assert (found[FAST].mbps, found[FAST].up, found[FAST].physical) == (200_000, True, True)
    assert (found["wlP9s9"].mbps, found["wlP9s9"].up, found["docker0"].physical) == (-1, False, False)
    assert link.rdma == {"rocep1s0f0": "ACTIVE"}
    none = end(tmp_path / "none")
    assert (none.interfaces, none.rdma) == ((), {})


def test_a_port_without_a_cable_beside_an_active_one_is_no_fault(tmp_path):
    root = tree(tmp_path)
    for port in ("0", "2"):
        other = root / "class" / "infiniband" / "rocep1s0f0" / "ports" / port
        other.mkdir()
        (other / "state").write_text("1: DOWN\n")
    assert levels(end(root)) == {"peer": "note"}


def test_interfaces_need_no_variable_where_no_slow_one_is_up(tmp_path):
    root = tree(tmp_path)
    (root / "devices" / SLOW / "operstate").write_text("down\n")
    assert "link-interface" not in levels(end(root, variables={}))


def test_a_healthy_pair_is_silent(pair):
    assert levels(*pair) == {}
    assert levels(pair[0]) == {"peer": "note"}


@pytest.mark.parametrize(
    ("made", "variables", "check", "level"),
    [
        ({"fast": "10000"}, GOOD, "link", "refuse"),
        ({"state": "down"}, GOOD, "link", "refuse"),
        ({"fast": None}, GOOD, "link", "refuse"),
        # Traffic over the slow interface
        ({}, {"GLOO_SOCKET_IFNAME": FAST}, "link-interface", "warn"),  # with --head, the shell sets them
        ({}, {"NCCL_SOCKET_IFNAME": FAST}, "link-interface", "warn"),
        ({}, {**GOOD, "GLOO_SOCKET_IFNAME": SLOW}, "link-interface", "refuse"),
        ({}, {**GOOD, "GLOO_SOCKET_IFNAME": "enp1s0f0"}, "link-interface", "refuse"),  # no beginnings here
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": SLOW}, "link-interface", "refuse"),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": "enp7"}, "link-interface", "refuse"),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": "en"}, "link-interface", None),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": "^docker,lo"}, "link-interface", None),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": f"={FAST}"}, "link-interface", None),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": "enp1s0f0"}, "link-interface", None),
        ({}, {**GOOD, "NCCL_SOCKET_IFNAME": f"^{SLOW},docker"}, "link-interface", None),
        # RDMA
        ({"rdma": False}, GOOD, "rdma", "warn"),
        ({"port": "1: DOWN"}, GOOD, "rdma", "warn"),
        ({}, {**GOOD, "NCCL_IB_DISABLE": "1"}, "rdma", "warn"),
        ({}, {**GOOD, "NCCL_IB_HCA": "mlx5"}, "rdma-device", "refuse"),
    ],
)
def test_each_fault_of_one_end_is_found(tmp_path, made, variables, check, level):
    assert levels(end(tree(tmp_path, **made), variables=variables)).get(check) == level


@pytest.mark.parametrize(
    ("value", "name", "taken"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("=eth0,eth1", "eth1", True),
        ("^eth", "eth0", False),
        ("^docker", "eth0", True),
        ("^=eth", "eth0", True),
        ("mlx5_0:1", "mlx5_0", True),
    ],
)
def test_the_syntax_of_nccl(value, name, taken):
    assert selects(value, name) is taken


def test_a_version_of_nccl_that_hangs(pair):
    assert levels(*(msgspec.structs.replace(one, nccl="2.28.9") for one in pair)) == {"nccl": "warn"}


def test_this_machines_link_counts_where_two_serve(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "read_link", lambda *_, **told: end(tree(tmp_path / "sys", fast="1000"), **told))
    alone = start(recipe(write_checkpoint(tmp_path / "m", DENSE)))
    assert run_preflight(alone) == ()
    two = replace(alone, nodes=2, engine=ENGINE)
    assert {one.check for one in run_preflight(two)} >= {"link", "peer"}
