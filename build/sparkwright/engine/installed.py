"""Read a vLLM's version, carries, kernels and known architectures, without importing any of it."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from msgspec import structs

from sparkwright.base.errors import ArchiveError, ProcessError, ServerError, ToolError, WheelError
from sparkwright.base.process.run import run
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.recorded import read_record

REGISTRY = "vllm/model_executor/models/registry.py"
COMPANION = "flashinfer-jit-cache"
"""FlashInfer's packages of kernels, whose names begin so; a companion is one of them."""
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
LOADERS = ("fastsafetensors", "instanttensor")
"""Ways to load weights that are packages of their own, by the names of both."""
_PACKAGES = ("torch", "triton", "flashinfer-python", "flashinfer-cubin", *NCCL, *LOADERS)
_ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, distribution, distributions
found = distribution("vllm")
def version(name):
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return ""
try:
    registry = open(found.locate_file(sys.argv[1]), encoding="utf-8").read()
except OSError:
    registry = ""
kernels = [one for one in distributions() if (one.name or "").startswith("flashinfer-jit-cache")]
kernels.sort(key=lambda one: not one.read_text("sparkwright/companion.json"))
companion = (kernels[0].read_text("sparkwright/companion.json") if kernels else "") or ""
print(json.dumps({
    "companion": companion,
    "version": found.version,
    "machine": platform.machine(),
    "carries": found.read_text("sparkwright/carries.json") or "",
    "kernels": found.read_text("sparkwright/kernels.json") or "",
    "record": found.read_text("RECORD") or "",
    "packages": {
        "flashinfer-jit-cache": kernels[0].version if kernels else "",
        **{name: version(name) for name in sys.argv[2:]},
    },
    "registry": registry,
}))
"""
_ARCHITECTURE = re.compile(r'^    "([A-Z]\w+)":', re.MULTILINE)
_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_MERGED = {"applied", "conflict-in-tests-or-docs"}


@dataclass(frozen=True)
class EngineFacts:
    """A vLLM, installed or as a wheel.

    Attributes:
        version: its version, local part included; empty where unknown.
        machine: the machine that it is for; empty where it names none.
        codes: device code that its compiled kernels were made for, such as ``sm_121a``; empty for a wheel
            with upstream's, which are for many cards.
        packages: versions of packages beside it, by name; empty for a wheel.
        architectures: models that it knows; empty where that cannot be read.
        files: digest of the wheel's list of files, the same before and after it is installed; empty where it
            cannot be read.
        companion_lacks: kernels that the companion beside it lacks, by the recipes that it knows; ``*``
            stands for every other recipe.
        companion_arch: the card that it is for, such as ``12.1a``; empty if no companion is installed.
    """

    version: str = ""
    machine: str = ""
    carries: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    packages: Mapping[str, str] = field(default_factory=dict)
    architectures: frozenset[str] = frozenset()
    files: str = ""
    companion_lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    companion_arch: str = ""

    @property
    def installed(self) -> bool:
        """Tell if it is installed, so that the packages beside it are known."""
        return bool(self.packages)

    @property
    def companion_of(self) -> str:
        """The version of FlashInfer that the kernels beside it are for; FlashInfer takes those of its own."""
        return self.packages.get(COMPANION, "").partition("+")[0]

    @property
    def nccl(self) -> str:
        """The version of NCCL beside it; empty where there is none or it is not known."""
        return next((self.packages[name] for name in NCCL if self.packages.get(name)), "")


def read_installed(python: Path) -> EngineFacts:
    """Return the facts about the vLLM of the interpreter *python*.

    Raises:
        ServerError: it has none, cannot be run, or the wheel's record of carries is broken.
    """
    try:
        found = json.loads(run([python, "-c", _ASK, REGISTRY, *_PACKAGES], timeout=60).text)
    except (ProcessError, ToolError, ValueError) as error:
        because = error.because if isinstance(error, (ProcessError, ToolError)) else str(error)
        raise ServerError(
            f"{python} has no vLLM",
            because=because.strip().rpartition("\n")[2],
            next_step="name the interpreter of an environment that has it, or a wheel",
        ) from error
    try:
        listed = json.loads(found["carries"] or '{"carries": []}')["carries"]
        carries = frozenset(str(one["name"]) for one in listed if one["outcome"] in _MERGED)
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"the record of carries in vLLM's wheel at {python} cannot be read",
            because=repr(error),
            next_step="install the wheel again; `sparkwright audit` checks it",
        ) from error
    companion = _parsed(found["companion"])
    return EngineFacts(
        version=str(found["version"]),
        machine=str(found["machine"]),
        carries=carries,
        codes=_asked(_parsed(found["kernels"]).get("binaries", [])),
        packages=found["packages"],
        architectures=frozenset(_ARCHITECTURE.findall(found["registry"])),
        files=files_digest(found["record"]),
        companion_lacks=_lacking(companion),
        companion_arch=str(companion.get("target", {}).get("arch", "")),
    )


def files_digest(record: str) -> str:
    """Return the digest of the files of vLLM in *record*, a wheel's or an installation's RECORD.

    Lines that installers add or change are left out: those of scripts, of metadata and without a digest.
    """
    rows = [row for row in csv.reader(record.splitlines()) if len(row) == 3]  # noqa: PLR2004 - PEP 376
    kept = sorted(f"{path},{digest}" for path, digest, _ in rows if path.startswith("vllm/") and digest)
    return hashlib.sha256("\n".join(kept).encode()).hexdigest() if kept else ""


def read_wheel(wheel: Path) -> EngineFacts:
    """Return the facts about a *wheel* of vLLM.

    Raises:
        WheelError: its name is not a wheel's.
        ArchiveError: it is damaged.
    """
    name = parse_name(wheel.name)
    try:
        record = read_record(wheel)
    except WheelError:
        record = None  # another project's wheel
    try:
        with ZipFile(wheel) as archive:
            texts = {
                member: archive.read(member).decode()
                for member in (REGISTRY, f"{name.dist_info}/RECORD")
                if member in archive.namelist()
            }
    except (BadZipFile, OSError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{wheel.name} cannot be read", because=str(error)) from error
    kernels = record.kernels if record else None
    return EngineFacts(
        version=name.version,
        machine=name.machine,
        carries=frozenset(carry.name for carry in record.carries if carry.outcome in _MERGED)
        if record
        else frozenset(),
        codes=_asked([structs.asdict(binary) for binary in kernels.binaries]) if kernels else frozenset(),
        architectures=frozenset(_ARCHITECTURE.findall(texts.get(REGISTRY, ""))),
        files=files_digest(texts.get(f"{name.dist_info}/RECORD", "")),
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lacking(companion: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the kernels that a companion lacks for each recipe that its record names."""
    listed = {one.get("listed") for one in companion.get("modules", {}).values()}
    return {
        str(recipe): tuple(str(name) for name in needs if name not in listed)
        for recipe, needs in companion.get("recipes", {}).items()
    }


def _asked(binaries: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the device code that every compiled binary was made for."""
    compiled = [set(one.get("asked", {})) for one in binaries if one.get("kernels") == "compiled"]
    return frozenset(set.union(*compiled)) if compiled else frozenset()


def runs_on(code: str, capability: str) -> bool:
    """Tell if device *code*, such as ``sm_121a`` or ``compute_90``, runs on a card of *capability*."""
    match = _CODE.fullmatch(code)
    major, _, minor = capability.partition(".")
    if match is None or not (major.isdecimal() and minor.isdecimal()):
        return True  # not known here
    kind, code_major, code_minor, suffix = match.groups()
    made_for, card = (int(code_major), int(code_minor)), (int(major), int(minor))
    if suffix == "a":
        return made_for == card
    if suffix == "f" or kind == "sm":
        return made_for[0] == card[0] and made_for[1] <= card[1]
    return made_for <= card
