"""Linear layers in NVFP4, as ModelOpt and compressed-tensors write them, and their values in 16 bits.

A weight is ``code * scale * global``: an E2M1 code of four bits, an E4M3 scale for each sixteen values of a
row and one global scale in float32. ModelOpt stores the global scale, compressed-tensors its inverse.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.tensors import Tensor

__all__ = ["LINEAR", "common_scale", "config_of", "dequantised", "packed", "quantise"]

LINEAR = re.compile(r"\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)\.weight$")
GROUP, CODES, LARGEST_SCALE = 16, (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), 448.0
INPUT_SCALE = 1.0 / 64  # of activations, for kernels that quantise them
_SIGMAS = 8.0  # no value of a made-up matrix is as many standard deviations from zero


def config_of(form: str) -> dict[str, Any]:
    """Return the ``quantization_config`` of a checkpoint in that form."""
    if form == "modelopt":
        return {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": None, "group_size": GROUP,
            "ignore": ["lm_head"], "producer": {"name": "modelopt", "version": "0.39.0"},
        }  # fmt: skip
    numbers = {
        "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": GROUP,
    }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "dynamic": False, "observer": "minmax"},
        "input_activations": {**numbers, "dynamic": "local", "observer": "minmax"},
        "output_activations": None,
        "format": "nvfp4-pack-quantized",
    }
    return {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": None, "config_groups": {"group_0": group},
    }  # fmt: skip


def _e4m3(array: Any) -> tuple[Any, Any]:
    """Return positive float32 values as bits of E4M3 and as what these stand for."""
    import numpy as np

    bits = np.arange(127, dtype=np.uint8)
    exponent, mantissa = bits >> 3, bits & 7
    stands = np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 7)
    ).astype(np.float32)
    middle = (stands[1:] + stands[:-1]) / 2
    found = np.searchsorted(middle, np.clip(array, 2.0**-9, LARGEST_SCALE)).astype(np.uint8)
    return found, stands[found]


def common_scale(columns: int) -> float:
    """Return the global scale of all matrices with so many columns, a power of two.

    vLLM fuses queries, keys and values, and gates and ups, and takes one of their global scales for all of
    them. A power of two is exact in 16 bits and inverted, so that weights in 16 bits are the same values.
    """
    largest = _SIGMAS * columns**-0.5
    return float(2.0 ** math.ceil(math.log2(largest / (LARGEST_SCALE * CODES[-1]))))


def quantise(array: Any, scale: float) -> tuple[Any, Any, Any, Any]:
    """Return codes (0 to 15), scales as bits of E4M3, the global scale, and what these stand for."""
    import numpy as np

    rows, columns = array.shape
    groups = array.reshape(rows, columns // GROUP, GROUP)
    largest = np.abs(groups).max(-1)
    whole = np.float32(scale)
    bits, scales = _e4m3(largest / CODES[-1] / whole)
    table = np.array(CODES, dtype=np.float32)
    sizes = np.abs(groups) / (scales[..., None] * whole)
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, sizes).astype(np.uint8)
    stand = np.copysign(table[codes] * scales[..., None] * whole, groups).reshape(rows, columns)
    signed = codes | np.where(groups < 0, 8, 0).astype(np.uint8)
    return signed.reshape(rows, columns), bits, whole, stand.astype(np.float32)


def dequantised(name: str, tensor: Tensor) -> Any:
    """Return in float32 what the quantised form of a tensor stands for."""
    from fleet.tensors import values

    array = values(name, tensor)
    return quantise(array, common_scale(array.shape[-1]))[3] if LINEAR.search(name) else array


def packed(form: str, name: str, tensor: Tensor) -> dict[str, tuple[str, Any]]:
    """Return the parts that the weights file has of a tensor, each with its type, by name.

    Args:
        form: ``""``, ``modelopt``, ``compressed-tensors``, or ``plain`` for 16 bits of the quantised values.
        name: the tensor's name.
        tensor: the tensor.
    """
    import numpy as np

    from fleet.tensors import rounded, values

    if form == "plain":
        return {name: ("BF16", rounded(dequantised(name, tensor)))}
    if not form or not LINEAR.search(name):
        return {name: ("BF16", rounded(values(name, tensor)))}
    codes, bits, whole, _ = quantise(values(name, tensor), common_scale(tensor.shape[-1]))
    nibbles = codes[:, 0::2] | (codes[:, 1::2] << 4)
    base = name.removesuffix(".weight")
    if form == "modelopt":
        return {
            name: ("U8", nibbles),
            f"{base}.weight_scale": ("F8_E4M3", bits),
            f"{base}.weight_scale_2": ("F32", np.array(whole, dtype=np.float32)),
            f"{base}.input_scale": ("F32", np.array(INPUT_SCALE, dtype=np.float32)),
        }
    return {
        f"{base}.weight_packed": ("U8", nibbles),
        f"{base}.weight_scale": ("F8_E4M3", bits),
        f"{base}.weight_global_scale": ("F32", np.array([1 / whole], dtype=np.float32)),
        f"{base}.input_global_scale": ("F32", np.array([1 / INPUT_SCALE], dtype=np.float32)),
    }
