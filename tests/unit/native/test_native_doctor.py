"""Each check of the machine fires on what is missing, says what to do, and is silent on a healthy one."""

import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from http_index import Index
from native_kit import HERE, OTHER, Machine, native_tables, offer_toolkit

from sparkwright.base.errors import ToolError
from sparkwright.base.machine import MachineSnapshot
from sparkwright.base.process.run import run, which
from sparkwright.native import host as doctor
from sparkwright.native.host import isolated, native_checks, require_isolation

GIB = 1 << 30
NATIVE = native_tables(offer_toolkit(Index()))


def verdict(check):
    """The verdict of a check, which must have a remedy if there is something to do."""
    assert check.verdict != "to do" or check.remedy
    assert check.detail
    return check.verdict


@pytest.mark.parametrize(("free", "expected"), [(50 * GIB, "pass"), (10 * GIB, "pass"), (9 * GIB, "to do")])
def test_disk(free, expected):
    assert verdict(doctor.check_disk(free)) == expected


@pytest.mark.parametrize(
    ("costs", "needed"), [({"a.cu": (955.0, 5504), "b.cu": (186.0, 9080)}, 9080), ({}, 4096)]
)
def test_memory_for_the_largest_unit_of_the_lock(costs, needed):
    native = msgspec.structs.replace(NATIVE, costs=costs)
    for available, expected in ((needed, "pass"), (needed - 1, "to do")):
        assert verdict(doctor.check_memory(MachineSnapshot(20, 122880, available), native)) == expected


@pytest.mark.parametrize(
    ("driver", "expected"),
    [("580.95.05", "pass"), ("610.1.1", "pass"), ("575.57.08", "to do"), ("?", "to do")],
)
def test_the_driver(driver, expected):
    assert verdict(doctor.check_gpu(("NVIDIA GB10", "12.1", driver))) == expected


def test_packages_for_this_machine():
    healthy = doctor.check_packages(NATIVE, HERE)
    assert (verdict(healthy), "nvcc 13.0.88" in healthy.detail) == ("pass", True)
    assert verdict(doctor.check_packages(NATIVE, "riscv64")) == "to do"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(made.folder))
    return made


def looked_at(tmp_path, native=NATIVE):
    return {check.what: check for check in native_checks(native, tmp_path)}


@pytest.mark.parametrize(("oldest", "expected"), [("", "pass"), ("13", "pass"), ("13.3", "to do")])
def test_a_compiler_that_the_release_refuses(machine, tmp_path, oldest, expected):
    machine.add("g++")
    found = looked_at(tmp_path, msgspec.structs.replace(NATIVE, oldest_gxx=oldest))[f"compiler for {HERE}"]
    assert verdict(found) == expected
    assert ("13.3 is the oldest supported" in found.detail) == (expected == "to do")


def test_a_machine_with_everything(machine, tmp_path):
    machine.add("g++")
    machine.add(f"{OTHER}-linux-gnu-g++", OTHER)
    machine.script("unshare", 'while [ "$1" != -- ]; do shift; done; shift; "$@"')
    machine.script("true", "exit 0")
    machine.script("nvidia-smi", 'echo "NVIDIA GB10, 12.1, 580.95.05"')
    found = looked_at(tmp_path)
    assert found["gpu"].detail == "NVIDIA GB10, compute capability 12.1, driver 580.95.05"
    for what in (f"compiler for {HERE}", f"compiler for {OTHER}", "network isolation", "python headers"):
        assert verdict(found[what]) == "pass"


def test_a_machine_with_nothing(machine, tmp_path):
    found = looked_at(tmp_path)
    for what in (f"compiler for {HERE}", f"compiler for {OTHER}", "network isolation"):
        assert verdict(found[what]) == "to do"
    assert "apt install" in found[f"compiler for {OTHER}"].remedy
    assert found["gpu"].verdict == "skipped"


# Compiling without a network --------------------------------------------------------------


CALL = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


@pytest.fixture
def possible() -> None:
    try:
        require_isolation()
    except ToolError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("possible")
def test_nobody_can_be_called_from_inside(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = [sys.executable, "-c", CALL, str(server.getsockname()[1])]
        assert run(call).status == 0, "from outside it can"
        done = run(isolated(call), accept=(1,))
    assert "unreachable" in done.stderr


@pytest.mark.usefixtures("possible")
def test_all_else_is_as_outside(tmp_path: Path) -> None:
    done = run(isolated(["sh", "-c", 'pwd && echo "$1" && echo made > file && exit 3', "sh", "-n; $x"]),
               cwd=tmp_path, accept=(3,))  # fmt: skip
    assert done.text == f"{tmp_path}\n-n; $x"
    assert (tmp_path / "file").owner() == tmp_path.owner()
    assert (tmp_path / "file").read_text() == "made\n"


def test_root_needs_no_user_namespace_and_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isolated(["cc", "-c"]) == ("unshare", "-n", "--", "cc", "-c")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isolated(["cc", "-c"]) == ("unshare", "-r", "-n", "--", "cc", "-c")


def test_where_it_is_forbidden_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbidding = tmp_path / "unshare"
    forbidding.write_text(
        f"#!{which('sh')}\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    forbidding.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="cannot be kept off the network") as caught:
        require_isolation()
    assert "Operation not permitted" in caught.value.because
    assert "user namespaces" in caught.value.next_step
