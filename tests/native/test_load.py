"""Every extension of the native wheel loaded by an aarch64 Python, as far as a machine without a card goes.

On x86-64 the loader, Python and the C library are Debian's for arm64, run by qemu's user emulation;
torch's own aarch64 libraries and CUDA's runtime are the pinned ones: libraries with kernels register these
with the runtime as they are loaded. What only a card's driver has, or a CUDA library that is not called, is
an empty library of that name: the loader has to find it, and nothing calls it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from sparkwright.git.repository import open_repository
from sparkwright.native.elf import read_elf
from sparkwright.native.model import Target
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.store.paths import open_store
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access

ROOT = Path(__file__).parents[2]
EMULATOR = "qemu-aarch64-static"
SUITE = "trixie"  # glibc 2.38 and more, which the compiler's own headers ask for; a Spark has 2.39
PYTHON = "python3.13"
PACKAGES = (
    f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "libc6", "libgcc-s1", "libstdc++6",
    "zlib1g", "libexpat1", "libssl3t64", "libgomp1", "libffi8",
)  # fmt: skip
NOTHING = ("-x", "c", "/dev/null")
# What a card's driver has, and CUDA's libraries: only their names are stood in for.
CARDS = ("libcu", "libnccl", "libnv")
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
    """What a program says; the end of it where it fails, since a loader names what it did not find."""
    words = [str(part) for part in command]
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    told = done.stdout.decode()
    assert done.returncode == 0, f"{words[0]} ended with status {done.returncode}: {told[-2000:]}"
    return told


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """An arm64 Python with its libraries, unpacked and not installed."""
    folder = tmp_path_factory.mktemp("arm64")
    (folder / "lists" / "partial").mkdir(parents=True)
    mirrors = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian")
    mirror = mirrors.split()[0]
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} {SUITE} main\n", encoding="utf-8")
    settings = ("APT::Architecture=arm64", "APT::Architectures=arm64", "Dir::State::status=/dev/null")
    folders = (
        f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}",
        f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=/dev/null",
    )  # fmt: skip
    options = [f"-o{setting}" for setting in (*settings, *folders)]
    run("apt-get", *options, "update")
    run("apt-get", *options, "download", *PACKAGES, cwd=folder)
    for package in folder.glob("*.deb"):
        run("dpkg", "-x", package, folder / "root")
    (folder / "root" / "lib").symlink_to("usr/lib")  # of base-files, in a system that is installed
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


@pytest.fixture(scope="module")
def load(system, toolchain, tmp_path_factory):
    """Loads libraries into the emulated Python; returns what it said, and what was stood in for."""
    pinned = (toolchain.torch / "lib", toolchain.cuda / "lib64")
    here = {path.name for place in (*pinned, system) for path in place.rglob("*.so*")}
    torchs = needed(*(path for path in pinned[0].iterdir() if ".so" in path.name))
    folder = tmp_path_factory.mktemp("stand-ins")

    def loaded(*libraries):
        lacking = (torchs | needed(*libraries)) - here
        empty = sorted(name for name in lacking if name.startswith(CARDS))
        for soname in empty:
            run(toolchain.cc, "-shared", *NOTHING, "-o", folder / soname, f"-Wl,-soname,{soname}")
        places = ":".join(map(str, [*pinned, folder]))
        told = run(
            EMULATOR, "-L", system, "-E", f"LD_LIBRARY_PATH={places}",
            system / "usr/bin" / PYTHON, "-c", LOAD, *libraries,
        )  # fmt: skip
        return told, empty

    return loaded


def needed(*libraries):
    """Names of the libraries that these ask for."""
    return {name for path in libraries for name in read_elf(path).needed}


def library(toolchain, path, text, *options):
    """A library for the target, of C source."""
    path.with_suffix(".c").write_text(text, encoding="utf-8")
    run(toolchain.cc, "-shared", "-fPIC", path.with_suffix(".c"), "-o", path, *options)
    return path


def test_each_extension_loads_with_torchs_libraries(load, extensions):
    told, empty = load(*extensions.values())
    assert "libcuda.so.1" in empty
    assert "libcudart.so.13" not in empty
    loaded = [Path(line.split()[1]).name for line in told.splitlines() if line.startswith("loaded")]
    assert loaded == [path.name for path in extensions.values()]


# The healthy case above means something only if a sick one is noticed, and says what it lacks.


def test_a_binary_of_the_other_machine_is_named(load, tmp_path):
    foreign = tmp_path / "foreign.so"
    run("gcc", "-shared", *NOTHING, "-o", foreign)
    with pytest.raises(AssertionError, match=r"foreign\.so"):
        load(foreign)


def test_a_library_that_is_not_there_is_named(load, toolchain, tmp_path):
    lacking = library(toolchain, tmp_path / "libabsent.so", "int absent(void) { return 1; }")
    wanting = library(
        toolchain, tmp_path / "wanting.so", "int absent(void); int f(void) { return absent(); }", lacking
    )
    lacking.unlink()
    with pytest.raises(AssertionError, match=r"libabsent\.so: cannot open shared object file"):
        load(wanting)


def test_a_symbol_that_nobody_has_is_named(load, toolchain, tmp_path):
    text = "extern int nobody_has_it; int *f(void) { return &nobody_has_it; }"
    with pytest.raises(AssertionError, match="undefined symbol: nobody_has_it"):
        load(library(toolchain, tmp_path / "wanting.so", text))
