"""Does a wrong count of accepted tokens leave a request with a state of its own, in vLLM 0.33.0?

The checks are those of the first probe. The kernels have moved, and GLM-5.3 and Kimi-K3 have copies.
"""

# ruff: noqa: E402 - stand-ins of packages come before what is in them

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import vllm
from counting import check_all, gated, gating

# The packages of models import what is not here, so their folders stand for them.
for model in ("glm5next", "kimi_k3"):
    package = ModuleType(f"vllm.models.{model}")
    package.__path__ = [str(Path(vllm.__file__).parent / "models" / model)]
    sys.modules[package.__name__] = package

from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.models.glm5next.nvidia.ops.third_party.kda import fused_recurrent as glm
from vllm.models.kimi_k3.nvidia.ops.third_party.kda import fused_recurrent as kimi
from vllm.third_party.flash_linear_attention.ops import fused_recurrent
from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
    fused_sigmoid_gating_delta_rule_update,
)
from vllm.third_party.flash_linear_attention.ops.kda import fused_recurrent_kda_fwd


def probe() -> None:
    """Check each kernel that takes accepted counts, on NVIDIA's cards."""
    kernels = {
        "fused_recurrent": gated(fused_recurrent.fused_recurrent_gated_delta_rule),
        "fused_recurrent by kda": gated(fused_recurrent_kda_fwd, per_channel=True),
        "fused_sigmoid_gating": gating(fused_sigmoid_gating_delta_rule_update),
        "fused_recurrent of GLM-5.3": gated(glm.fused_recurrent_gated_delta_rule),
        "fused_recurrent of Kimi-K3": gated(kimi.fused_recurrent_kda_fwd, per_channel=True),
    }
    check_all(kernels, causal_conv1d_update, modules=[fused_recurrent, glm, kimi])
