"""Variables by which vLLM takes FlashInfer's kernels, and FlashInfer compiles no more at once than fits.

vLLM takes FlashInfer's kernels for NVFP4 layers and experts only where ``has_flashinfer()`` of
``vllm/utils/flashinfer.py`` is true: with the package ``flashinfer-cubin``, with VLLM_HAS_FLASHINFER_CUBIN,
or with ``nvcc`` (0.33: and ``ninja``) found. It does not look for a companion. The runtime of 0.24 has
``flashinfer-cubin``, that of 0.33 has not.

On 12.x the variable decides more. 0.33 decodes drafts by XQA, with whole CUDA graphs, only if NVIDIA's
server answers a request at the start, or the variable is set. XQA is compiled or comes in a companion; that
server has nothing of it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from sparkwright.engine.installed import EngineFacts
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.engine.server.jobs import COMPILER_GIB, JOBS

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

    Args:
        python: the interpreter that serves.
        environment: variables of the server.
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

    Args:
        requirements: the locked runtime.
        environment: variables of the server.
        capability: of the card, such as ``12.1``.
        complete: a companion has every kernel that the recipe needs on this card.
    """
    locked = set(_LOCKED.findall(requirements.text))
    if "flashinfer-python" not in locked or "flashinfer-cubin" in locked:
        return {}
    return _told(environment, capability, complete=complete, ninja="ninja" in locked)


def installed_variables(
    engine: EngineFacts, recipe: str, capability: str, environment: Mapping[str, str], python: Path
) -> dict[str, str]:
    """Return the same as `cubin_variables` for an environment that is made already.

    Args:
        engine: facts about it.
        recipe: name of the recipe.
        capability: of the card, such as ``12.1``.
        environment: variables of the server.
        python: its interpreter.
    """
    if not engine.packages.get("flashinfer-python") or engine.packages.get("flashinfer-cubin"):
        return {}
    for_card = bool(capability) and engine.companion_arch.rstrip("af") == capability
    complete = for_card and engine.companion_lacks.get(recipe) == ()
    ninja = (python.parent / "ninja").exists()
    return _told(environment, capability, complete=complete, ninja=ninja)


def _told(environment: Mapping[str, str], capability: str, *, complete: bool, ninja: bool) -> dict[str, str]:
    path = environment.get("PATH", os.defpath)
    compiles = has_nvcc(environment) and (ninja or shutil.which("ninja", path=path) is not None)
    useful = complete or compiles if capability.startswith(_XQA) else complete and not compiles
    return {CUBIN: "1"} if useful and CUBIN not in environment else {}


def has_nvcc(environment: Mapping[str, str]) -> bool:
    """Tell if FlashInfer finds ``nvcc``: in CUDA_HOME or CUDA_PATH, else on PATH or in /usr/local/cuda."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if not named and shutil.which("nvcc", path=environment.get("PATH", os.defpath)):
        return True
    return os.access((Path(named) if named else _CUDA) / "bin" / "nvcc", os.X_OK)
