"""Variables with which vLLM takes FlashInfer's kernels from a companion on a machine without their compilers.

vLLM takes FlashInfer's kernels for NVFP4 layers and experts only where ``has_flashinfer()`` of
``vllm/utils/flashinfer.py`` is true: with the package ``flashinfer-cubin``, with VLLM_HAS_FLASHINFER_CUBIN,
or with ``nvcc`` (0.33: and ``ninja``) found. It does not look for a companion. The runtime of 0.24 has
``flashinfer-cubin``, that of 0.33 has not. The variable also makes 0.33 decode by XQA on 12.x, so that a
companion is complete with its kernels alone.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.serve.preflight import EngineFacts
    from sparkwright.serve.runtime import ExactRequirements

CUBIN = "VLLM_HAS_FLASHINFER_CUBIN"
REASONS: Mapping[str, str] = {
    CUBIN: "the companion has the kernels, and vLLM would not look for them where nvcc is missing",
    "PATH": "FlashInfer compiles with the environment's ninja, and vLLM 0.33 leaves it out without one",
}
_COMPILERS = ("nvcc", "ninja")
_CUBINS = re.compile(r"^flashinfer-cubin\b", re.MULTILINE)


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


def companion_variables(
    requirements: ExactRequirements, environment: Mapping[str, str], *, complete: bool
) -> dict[str, str]:
    """Return the variable that lets vLLM take kernels from a companion; nothing where it takes them anyway.

    With a kernel missing, or none of FlashInfer's packages locked, it is left out: FlashInfer would be chosen
    and could not compile.

    Args:
        requirements: the locked runtime.
        environment: variables of the server.
        complete: the companion has every kernel that the recipe needs on this card.
    """
    return _told(environment) if complete and not _CUBINS.search(requirements.text) else {}


def installed_variables(
    engine: EngineFacts, recipe: str, capability: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the same as `companion_variables` for an environment that is made already.

    Args:
        engine: facts about it.
        recipe: name of the recipe.
        capability: of the card, such as ``12.1``.
        environment: variables of the server.
    """
    for_card = bool(capability) and engine.companion_arch.rstrip("af") == capability
    complete = for_card and engine.companion_lacks.get(recipe) == ()
    return _told(environment) if complete and not engine.packages.get("flashinfer-cubin") else {}


def _told(environment: Mapping[str, str]) -> dict[str, str]:
    compilers = all(shutil.which(name, path=environment.get("PATH", os.defpath)) for name in _COMPILERS)
    return {} if compilers or CUBIN in environment else {CUBIN: "1"}
