"""Every extension of the native wheel loaded by an aarch64 Python, as far as a machine without a card goes.

On x86-64 the loader, Python and the C library are Debian's for arm64, run by qemu's user emulation;
torch's own aarch64 libraries are the pinned ones. What only a card's driver has, or a CUDA library that
is not called, is an empty library of that name: the loader has to find it, and nothing calls it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from sparkwright.git import open_repository
from sparkwright.native.inspection import read_elf
from sparkwright.native.model import Target
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.plan import open_checkout
from sparkwright.store import open_store
from sparkwright.upstream import Access, read_settings

ROOT = Path(__file__).parents[2]
EMULATOR = "qemu-aarch64-static"
PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1", "libstdc++6",
    "zlib1g", "libexpat1", "libssl3", "libgomp1", "libffi8",
)  # fmt: skip
LOAD = """
import ctypes, os, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path, mode=os.RTLD_LAZY)
    print("loaded", path, flush=True)
"""

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates aarch64 on x86-64"),
    pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"no {EMULATOR} (package qemu-user-static)"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get to fetch an arm64 Python with"),
]


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    ).stdout.decode()


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """An arm64 Python with its libraries, unpacked and not installed."""
    folder = tmp_path_factory.mktemp("arm64")
    (folder / "lists" / "partial").mkdir(parents=True)
    settings = ("APT::Architecture=arm64", "APT::Architectures=arm64", "Dir::State::status=/dev/null")
    folders = (f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}")
    options = [f"-o{setting}" for setting in (*settings, *folders)]
    run("apt-get", *options, "update")
    run("apt-get", *options, "download", *PACKAGES, cwd=folder)
    for package in folder.glob("*.deb"):
        run("dpkg", "-x", package, folder / "root")
    return folder / "root"


@pytest.fixture(scope="module")
def toolchain():
    lock, store = open_checkout(ROOT).lock, open_store()
    access = Access(store, open_repository(store.git), read_settings())
    return prepare_toolchain(lock, Target("aarch64", lock.native.arch), access)


@pytest.fixture(scope="module")
def extensions(made, tmp_path_factory):
    """The wheel's extensions that were compiled here, by name."""
    folder = tmp_path_factory.mktemp("extensions")
    lock = open_checkout(ROOT).lock
    members = {name: lock.native.extensions[name].member for name in made.wheel["compiled"]}
    with zipfile.ZipFile(made.wheel["path"]) as archive:
        return {name: Path(archive.extract(member, folder)) for name, member in members.items()}


def stand_ins(toolchain, system, extensions, folder):
    """Empty libraries for every name that neither torch nor the system has."""
    here = {path.name for path in [*(toolchain.torch / "lib").iterdir(), *system.rglob("*.so*")]}
    libraries = [path for path in (toolchain.torch / "lib").iterdir() if ".so" in path.name]
    wanted = {name for path in [*libraries, *extensions.values()] for name in read_elf(path).needed}
    for soname in sorted(wanted - here):
        run(toolchain.cc, "-shared", "-x", "c", "/dev/null", "-o", folder / soname, f"-Wl,-soname,{soname}")
    return sorted(wanted - here)


def test_each_extension_loads_with_torchs_libraries(system, toolchain, extensions, tmp_path):
    empty = stand_ins(toolchain, system, extensions, tmp_path)
    assert "libcuda.so.1" in empty
    told = run(
        EMULATOR, "-L", system, "-E", f"LD_LIBRARY_PATH={toolchain.torch / 'lib'}:{tmp_path}",
        system / "usr/bin/python3.11", "-c", LOAD, *extensions.values(),
    )  # fmt: skip
    loaded = [Path(line.split()[1]).name for line in told.splitlines() if line.startswith("loaded")]
    assert loaded == [path.name for path in extensions.values()]


def test_a_binary_of_the_other_machine_does_not(system, toolchain, tmp_path):
    """The healthy case above means something only if a sick one is noticed."""
    foreign = tmp_path / "foreign.so"
    run("gcc", "-shared", "-x", "c", "/dev/null", "-o", foreign)
    with pytest.raises(AssertionError):
        run(EMULATOR, "-L", system, system / "usr/bin/python3.11", "-c", LOAD, foreign)
