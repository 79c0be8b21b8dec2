"""Does every layer of a DFlash drafter attend within its own window, and with its own causality?

Real draft models are built on the CPU (`drafters`) from what their files say (`configurations`). What the
layers compute is checked in `attending`, in which KV cache groups they lie in `kv_groups`; here, which
configurations give which windows and causality, which backend and model runner serve them, and what is
refused.

The controls are drafters without sliding layers, and which hidden states of the target a drafter asks for.
"""

# ruff: noqa: SLF001 - what is under test has no public name

from __future__ import annotations

import os
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import kv_groups
import torch
from attending import (
    check_assertion,
    check_attends,
    check_flash_arguments,
    check_numbers,
    check_objects,
)
from configurations import (
    AUX_LAYERS,
    FULL,
    LOOKS_BACK,
    MIXED,
    SIZES,
    SLIDES,
    SLIDING,
    WINDOW,
    Seen,
    cases,
    native,
    speculators,
    windowed,
)
from drafters import BLOCK, Drafter, serving_config
from probekit import expect
from vllm.config import AttentionConfig, CacheConfig
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.spec_decode import dflash, llm_base_proposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def selected(config: Any, asked: Any = None, **cache: Any) -> tuple[Any, bool]:
    """Return the backend that the drafter's layers get (None: automatic), and whether non-causal."""
    proposer = Drafter(config).proposer
    base = SimpleNamespace(
        attention_config=SimpleNamespace(**vars(AttentionConfig())),
        cache_config=CacheConfig(block_size=BLOCK, **cache),
        model_config=proposer.vllm_config.model_config,
        speculative_config=proposer.speculative_config,
    )
    proposer.vllm_config = base  # type: ignore[assignment]
    proposer.speculative_config.attention_backend = asked

    replaced = mock.Mock(side_effect=lambda one, **changes: SimpleNamespace(**{**vars(one), **changes}))
    with (
        mock.patch.object(dflash, "replace", replaced),
        mock.patch.object(llm_base_proposer, "replace", replaced),
    ):
        chosen = proposer._create_draft_vllm_config().attention_config
    return chosen.backend and getattr(chosen.backend, "name", chosen.backend), chosen.use_non_causal


def check_selection() -> None:
    """Expect the name of a backend that knows windows where there are any, else automatic selection."""
    mixed = native(**windowed(MIXED))
    for what, found, wanted in (
        ("no windows", selected(native()), (None, True)),
        ("no windows, FP8", selected(native(), cache_dtype="fp8"), (None, True)),
        ("windows", selected(mixed), ("FLASH_ATTN", True)),
        ("windows, FP8", selected(mixed, cache_dtype="fp8"), ("TRITON_ATTN", True)),
        ("windows, another asked for", selected(mixed, "FLEX_ATTENTION"), ("FLEX_ATTENTION", True)),
        ("windows, all causal", selected(native(**windowed([SLIDING] * 5))), ("FLASH_ATTN", False)),
    ):
        expect(found == wanted, f"{what}: backend and non-causal are selected as {found}, not as {wanted}")


def refusal(config: Any, backend: Any = TritonAttentionBackend, **cache: Any) -> str:
    """Return why a drafter is refused; empty if it is built."""
    try:
        Drafter(config, backend, **cache)
    except (IndexError, ValueError) as error:
        return str(error)
    return ""


def check_refusals() -> None:
    """Expect that what cannot be served is refused with the reason while the model is built."""
    planner = type("Planner", (TritonAttentionBackend,), {"get_name": staticmethod(lambda: "FLASHINFER")})
    mixed = native(**windowed(MIXED))
    skip = {"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["sliding_window"]}
    short = native(**windowed(MIXED))
    short.layer_types = MIXED[1:]
    none = native(**windowed(MIXED))
    none.sliding_window = None
    for why, found in {
        "TRITON_ATTN": refusal(mixed, planner),
        "kv_cache_dtype_skip_layers": refusal(mixed, **skip),
        "4 layer_types": refusal(short),
        "swa_window_size": refusal(none),
        "use_sliding_window": refusal(native(layer_types=MIXED, sliding_window=WINDOW)),
        "one precision, here bfloat16": refusal(mixed, **{**skip, "cache_dtype": "bfloat16"}),
    }.items():
        expect(why in found, f"a drafter that cannot be served is not refused for {why}: {found!r}")
    for what, found in {
        "windows, on a backend that knows them": refusal(mixed),
        "no windows, on any backend": refusal(native(), planner),
        "no windows, with layers left out of quantization": refusal(native(), **skip),
        "windows, and KV in the model's precision": refusal(mixed, **{**skip, "cache_dtype": "auto"}),
        "windows, and KV in that precision by name": refusal(
            mixed, dtype=torch.bfloat16, **{**skip, "cache_dtype": "bfloat16"}
        ),
    }.items():
        expect(not found, f"a drafter with {what} is refused: {found}")


def runner(config: Any, asked: str | None = None) -> str:
    """Return the model runner that serves a dense Qwen3 with this drafter, or why none does."""
    vllm_config = serving_config(config)
    with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": asked} if asked else {}):
        if not vllm_config.use_v2_model_runner:
            return "v1"
        try:
            vllm_config._validate_v2_model_runner()
        except ValueError as error:
            return str(error)
        return "v2"


def check_runner() -> None:
    """Expect that a drafter with windows goes to model runner V1; V2, which takes none, refuses it."""
    chosen, forced = (runner(native(**windowed(MIXED)), asked) for asked in (None, "1"))
    expect(chosen == "v1", f"a drafter with windows goes to model runner {chosen}")
    expect("VLLM_USE_V2_MODEL_RUNNER=0" in forced, f"asked for V2, a drafter with windows gets: {forced}")


def check_combinations() -> None:
    """Check every config.json by its own words: Transformers fills in others and drops the window."""
    from vllm.v1.spec_decode.dflash_layers import resolve_dflash_layers

    some = (None, [FULL] * 5, MIXED, [SLIDING] * 5)
    for types, on, plain, own, use_swa in product(some, (None, True, False), (None, 20), (None, 8), (0, 1)):
        said = {"layer_types": types, "sliding_window": plain, "use_sliding_window": on}
        options = {"use_swa": bool(use_swa)} | ({"swa_window_size": own} if own else {})
        given = {key: value for key, value in said.items() if value is not None}
        named = [kind == SLIDING for kind in types or [FULL] * 5]
        slides = [on is not False and one for one in named] if any(named) else [bool(use_swa)] * 5
        window = own or ((plain or 4096) if on else None)
        wanted: Any = [Seen(window if one else None, causal=one and any(named)) for one in slides]
        try:
            found: Any = [Seen(*layer) for layer in resolve_dflash_layers(native(options, **given))]
        except ValueError:
            found = "refused"
        wanted = "refused" if any(slides) and not window else wanted
        expect(found == wanted, f"{given}, {options}: layers are resolved as {found}, not as {wanted}")


def check_controls() -> None:
    """Check what both trees do alike: drafters without sliding layers, and what is read of the target."""
    check_attends("no sliding layers", native(), [LOOKS_BACK] * 5)
    check_attends("all causal, no sliding layers", native({"causal": True}), [Seen(None, causal=True)] * 5)
    check_attends("speculators without sliding layers", speculators(), [LOOKS_BACK] * 5)
    check_numbers("no sliding layers", native(), [LOOKS_BACK] * 5)
    check_flash_arguments(native(), [LOOKS_BACK] * 5)
    check_objects("no sliding layers", native(), 1)
    check_assertion(native())
    with mock.patch.dict(SIZES, num_hidden_layers=1):
        single = Drafter(native())
    kv_groups.check_other_plans(single, Drafter(native()))
    expect(runner(native()) == "v2", f"a drafter without windows goes to {runner(native())}")
    for config in (native(), speculators(), native(**windowed(MIXED)), speculators(windowed(MIXED))):
        named = config.dflash_config["target_layer_ids"]
        read = GPUModelRunner._get_eagle3_aux_layers_from_config(SimpleNamespace(
            speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config))
        ))  # fmt: skip
        same = read == AUX_LAYERS and named == [i - 1 for i in AUX_LAYERS]
        expect(same, f"{type(config).__name__}: hidden states {read} are read for layers {named}")


def probe() -> None:
    """Run the controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    torch.manual_seed(0)
    check_controls()
    mixed, wanted = native(**windowed(MIXED)), [SLIDES] * 4 + [LOOKS_BACK]
    check_attends("four layers slide", mixed, wanted)
    check_objects("four layers slide", mixed, 2)
    check_objects("windows, but one causality", native({"causal": False}, **windowed(MIXED)), 1)
    check_numbers("four layers slide", mixed, wanted)
    check_flash_arguments(mixed, wanted)
    not_causal = speculators(windowed(MIXED), sliding_window_non_causal=True)
    check_numbers("no layer is causal", not_causal, [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK])
    check_flash_arguments(not_causal, [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK])
    check_assertion(mixed)
    for hybrid in (False, True):
        same = kv_groups.planned(mixed, hybrid=hybrid) == kv_groups.planned(native(), hybrid=hybrid)
        expect(same, f"windows change the KV cache groups; hybrid target: {hybrid}")
    for what, (counts, *wanted) in kv_groups.SHAPES.items():
        for config in (mixed, native()):
            kv_groups.check_one_group(what, Drafter(config), counts, tuple(wanted))
    for what, config, wanted in cases():
        check_attends(what, config, wanted)
    check_combinations()
    check_selection()
    check_refusals()
    check_runner()
