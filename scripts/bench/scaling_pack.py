"""Pack units of a release for `scaling.py`, which measures on a machine without a network.

The merged tree is configured here. The commands of the units that take the least CPU time by the lock's
table go into FOLDER, with that tree and the headers of CUDA, torch and Python: a machine that has nvcc, g++,
git and Python can compile them from that.

    python scripts/bench/scaling_pack.py FOLDER [--units 24] [--arch 9.0a] [--python 3.12]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.config import to_builtins
from sparkwright.git import open_repository, pack_tree
from sparkwright.native.build import configured
from sparkwright.pipeline import apply, make_job, open_checkout
from sparkwright.pipeline.kernels import builder_of, inputs_of
from sparkwright.pipeline.options import BuildOptions
from sparkwright.store import open_store

if TYPE_CHECKING:
    from sparkwright.native.build import Builder, Configured
    from sparkwright.native.model import Unit

_PLATFORM = "x86_64"


def cheapest(builder: Builder, known: Configured, number: int) -> list[Unit]:
    """Return the *number* units with the least seconds in the lock's table, in CMake's order."""
    costs = builder.native.costs
    rated = [unit for unit in known.configuration.units if unit.name in costs]
    chosen = sorted(rated, key=lambda unit: costs[unit.name][0])[:number]
    return [unit for unit in known.configuration.units if unit in chosen]


def pack(folder: Path, number: int, arch: str, python: str) -> None:
    """Write everything that `scaling.py` needs into *folder*."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = open_store()
    with contextlib.closing(open_repository(store.git)) as repository:
        options = BuildOptions(kernels="native", platform=_PLATFORM, arch=arch)
        checkout = open_checkout(Path(__file__).parent)
        job = make_job(checkout, store, repository, options)
        state = apply(job, until=lambda step: step.name == "toolchain")
        builder, inputs = builder_of(job), inputs_of(job, state)
        known = configured(builder, inputs)
        units = cheapest(builder, known, number)
        pack_tree(repository, known.tree, folder / "tree.pack")
    told = {
        "release": job.spec.lock.release.version,
        "arch": arch,
        "tree": known.tree,
        "units": [to_builtins(unit) for unit in units],
        "costs": {unit.name: builder.native.costs[unit.name] for unit in units},
    }
    (folder / "units.json").write_text(json.dumps(told, indent=1))
    shutil.copy(checkout.lock_path, folder / "upstream.lock")
    shutil.copytree(inputs.toolchain.cuda / "include", folder / "cuda")
    shutil.copytree(inputs.toolchain.torch / "include", folder / "torch" / "include")
    shutil.copytree(python_headers(python), folder / "python")


def python_headers(version: str) -> Path:
    """Return the folder with the headers of that Python, which has to be installed here."""
    script = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([f"python{version}", "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def main() -> None:
    """Read the options and pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--units", type=int, default=24)
    parser.add_argument("--arch", default="9.0a")
    parser.add_argument("--python", default="3.12", help="version whose headers are packed")
    chosen = parser.parse_args()
    pack(chosen.folder.absolute(), chosen.units, chosen.arch, chosen.python)


if __name__ == "__main__":
    main()
