"""The kernels that a server chose for its weights and its attention, by its log, for vLLM 0.24 to 0.33.

Beside each expression stands the file under ``vllm/`` that writes the line.
"""

from __future__ import annotations

import re
from typing import Any

# platforms/cuda.py: chosen among several, or named by the user
_ATTENTION = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend\b")
# v1/worker/gpu_model_runner.py; the second model runner logs no such line
_DRAFTER = re.compile(r"Loading drafter model")
# model_executor/kernels/linear/__init__.py: NVFP4, MXFP4, MXFP6 and MXFP8
_LINEAR = re.compile(r"Using (\w+) for (\w+) GEMM")
# model_executor/layers/fused_moe/oracle/: quoted for NVFP4 and MXFP4, without quotes for FP8
_MOE = re.compile(r"Using '?(\w+)'? (\w+) MoE backend\b")
# model_executor/: layers/quantization/utils/marlin_utils_fp4.py, kernels/linear/nvfp4/marlin.py
_WEIGHT_ONLY = re.compile(r"does not have native support for FP4 computation")
# model_executor/: kernels/linear/__init__.py, layers/fused_moe/experts/*_emulation_moe.py, and Quark's
_EMULATED = re.compile(
    r"falling back to the slow and unoptimized emulation backend"
    r"|Using \w*EmulationTritonExperts M[Oo]E backend"
    r"|Simulated weight dequantization"
)
_QUANTIZATION = re.compile(r"\bquantization=([\w-]+)")
_EAGER = re.compile(r"\benforce_eager=True")

WEIGHT_ONLY = "weight-only kernels"
EMULATION = "emulation"


def attention_backends(text: str) -> tuple[str, ...]:
    """Return the attention backends that a log names, each once, in order."""
    return tuple(dict.fromkeys(_ATTENTION.findall(text)))


def read_backends(text: str, config: str) -> dict[str, Any]:
    """Return the fields of `BootFacts` about kernels.

    Args:
        text: the whole log, without colours.
        config: the line of the configuration in it, or empty.
    """
    drafter = _DRAFTER.search(text)
    quantization = _QUANTIZATION.search(config)
    warned = ((WEIGHT_ONLY, _WEIGHT_ONLY), (EMULATION, _EMULATED))
    return {
        "backends": attention_backends(text),
        "drafter_backends": attention_backends(text[drafter.end() :]) if drafter else (),
        "linear_backends": tuple(dict.fromkeys(f"{kind} {name}" for name, kind in _LINEAR.findall(text))),
        "moe_backends": tuple(dict.fromkeys(f"{kind} {name}" for name, kind in _MOE.findall(text))),
        "slow_paths": tuple(name for name, sign in warned if sign.search(text)),
        "quantization": quantization.group(1).replace("None", "") if quantization else "",
        "eager": bool(_EAGER.search(config)) if config else None,
    }
