"""Installed trees: upstream's wheel for the CPU with other Python files, ready to be served.

A tree is a virtual environment of its own that holds vLLM alone and lies over the environment with everything
else. Files are links to those of the unpacked wheel, so that a tree costs a second and a few megabytes, and
patched and unpatched servers start from the same packages. Bytecode is validated by its source's digest
(PEP 552), not by times, so that none can be stale; of files that a tree replaces, none is taken over.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError, RehearsalError
from sparkwright.base.events import task, warn
from sparkwright.base.process.run import install_packages, make_venv, run, uv_program
from sparkwright.git.trees import blob_id, make_read_only
from sparkwright.lock.model import Artifact, Package
from sparkwright.native.packages import unpack_package
from sparkwright.pipeline.job import Job
from sparkwright.probe.environment import fingerprint, make_once
from sparkwright.probe.environment import prepare_environment as prepare_probes
from sparkwright.probe.environment import requirements as probes_requirements
from sparkwright.rehearsal.model import PACKAGE, ServedTree
from sparkwright.rehearsal.stock import PROJECT, pin_of, prepare_model, require_wheel, write_recipe
from sparkwright.store.disk import remove_tree
from sparkwright.store.paths import Store

# Part of the key: raised when a tree is laid out otherwise.
_RULES = 1
_KIND = "served-tree"
_DIFFERING = "cpu-wheel-differences"


def prepare(job: Job, changes: Mapping[str, bytes | None], version: str) -> ServedTree:
    """Return upstream's wheel of *version* for the CPU with *changes* laid over it, ready to be served.

    Environment, model and unpacked wheel are shared by all trees; only what *changes* name is new.

    *changes* are new contents of files of that release, `None` for a removed one; those of ``vllm/`` count.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        NotInStoreError: one of them is not in the store, and the network is off.
        DigestError: a file is not the one that the lock or an earlier look at the index names.
    """
    artifact = require_wheel(job, version)
    package = Package(filename=artifact.filename, sha256=artifact.sha256, size=artifact.size)
    stock = unpack_package(job.access, package)
    wanted = read_requirements(_metadata(stock, artifact))
    base = prepare_environment(job.store, wanted, offline=job.access.settings.offline)
    model = prepare_model(job.access, pin_of(job).model, base)
    own = {path: data for path, data in sorted(changes.items()) if path.startswith(PACKAGE)}
    kept = frozenset(own) & _differing(job, artifact, stock, version) if own else frozenset()
    layers = _Layers(job.store, stock, base, version)
    folder = layers.tree({path: data for path, data in own.items() if path not in kept})
    return ServedTree(
        python=folder / "bin" / "python",
        key=folder.name,
        version=version,
        recipe=write_recipe(job.store, model),
        kept=tuple(sorted(kept)),
    )


def _metadata(stock: Path, artifact: Artifact) -> bytes:
    found = sorted(stock.glob("*.dist-info/METADATA"))
    if len(found) != 1:
        raise RehearsalError(
            f"{artifact.filename} cannot be installed",
            because="it has no METADATA",
            next_step=f"name another wheel of {PROJECT} in the lock, [rehearsal]",
        )
    return found[0].read_bytes()


def _differing(job: Job, artifact: Artifact, stock: Path, version: str) -> frozenset[str]:
    """Return files that the wheel for the CPU has in a form of its own, or that the release lacks.

    Its vendor changes how the platform is found; a merged file would undo that.
    """
    tree = release_tree(job, version)
    key = digest_of([artifact.sha256, tree])
    if (record := job.store.find_record(_DIFFERING, key)) is not None:
        return frozenset(record["files"])
    released = {path: entry.blob for path, entry in job.repository.files(tree).items()}
    found = []
    for path in stock.joinpath(PACKAGE).rglob("*"):
        name = path.relative_to(stock).as_posix()
        if path.is_file() and name in released and blob_id(path.read_bytes()) != released[name]:
            found.append(name)
    job.store.put_record(_DIFFERING, key, {"files": sorted(found)})
    return frozenset(found)


def release_tree(job: Job, version: str) -> str:
    """Return the git id of the tree of the release *version*, as upstream has it."""
    if version == job.spec.lock.release.version:
        return job.pristine.tree
    return job.source.release(version).tree


@dataclass(frozen=True)
class _Layers:
    """The parts that all trees of one wheel share.

    Attributes:
        stock: the unpacked wheel.
        base: interpreter of the environment with everything but vLLM.
    """

    store: Store
    stock: Path
    base: Path
    version: str

    def tree(self, changes: Mapping[str, bytes | None]) -> Path:
        """Return the folder of the tree with *changes*; made once, remade when it was touched."""
        digests = {path: None if data is None else sha256_bytes(data) for path, data in changes.items()}
        key = digest_of([_RULES, self.stock.name, self.base.parents[1].name, digests])[:16]
        folder = self.store.environments / key
        like = self.tree({}) if changes else None
        with self.store.lock(f"served-{key}", "an installed tree"):
            if folder.is_dir():
                record = self.store.find_record(_KIND, key)
                if record is None or record.get("fingerprint") != fingerprint(folder):
                    warn(f"the installed tree {key} was changed or is not complete; it is made again")
                elif self.store.claim(folder):
                    return folder
            # A virtual environment cannot be renamed: killed in between, it has no record and is made again.
            remove_tree(folder)
            with task(f"install vllm {self.version} for the CPU with {len(changes)} changed files"):
                make_venv(folder)
                self._fill(folder, changes, like)
                make_read_only(folder)
                self.store.put_record(_KIND, key, {"fingerprint": fingerprint(folder)})
        return folder

    def _fill(self, folder: Path, changes: Mapping[str, bytes | None], like: Path | None) -> None:
        packages = site_packages(folder / "bin" / "python")
        source = self.stock if like is None else site_packages(like / "bin" / "python")
        _link_tree(source / PACKAGE, packages / PACKAGE, leave={packages / path for path in changes})
        for path, data in changes.items():
            if data is not None:
                target = packages / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        add_below(packages, site_packages(self.base))
        self._describe(packages, folder.name)
        written = [packages / path for path, data in changes.items() if data is not None]
        compiling: list[str | Path] = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
        if sources := [packages / PACKAGE] if like is None else written:
            # A file that cannot be compiled is reported by the server that imports it.
            run([folder / "bin" / "python", *compiling, *sources], accept=(0, 1))

    def _describe(self, packages: Path, key: str) -> None:
        """Write metadata as vLLM looks itself up: by its own name, and with ``cpu`` in the version."""
        info = packages / f"vllm-{self.version}+cpu.{key[:8]}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.version}+cpu.{key[:8]}\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
        for points in self.stock.glob("*.dist-info/entry_points.txt"):
            (info / "entry_points.txt").write_bytes(points.read_bytes())


def _link_tree(source: Path, target: Path, *, leave: set[Path]) -> None:
    """Link every file below *source* at its place below *target*, but those to *leave* and their bytecode."""
    stems = {(path.parent, path.stem) for path in leave}
    for parent, _, names in os.walk(source):
        place = target / Path(parent).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            stale = place.name == "__pycache__" and (place.parent, name.partition(".")[0]) in stems
            if place / name not in leave and not stale:
                os.link(os.path.join(parent, name), place / name)  # noqa: PTH118 - thousands of files


# The environment ----------------------------------------------------------------------------------

# Where the wheel wants the torch that probes have, the environment lies over theirs and holds only what
# differs. It does not hold vLLM itself, which a tree holds.

# For pictures and sound. Their packages are compiled for one torch each, and a model of text wants none.
_LEFT_OUT = frozenset({"torchaudio", "torchvision", "torchcodec"})
_READERS = ("accelerate", "gguf")
_LIMIT_S = 3600.0
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Requirements:
    """The packages of an environment.

    Attributes:
        lines: requirements in pip's format, sorted; torch is among them.
        torch: the exact version of torch, without a local part.
    """

    lines: tuple[str, ...]
    torch: str

    @property
    def shares(self) -> bool:
        """True if the environment for probes has that torch."""
        return f"torch=={self.torch}" in probes_requirements().splitlines()


def read_requirements(metadata: bytes) -> Requirements:
    """Return the requirements that a wheel's ``METADATA`` states for this machine.

    A local part such as ``+cpu`` is dropped: the package index has the release alone.
    """
    lines, torch = set(_READERS), ""
    for text in message_from_bytes(metadata).get_all("Requires-Dist") or ():
        requirement = Requirement(text)
        if requirement.name in _LEFT_OUT:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        line = str(requirement)
        if requirement.name == "torch":
            line = line.partition("+")[0]
            torch = line.partition("==")[2]
        lines.add(line)
    if not torch:
        raise RehearsalError(
            "the wheel for the CPU cannot be installed",
            because="it requires no exact version of torch",
            next_step="rehearse on another release",
        )
    return Requirements(tuple(sorted(lines)), torch)


def environment_key(wanted: Requirements) -> str:
    """Return the name of the environment's folder: digest of its contents, machine and interpreter."""
    below = probes_requirements() if wanted.shares else ""
    return digest_of([wanted.lines, below, sys.version, sysconfig.get_platform()])[:16]


def prepare_environment(store: Store, wanted: Requirements, *, offline: bool = False) -> Path:
    """Return the environment's interpreter; the environment is made when it is not there yet.

    Raises:
        RehearsalError: it is not there and the network is off, or a package could not be installed.
        EnvironmentSetupError: the environment for probes, which it lies over, could not be made.
        NotInStoreError: the same, with the network off.
    """
    below = prepare_probes(store, offline=offline) if wanted.shares else None

    def fill(python: Path, listed: Path) -> str:
        listed.write_text("\n".join(wanted.lines) + "\n", encoding="utf-8")
        words: list[str | Path] = ["--requirement", listed]
        if below is not None:
            add_below(site_packages(python), site_packages(below))
            words = _without_those_below(listed)
        install_packages(python, words)
        return ""

    try:
        return make_once(store, environment_key(wanted), "rehearsals", fill, offline=offline)
    except (EnvironmentSetupError, NotInStoreError) as error:
        raise RehearsalError(error.what, because=error.because, next_step=error.next_step) from error


def site_packages(python: Path) -> Path:
    """Return the folder of packages of the environment that *python* is in."""
    return python.parents[1] / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def add_below(folder: Path, below: Path) -> None:
    """Let the packages in *below* be found after those in *folder*, with their own ``.pth`` files."""
    (folder / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n", encoding="utf-8")


def _without_those_below(listed: Path) -> list[str | Path]:
    """Return the arguments of an installer for what *listed* requires and the environment for probes lacks.

    uv looks at an environment's own folder alone.
    """
    resolved = listed.with_suffix(".resolved.txt")
    below = probes_requirements()
    resolved.write_text(below, encoding="utf-8")  # uv prefers the versions of an earlier answer
    words = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", _PYTHON]
    run([uv_program(), *words, "--output-file", resolved, listed], timeout=_LIMIT_S)
    known = {_pinned(line) for line in below.splitlines()}
    lines = resolved.read_text(encoding="utf-8").splitlines()
    resolved.write_text(
        "".join(f"{line}\n" for line in lines if _pinned(line) not in known), encoding="utf-8"
    )
    return ["--no-deps", "--requirement", resolved]


def _pinned(line: str) -> tuple[str, str]:
    """Return the normalized name and the version that a line of exact requirements states."""
    name, _, version = line.partition(";")[0].strip().partition("==")
    return canonicalize_name(name.partition("[")[0]), version.strip()
