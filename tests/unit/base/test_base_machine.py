"""Cores, memory and memory pressure, read from files of the kernel."""

import os
from pathlib import Path

import pytest

from sparkwright.base.machine import Pressure, look

MIB = 1 << 20
MEMINFO = "MemTotal:       65536 kB\nMemFree:         1024 kB\nMemAvailable:   32768 kB\n"
PSI = (
    "some avg10={some} avg60=99.00 avg300=99.00 total=5\nfull avg10={full} avg60=99.00 avg300=99.00 total=5\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 64 MiB of memory, half of it available, and no control groups."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group(root: Path, name: str, **files: str) -> None:
    for file, text in files.items():
        write(root, f"sys/fs/cgroup/{name}/{file.replace('_', '.', 1)}", text + "\n")


def test_a_machine_without_limits(root: Path) -> None:
    found = look(root, affinity=6)
    assert (found.cores, found.total_mib, found.available_mib) == (6, 64, 32)
    assert found.pressure is None


def test_the_affinity_is_respected(root: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert look(root).cores == 1
    finally:
        os.sched_setaffinity(0, before)
    assert look(root).cores == len(before)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("300000 100000", 3),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
    ],
)
def test_a_quota_of_cores_is_respected(root: Path, quota: str, cores: int) -> None:
    write(root, "proc/self/cgroup", "0::/job\n")
    group(root, "job", cpu_max=quota)
    assert look(root, affinity=8).cores == cores


def test_limits_of_every_group_above_hold(root: Path) -> None:
    write(root, "proc/self/cgroup", "9:name=systemd:/elsewhere\n0::/outer/inner\n")
    group(root, "outer", cpu_max="200000 100000", memory_max=str(24 * MIB), memory_current=str(4 * MIB))
    group(root, "outer/inner", cpu_max="max 100000", memory_max="max", memory_current=str(3 * MIB))
    group(root, "elsewhere", cpu_max="100000 100000", memory_max=str(MIB), memory_current="0")
    found = look(root, affinity=8)
    assert (found.cores, found.total_mib, found.available_mib) == (2, 24, 20)


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({"memory_max": 24, "memory_current": 20}, 24, 4),
        # The kernel can reclaim cached pages of files that no process has mapped.
        ({"memory_max": 24, "memory_current": 20, "memory_stat": f"anon 5\ninactive_file {9 * MIB}"}, 24, 13),
        ({"memory_max": 30, "memory_high": 16, "memory_current": 6}, 16, 10),
        ({"memory_max": 2, "memory_current": 3}, 2, 0),
    ],
    ids=["hard limit", "unused files", "soft limit", "over its limit"],
)
def test_a_limit_of_memory_is_respected(
    root: Path, files: dict[str, int | str], total: int, available: int
) -> None:
    write(root, "proc/self/cgroup", "0::/job\n")
    group(root, "job", **{name: str(of * MIB) if isinstance(of, int) else of for name, of in files.items()})
    assert (look(root).total_mib, look(root).available_mib) == (total, available)


def test_a_group_that_is_not_mounted_here_leaves_the_root_of_groups(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/system.slice/docker-1\n")
    group(root, ".", memory_max=str(8 * MIB), memory_current="0")
    assert look(root).total_mib == 8


def test_pressure_is_the_ten_second_average_of_whoever_is_pressed_most(root: Path) -> None:
    write(root, "proc/pressure/memory", PSI.format(some="12.50", full="3.00"))
    assert look(root).pressure == Pressure(some=12.5, full=3.0)
    write(root, "proc/self/cgroup", "0::/job\n")
    group(root, "job", memory_pressure=PSI.format(some="1.00", full="7.25").strip())
    assert look(root).pressure == Pressure(some=12.5, full=7.25)


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n"])
def test_pressure_that_cannot_be_read_is_none(root: Path, text: str) -> None:
    write(root, "proc/pressure/memory", text)
    assert look(root).pressure is None
    (root / "proc/pressure/memory").unlink()
    (root / "proc/pressure/memory").mkdir()  # a read of it fails, as with psi=0
    assert look(root).pressure is None


def test_pressure_reaches_another_in_either_respect() -> None:
    limit = Pressure(some=20, full=5)
    assert Pressure(some=20, full=0).reaches(limit)
    assert Pressure(some=0, full=5).reaches(limit)
    assert not Pressure(some=19.9, full=4.9).reaches(limit)
