"""FlashInfer's kernels for a server: its companion, variables by which vLLM takes them, compilers.

A companion is a wheel with kernels that were compiled ahead of time, installed beside the served wheel.

vLLM takes FlashInfer's kernels for NVFP4 layers and experts only where ``has_flashinfer()`` of
``vllm/utils/flashinfer.py`` is true: with the package ``flashinfer-cubin``, with VLLM_HAS_FLASHINFER_CUBIN,
or with ``nvcc`` (0.33: and ``ninja``) found. It does not look for a companion. The runtime of 0.24 has
``flashinfer-cubin``, that of 0.33 has not.

On 12.x the variable decides more. 0.33 decodes drafts by XQA, with whole CUDA graphs, only if NVIDIA's
server answers a request at the start, or the variable is set. XQA is compiled or comes in a companion; that
server has nothing of it.

FlashInfer gives ninja a number of compilers only by MAX_JOBS. Without it ninja starts two more than there are
cores: 22 on a GB10, whose memory holds the model too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from sparkwright.base.digests import sha256_file
from sparkwright.base.machine import card_capability, card_fields, look
from sparkwright.companion.model import CompanionSpec, load_companion
from sparkwright.companion.wheel import companion_for, read_companion
from sparkwright.engine.installed import EngineFacts
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.lock.model import series_of
from sparkwright.native.model import Target
from sparkwright.publish.index import require_listed, wheels_in
from sparkwright.publish.reader import ChannelOffer
from sparkwright.recipes.recipe import Recipe
from sparkwright.wheel.names import parse_name

LISTS = "companions"
"""Folder of the series' lists, in the folder of the patchsets."""
_SUFFIXES = {"9.0": "a", "10.0": "a", "10.3": "a", "11.0": "a", "12.0": "f", "12.1": "a"}
"""Suffix of nvcc's architecture by compute capability: ``a`` for that card alone, ``f`` for its family."""
_FLASHINFER = re.compile(r"^flashinfer-python==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class CompanionChoice:
    """A companion for a wheel, and the modules that it lacks.

    Attributes:
        wheel: the companion; `None` if none has a needed kernel, or none is needed.
        missing: names of modules that FlashInfer will compile while the engine starts or serves.
        listed: the recipe's model is listed, so that all modules that it needs are known.
    """

    wheel: Path | None = None
    missing: tuple[str, ...] = ()
    listed: bool = False


def choose_companion(
    wheel: Path, recipe: Recipe, capability: str, folders: Iterable[Path], patchsets: Path | None
) -> CompanionChoice:
    """Return the companion in *folders* with most kernels that *recipe* needs on a card of *capability*.

    Without a card, nothing is needed.
    """
    spec = _spec(wheel, patchsets)
    if spec is None or not capability:
        return CompanionChoice()
    target = Target(parse_name(wheel.name).machine, arch_of(capability))
    needed = [*spec.needed(target.arch, recipe)]
    if not needed:
        return CompanionChoice()
    offered = [one for folder in dict.fromkeys(folders) if folder.is_dir() for one in wheels_in(folder)]
    listed = spec.knows(recipe)
    found = companion_for(offered, spec.version, target, lambda _: needed)
    if found is None:
        return CompanionChoice(missing=tuple(needed), listed=listed)
    return CompanionChoice(found.wheel, found.missing, listed)


def choose_of_channel(
    offer: ChannelOffer, recipe: Recipe, capability: str, requirements: ExactRequirements
) -> CompanionChoice:
    """Return the companion of a channel with most kernels that *recipe* needs, by the companions' records."""
    version = _FLASHINFER.search(requirements.text)
    if not capability or version is None:
        return CompanionChoice()
    target = Target(parse_name(offer.wheel.name).machine, arch_of(capability))
    found = offer.companion(recipe.name, version[1], target)
    if found is None:
        return CompanionChoice(missing=("the recipe's kernels",))
    listed = recipe.name in read_companion(found.wheel)["recipes"]
    return CompanionChoice(found.wheel, found.missing, listed)


def arch_of(capability: str) -> str:
    """Return the architecture that kernels for a card of *capability* are compiled for: ``12.1a``."""
    return capability + _SUFFIXES.get(capability, "")


def build_command(version: str, machine: str, capability: str, recipe: str) -> str:
    """Return the command that compiles the kernels of *recipe* for a card of *capability*."""
    series = f"--series {series_of(version)} " if version else ""
    target = f"--platform {machine} --arch {arch_of(capability)}"
    return f"sparkwright companion {series}{target} --recipe {recipe}"


def _spec(wheel: Path, patchsets: Path | None) -> CompanionSpec | None:
    """Return the list of kernels of the wheel's series; `None` where there is none."""
    if patchsets is None:
        return None
    path = patchsets / LISTS / f"{series_of(parse_name(wheel.name).version)}.toml"
    return load_companion(path) if path.is_file() else None


def with_companion(requirements: ExactRequirements, companion: Path) -> ExactRequirements:
    """Return *requirements* with the wheel *companion*, by its digest.

    Raises:
        DigestError: the index beside it lists it with another one.
    """
    project = parse_name(companion.name).distribution.replace("_", "-")
    sha256 = sha256_file(companion)
    require_listed(companion, sha256)
    line = f"{project} @ {companion.absolute().as_uri()} --hash=sha256:{sha256}\n"
    return replace(requirements, text=requirements.text + line)


JOBS = "MAX_JOBS"
COMPILER_GIB = 11.0
"""The most that one of FlashInfer's compilers was seen to take, rounded up; see docs/companion.md."""
_RESERVE_GIB = 4.0  # of the host
_USUAL_SHARE = 0.92  # vLLM 0.33's default; 0.24's is 0.9
_GIB = 1 << 30


def compilers_at_once(
    recipe: Recipe, *, cores: int, available_gib: float, total_gib: float, shared: bool
) -> int:
    """Return how many compilers fit beside the server of *recipe*; at least one."""
    share = recipe.flags.get("gpu-memory-utilization", _USUAL_SHARE)
    taken = float(share) * total_gib if shared else 0.0
    return max(1, min(cores, int((available_gib - taken - _RESERVE_GIB) // COMPILER_GIB)))


def jobs_variable(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    """Return MAX_JOBS for the server of *recipe*; nothing without a card, or where *environment* has it."""
    if JOBS in environment or not card_capability():
        return {}
    machine = look()
    (own,) = card_fields("memory.total") or ("",)
    fitting = compilers_at_once(
        recipe,
        cores=machine.cores,
        available_gib=machine.available_mib / 1024,
        total_gib=psutil.virtual_memory().total / _GIB,
        shared=not own[:1].isdecimal(),
    )
    return {JOBS: str(fitting)}


CUBIN = "VLLM_HAS_FLASHINFER_CUBIN"
REASONS: Mapping[str, str] = {
    JOBS: f"FlashInfer's compilers at once, each of {COMPILER_GIB:.0f} GiB, beside the share of the server",
    CUBIN: "FlashInfer's kernels can be had here: vLLM asks neither for nvcc nor for NVIDIA's server first",
    "PATH": "FlashInfer compiles with the environment's ninja, and vLLM 0.33 leaves it out without one",
}
_CUDA = Path("/usr/local/cuda")
_LOCKED = re.compile(r"^(flashinfer-python|flashinfer-cubin|ninja)\b", re.MULTILINE)
_XQA = "12."  # capabilities


def environment_path(python: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return PATH with the folder of *python* in front, as activating its environment sets it.

    Nothing where the folder is in it already, or has no ``ninja``.
    """
    folder, path = str(python.parent), environment.get("PATH", os.defpath)
    if folder in path.split(os.pathsep) or not (python.parent / "ninja").exists():
        return {}
    return {"PATH": os.pathsep.join([folder, path])}


def cubin_variables(
    requirements: ExactRequirements, environment: Mapping[str, str], *, capability: str, complete: bool
) -> dict[str, str]:
    """Return the variable by which vLLM takes FlashInfer's kernels; nothing where it takes them anyway.

    With a kernel missing that cannot be compiled, or none of FlashInfer's packages locked, it is left out.

    *complete* says that a companion has every kernel that the recipe needs on this card.
    """
    locked = set(_LOCKED.findall(requirements.text))
    if "flashinfer-python" not in locked or "flashinfer-cubin" in locked:
        return {}
    return _told(environment, capability, complete=complete, ninja="ninja" in locked)


def installed_variables(
    engine: EngineFacts, recipe: str, capability: str, environment: Mapping[str, str], python: Path
) -> dict[str, str]:
    """Return the same as `cubin_variables` for an environment that is made already."""
    if not engine.packages.get("flashinfer-python") or engine.packages.get("flashinfer-cubin"):
        return {}
    for_card = bool(capability) and engine.companion_arch.rstrip("af") == capability
    taken = for_card and engine.companion_of == engine.packages["flashinfer-python"]
    complete = taken and engine.companion_lacks.get(recipe) == ()
    ninja = (python.parent / "ninja").exists()
    return _told(environment, capability, complete=complete, ninja=ninja)


def _told(environment: Mapping[str, str], capability: str, *, complete: bool, ninja: bool) -> dict[str, str]:
    path = environment.get("PATH", os.defpath)
    compiles = bool(find_nvcc(environment)) and (ninja or shutil.which("ninja", path=path) is not None)
    useful = complete or compiles if capability.startswith(_XQA) else complete and not compiles
    return {CUBIN: "1"} if useful and CUBIN not in environment else {}


def find_nvcc(environment: Mapping[str, str]) -> str:
    """Return ``nvcc`` as FlashInfer finds it: in CUDA_HOME or CUDA_PATH, else on PATH or in /usr/local/cuda.

    Empty where it is not there.
    """
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    search = f"{named}/bin" if named else f"{environment.get('PATH', os.defpath)}{os.pathsep}{_CUDA}/bin"
    return shutil.which("nvcc", path=search) or ""
