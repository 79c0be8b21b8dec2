"""Is every layer of a DFlash drafter given its own window and causality by vLLM 0.33.0?

The configurations, in both formats and through upstream's own parser, and what each layer must be are those
of the first probe. They are resolved by `_resolve_layer_attention`, from which models of this release are
built for model runner V2; V1 refuses drafters that mix windows and none. How a kernel masks a window is not
asked here.

Controls: drafters without sliding layers, and one whose layers differ, as published for Qwen3.6.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import configurations as known
from probekit import expect
from vllm.model_executor.models import qwen3_dflash


def resolved(config: Any) -> list[known.Seen] | str:
    """Return what upstream makes of each layer of *config*, or its refusal."""
    layers = range(config.num_hidden_layers)
    runner = mock.patch.object(
        qwen3_dflash, "get_current_vllm_config", return_value=SimpleNamespace(use_v2_model_runner=True)
    )
    try:
        with runner:
            return [known.Seen(*qwen3_dflash._resolve_layer_attention(config, layer)) for layer in layers]  # noqa: SLF001
    except (AssertionError, ValueError) as error:
        return repr(error)


def probe() -> None:
    """Controls first; then every configuration, so that the message has all that are resolved otherwise."""
    mixed = [known.SLIDES] * 4 + [known.LOOKS_BACK]
    controls = (
        ("no sliding layers", known.native(), [known.LOOKS_BACK] * 5),
        (
            "all causal, no sliding layers",
            known.native({"causal": True}),
            [known.Seen(None, causal=True)] * 5,
        ),
        ("speculators without sliding layers", known.speculators(), [known.LOOKS_BACK] * 5),
        ("four layers slide", known.native(**known.windowed(known.MIXED)), mixed),
    )
    for what, config, wanted in controls:
        found = resolved(config)
        expect(found == wanted, f"{what}: layers attend as {found}, not as {wanted}")
    wrong = {what: found for what, config, wanted in known.cases() if (found := resolved(config)) != wanted}
    expect(not wrong, f"{len(wrong)} configurations are resolved otherwise: {wrong}")
