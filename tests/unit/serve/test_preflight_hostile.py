"""Whatever a checkpoint's files hold, preflight ends with findings and not with an error."""

import json
import tempfile
from pathlib import Path

from checkpoint_kit import DENSE, GPT_OSS, QWEN_27B, QWEN_27B_DFLASH, write_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_kit import recipe, start

from sparkwright.serve.preflight.checkpoint import read_shard
from sparkwright.serve.preflight.run import inspect_start

KEYS = sorted(
    {*DENSE, *QWEN_27B, *QWEN_27B["text_config"], *QWEN_27B_DFLASH, *GPT_OSS}
    | {
        "rope_scaling",
        "quantization_config",
        "kv_lora_rank",
        "num_kv_shared_layers",
        "speculators_model_type",
    }
    | {"hybrid_override_pattern", "aux_hidden_state_layer_ids", "transformer_layer_config", "mamba_num_heads"}
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.floats(allow_nan=False) | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
SLOW = settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(st.sampled_from([DENSE, QWEN_27B, GPT_OSS]), CHANGES, CHANGES, VALUES)
def test_any_configuration(base, change, draft, index):
    with tempfile.TemporaryDirectory() as folder:
        target = write_checkpoint(
            Path(folder, "target"), {**base, **change}, modelopt={"quantization": change}
        )
        (target / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": index, "metadata": index})
        )
        drafter = write_checkpoint(Path(folder, "drafter"), {**QWEN_27B_DFLASH, **draft}, tokenizer=False)
        served = recipe(
            target, drafter=str(drafter), speculative={"method": "dflash", "num_speculative_tokens": 3}
        )
        report = inspect_start(start(served))
        assert len(report.rows) > 3
        assert all(
            finding.what and finding.level in {"refuse", "warn", "note"} for finding in report.findings
        )


@SLOW
@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3) | VALUES, st.integers(0, 64))
def test_any_header(header, extra):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(extra))
        shard = read_shard(path)
        assert shard.problem or shard.expected >= 0


@SLOW
@given(st.binary(max_size=64))
def test_any_bytes(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(content)
        shard = read_shard(path)
        assert shard.problem or shard.expected >= 0 or shard.pointer
