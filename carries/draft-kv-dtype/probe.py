"""Can the draft model store its keys and values in another format than the target does?

The speculative configuration is upstream's own, and so are the functions of both model runners that derive
the drafter's configuration from it. Attention layers are built under what they derive, and upstream's
planning gives them their memory. Loading a model is replaced by remembering the configuration it came with.

The defect shows as a setting that does not exist. With the carry the drafter's layers, and only they, get
the dtype; the target's configuration stays as it was. Where two formats cannot be served together, or a
method has no draft model with a cache of its own, it says so.

Controls: without the setting the drafter's layers store what the target's do.
"""

# ruff: noqa: SLF001 - the drafter's configuration and the runners' views come from private methods

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import torch
from probekit import expect
from vllm.config import CacheConfig, DeviceConfig, SpeculativeConfig, VllmConfig, set_current_vllm_config
from vllm.config.utils import replace
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.kv_cache_interface import TQFullAttentionSpec
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.spec_decode.dflash import utils as dflash_v2
from vllm.v1.worker.gpu.spec_decode.eagle import utils as eagle_v2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec

HEADS, HEAD_SIZE, BLOCK = 2, 64, 32
DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "fp8": torch.uint8, "nvfp4": torch.uint8}

MIXES = (  # target, draft
    ("fp8", "bfloat16"),
    ("nvfp4", "bfloat16"),
    ("auto", "fp8"),
    ("turboquant_4bit_nc", "bfloat16"),
    ("turboquant_k8v4", "fp8"),
    ("nvfp4", "nvfp4"),
    ("fp8_per_token_head", "fp8_per_token_head"),
)
REFUSED = (
    ("auto", "nvfp4"),
    ("fp8", "nvfp4"),
    ("nvfp4", "fp8"),
    ("bfloat16", "fp8_per_token_head"),
    ("int8_per_token_head", "bfloat16"),
    ("auto", "turboquant_k8v4"),
    ("fp8_ds_mla", "bfloat16"),
    ("fp8_ds_mla", "fp8"),
    ("auto", "fp8_ds_mla"),
)
NO_CACHE = ("ngram", "suffix", "medusa", "extract_hidden_states")


class Stop(Exception):  # noqa: N818 - not an error: it ends the loading of a model
    """Carries the configuration that a draft model would have been built with."""

    def __init__(self, config: VllmConfig) -> None:
        super().__init__()
        self.config = config


def speculative(method: str, dtype: str | None, model_type: str = "") -> SpeculativeConfig:
    """Upstream's speculative configuration, checked as always, without a model behind it but for its type."""
    setting = {} if dtype is None else {"kv_cache_dtype": dtype}

    def model(config: SpeculativeConfig) -> None:
        if model_type:
            config.draft_model_config = cast(
                "Any", SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type))
            )

    with mock.patch.object(SpeculativeConfig, "__post_init__", model):
        return SpeculativeConfig(method=method, num_speculative_tokens=3, **setting)  # type: ignore[arg-type]


def serving(target: str, draft: str | None, method: str = "dflash") -> VllmConfig:
    """The configuration of a server on the CPU; the setting has to exist for *draft*."""
    spec_config = speculative(method, draft)
    spec_config.draft_model_config = cast(
        "Any",
        SimpleNamespace(
            hf_config=SimpleNamespace(dflash_config={}), verify_with_parallel_config=lambda _: None
        ),
    )
    config = VllmConfig(cache_config=CacheConfig(cache_dtype=target), device_config=DeviceConfig("cpu"))  # type: ignore[arg-type]
    config.cache_config.block_size = BLOCK  # set later, as the platform does, and not by the user
    config.speculative_config = spec_config
    return config


def v1(config: VllmConfig) -> VllmConfig:
    """What model runner V1 builds a draft model with."""
    proposer = SimpleNamespace(vllm_config=config, speculative_config=config.speculative_config)
    return SpecDecodeBaseProposer._create_draft_vllm_config(cast("SpecDecodeBaseProposer", proposer))


def v2(module: Any, load: Callable[..., object]) -> Callable[[VllmConfig], VllmConfig]:
    """What model runner V2 builds one with."""

    def stop(*, vllm_config: VllmConfig, model_config: object) -> None:
        del model_config
        raise Stop(vllm_config)

    def derive(config: VllmConfig) -> VllmConfig:
        with mock.patch.object(module, "get_model", stop):
            try:
                load(torch.nn.Module(), config)
            except Stop as reached:
                return reached.config
        raise ValueError("no model was loaded")

    return derive


RUNNERS = {
    "V1": v1,
    "V2, DFlash": v2(dflash_v2, dflash_v2.load_dflash_model),
    "V2, EAGLE": v2(eagle_v2, eagle_v2.load_eagle_model),
}


def layer(config: VllmConfig, name: str) -> Attention:
    """An attention layer as models build it under that configuration."""
    with set_current_vllm_config(config):
        return Attention(
            HEADS, HEAD_SIZE, 1.0, HEADS,
            cache_config=config.cache_config, prefix=name, attn_backend=TritonAttentionBackend,
        )  # fmt: skip


def check_layers(
    runner: str, derive: Callable[[VllmConfig], VllmConfig], target: str, draft: str | None
) -> None:
    """The dtypes of a target's and a draft model's layer, and where they are kept."""
    what = f"{runner}, target {target}, draft {draft or 'as the target'}"
    config = serving(target, draft)
    derived = derive(config)
    layers = {"model.layers.0.attn": layer(config, "model.layers.0.attn")}
    layers["model.layers.1.attn"] = layer(derived, "model.layers.1.attn")
    first, second = (one.kv_cache_dtype for one in layers.values())
    expect(
        (first, second) == (target, draft or target),
        f"{what}: the target's layer stores {first}, the drafter's {second}",
    )
    expect(
        config.cache_config.cache_dtype == target
        and derived.cache_config.user_specified_block_size == config.cache_config.user_specified_block_size
        and derived.cache_config.block_size == BLOCK,
        f"{what}: more than the drafter's dtype has changed",
    )
    specs = {name: cast("KVCacheSpec", one.get_kv_cache_spec(config)) for name, one in layers.items()}
    planned = check_memory(what, specs)
    if "nvfp4" not in (first, second):  # another carry gives those their views
        check_views(what, specs, planned, config)


def check_views(what: str, specs: dict[str, KVCacheSpec], planned: KVCacheConfig, config: VllmConfig) -> None:
    """Both runners' views of the two caches, whose shapes they derive from the target's dtype."""
    names = list(specs)
    backends = [
        TurboQuantAttentionBackend if isinstance(spec, TQFullAttentionSpec) else TritonAttentionBackend
        for spec in specs.values()
    ]
    groups: Any = [
        SimpleNamespace(backend=backend, layer_names=[name], kv_cache_spec=specs[name], kv_cache_group_id=0)
        for name, backend in zip(names, backends, strict=True)
    ]
    raw = {one.shared_by[0]: torch.zeros(one.size, dtype=torch.int8) for one in planned.kv_cache_tensors}
    runner: Any = SimpleNamespace(
        cache_config=config.cache_config,
        kv_cache_config=planned,
        runner_only_attn_layers=set(),
        _kv_cache_spec_attn_group_iterator=lambda: iter(groups),
    )
    dtype = config.cache_config.cache_dtype
    with set_current_vllm_config(config):
        views = {
            "V1": GPUModelRunner._reshape_kv_cache_tensors(runner, raw, [BLOCK]),
            "V2": attn_utils._reshape_kv_cache(groups, raw, dtype, [BLOCK], {}, planned),
        }
    for runner_name, found in views.items():
        for name in names:
            size = found[name].numel() * found[name].element_size()
            expect(
                size == raw[name].numel() and found[name].is_contiguous(),
                f"{what}: {runner_name} views {size} of {raw[name].numel()} bytes of {name}",
            )


def check_memory(what: str, specs: dict[str, KVCacheSpec]) -> KVCacheConfig:
    """Both layers must fit into one group, so that drafting needs no block table of its own."""
    config = cast("VllmConfig", SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=4),
        kv_transfer_config=None,
        speculative_config=None,
    ))  # fmt: skip
    groups = get_kv_cache_groups(config, dict(specs))
    planned: KVCacheConfig = get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)
    sizes = {tensor.shared_by[0]: tensor.size for tensor in planned.kv_cache_tensors}
    wanted = {name: 4 * cast("FullAttentionSpec", spec).page_size_bytes for name, spec in specs.items()}
    expect(
        len(groups) == 1 and sizes == wanted,
        f"{what}: {len(groups)} groups with memory {sizes}, where the layers need {wanted}",
    )
    return planned


def check_refusals() -> None:
    """What cannot be served is refused by name."""
    for runner, derive in RUNNERS.items():
        for target, draft in REFUSED:
            said = ""
            try:
                derive(serving(target, draft))
            except ValueError as refusal:
                said = str(refusal)
            expect(
                draft in said and target in said,
                f"{runner}: target {target} and draft {draft} are not refused: {said!r}",
            )
    for method, model_type in (*((method, "") for method in NO_CACHE), ("mtp", "gemma4_mtp")):
        said = ""
        try:
            speculative(method, "bfloat16", model_type)
        except ValueError as refusal:
            said = str(refusal)
        expect("kv_cache_dtype" in said and method in said, f"{method} {model_type} takes a dtype: {said!r}")


def derived(config: Any, **changes: Any) -> Any:
    """As upstream's `replace`, but for a server's configuration, which is not checked without a model."""
    if not isinstance(config, VllmConfig):
        return replace(config, **changes)
    changed = copy.copy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


@contextmanager
def without_models() -> Iterator[None]:
    """Let configurations be derived from one that has no model."""
    with ExitStack() as stack:
        for name in ("llm_base_proposer", "draft_kv_cache"):
            module = sys.modules.get(f"vllm.v1.spec_decode.{name}")
            if module is not None:
                stack.enter_context(mock.patch.object(module, "replace", derived))
        stack.enter_context(mock.patch.object(dflash_v2, "replace", derived))
        yield


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    torch.set_default_dtype(torch.bfloat16)
    with without_models():
        for runner, derive in RUNNERS.items():
            for target in ("auto", "fp8", "nvfp4"):
                check_layers(runner, derive, target, None)
        expect(
            "kv_cache_dtype" in SpeculativeConfig.__dataclass_fields__,
            "the drafter stores what the target does: the speculative configuration has no kv_cache_dtype",
        )
        for runner, derive in RUNNERS.items():
            for target, draft in MIXES:
                check_layers(runner, derive, target, draft)
        for method in ("eagle", "eagle3", "mtp", "dflash", "draft_model"):
            speculative(method, "bfloat16")
        check_refusals()
