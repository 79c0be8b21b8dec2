"""The units that `scaling_pack.py` packed, with the toolchain of the machine that measures them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.digests import digest_of
from sparkwright.git import open_repository, unpack_tree
from sparkwright.lock import Lock, read_lock, require_native
from sparkwright.native.build import Builder, Configured
from sparkwright.native.farm import link_tree, target_folders
from sparkwright.native.host import find_compiler
from sparkwright.native.model import Configuration, Inputs, Target, Toolchain, Unit
from sparkwright.native.units import UnitFiles
from sparkwright.store import open_store
from sparkwright.store.remote import RemoteSettings, open_remote


@dataclass(frozen=True)
class Packed:
    """The units of FOLDER, ready to be compiled on this machine.

    Attributes:
        folder: FOLDER.
        units: the units.
        costs: seconds of CPU time and MiB by name, as learned where they were packed.
        lock: the release's, with these costs.
        inputs: tree and toolchain.
        known: the units and their files.
        scratch: for stores and the like.
    """

    folder: Path
    units: tuple[Unit, ...]
    costs: dict[str, tuple[float, int]]
    lock: Lock
    inputs: Inputs
    known: Configured
    scratch: Path

    def builder(self, name: str, jobs: int, url: str = "") -> Builder:
        """Return a builder with an empty store called *name*, behind the server at *url* if one is given."""
        key = self.scratch / "key.pem"
        remote = open_remote(RemoteSettings(url=url, key_file=key)) if url else None
        store = open_store(self.scratch / "stores" / name, remote)
        repository = open_repository(self.scratch / "git")
        logs = self.scratch / "logs" / name
        return Builder(store, repository, self.lock, require_native(self.lock), logs, jobs=jobs)


def toolkit_root() -> Path:
    """Return the folder of the installed toolkit whose nvcc is on PATH, by nvcc's own word."""
    done = subprocess.run(
        ["nvcc", "--dryrun", "-c", "-x", "cu", os.devnull], check=False, stderr=subprocess.PIPE, text=True
    )
    found = re.search(r"^#\$ _HERE_=(.+)$", done.stderr, re.MULTILINE)
    if found is None:
        raise SystemExit("nvcc is not on PATH, or does not say where it is")
    return Path(found[1]).resolve().parent


def lay_out_toolchain(folder: Path, place: Path, lock: Lock, target: Target) -> Toolchain:
    """Return the toolchain of this machine's nvcc and g++, and of the headers in *folder*."""
    cuda, root = place / "cuda", toolkit_root()
    if not cuda.is_dir():
        for name in ("bin", "nvvm"):
            link_tree(root / name, cuda / name)
        link_tree(folder / "cuda", cuda / "include")
        link_tree(root / "include", cuda / "include")
        for name in target_folders(target.machine):
            (cuda / "targets" / name).mkdir(parents=True)
            (cuda / "targets" / name / "include").symlink_to("../../include")
    compiler = find_compiler(target, require_native(lock).oldest_gxx)
    version = subprocess.run([cuda / "bin/nvcc", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    parts = {"nvcc": version.stdout.strip().splitlines()[-1], **compiler.banners}
    nowhere = Path(os.devnull)
    return Toolchain(
        cuda=cuda, torch=folder / "torch", stand_in=place, cc=compiler.cc, cxx=compiler.cxx,
        cmake=nowhere, ninja=Path(shutil.which("ninja") or "ninja"), cuobjdump=nowhere,
        python=Path(sys.executable), python_include=folder / "python", cross=False,
        key=digest_of(parts), parts=parts, headers=compiler.headers,
    )  # fmt: skip


def open_packed(folder: Path, scratch: Path, number: int | None = None) -> Packed:
    """Return the first *number* units of *folder*, with their tree in a repository in *scratch*."""
    told = json.loads((folder / "units.json").read_text())
    units = tuple(msgspec.convert(unit, Unit) for unit in told["units"][:number])
    costs = {unit.name: (told["costs"][unit.name][0], told["costs"][unit.name][1]) for unit in units}
    lock = read_lock(folder / "upstream.lock")
    lock = msgspec.structs.replace(lock, native=msgspec.structs.replace(require_native(lock), costs=costs))
    target = Target(platform.machine(), told["arch"])
    chain = lay_out_toolchain(folder, scratch, lock, target)
    with contextlib.closing(open_repository(scratch / "git")) as repository:
        if not repository.has(told["tree"]):
            unpack_tree(repository, folder / "tree.pack", told["tree"])
        blobs = {path: entry.blob for path, entry in repository.files(told["tree"]).items()}
    configuration = Configuration(units=units, links=(), generated={})
    known = Configured(configuration, told["tree"], UnitFiles(blobs))
    return Packed(folder, units, costs, lock, Inputs(told["tree"], {}, chain, target), known, scratch)
