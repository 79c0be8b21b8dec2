"""A drafter that does not fit its target is found, in each form of configuration; one that fits is silent."""

import pytest
from checkpoint_kit import DENSE, QWEN_27B, QWEN_27B_DFLASH, dflash_27b, write_checkpoint
from preflight_kit import ENGINE, recipe, start

from sparkwright.engine.installed import EngineFacts
from sparkwright.serve.preflight.checkpoint import read_checkpoint
from sparkwright.serve.preflight.drafter import (
    check_draft_cache,
    check_drafter,
    drafter_layers,
    read_drafting,
)
from sparkwright.serve.preflight.kv_plan import KvOptions
from sparkwright.serve.preflight.run import run_preflight
from sparkwright.serve.preflight.shape import Attention, model_shape

DFLASH = {"method": "dflash", "num_speculative_tokens": 12}
TEXT = QWEN_27B["text_config"]
HYBRID = model_shape(TEXT)
DRAFT = (Attention(5, 8, 128),)
EAGLE3 = {
    "architectures": ["Eagle3Qwen3ForCausalLM"],
    "eagle_aux_hidden_state_layer_ids": [2, 4, 6],
    "hidden_size": 1024,
    "vocab_size": 8192,
    "draft_vocab_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "aux_hidden_state_layer_ids": [2, 17, 32, 47, 62],
    "mask_token_id": 248070,
    "block_size": 16,
    "draft_vocab_size": 248320,
    "transformer_layer_config": {
        name: QWEN_27B_DFLASH[name]
        for name in (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        )
    }
    | {"vocab_size": 248320},
}


def found(tmp_path, config, tensors, *, target=QWEN_27B, speculative=DFLASH) -> dict[str, str]:
    target_folder = write_checkpoint(tmp_path / "target", target)
    folder = write_checkpoint(tmp_path / "drafter", config, tensors, tokenizer=False)
    served = recipe(target_folder, drafter=str(folder), speculative=speculative)
    main, drafter = read_checkpoint("target", target_folder), read_checkpoint("drafter", folder)
    return {one.check: one.level for one in check_drafter(served, main, drafter)}


def test_both_forms_say_the_same():
    native, other = read_drafting(QWEN_27B_DFLASH), read_drafting(SPECULATORS)
    assert native.taken == other.taken == (1, 16, 31, 46, 61)
    assert native.shape.attention == other.shape.attention == DRAFT
    assert (native.mask, native.block) == (other.mask, other.block) == (248070, 16)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"hidden_size": 4096}, "drafter-hidden"),
        ({"num_target_layers": 48}, "drafter-layers"),
        ({"vocab_size": 151936}, "drafter-vocabulary"),
        (
            {"dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 64]}},
            "drafter-taken",
        ),
        (
            {"dflash_config": {"mask_token_id": 248320, "target_layer_ids": [1, 16, 31, 46, 61]}},
            "drafter-mask",
        ),
        ({"dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16]}}, "drafter-inputs"),
        ({"draft_vocab_size": 32000}, "drafter-table"),
    ],
)
def test_a_drafter_of_another_target_is_found(tmp_path, change, check):
    assert found(tmp_path, {**QWEN_27B_DFLASH, **change}, dflash_27b())[check] == "refuse"


EAGLE = {"method": "eagle3", "num_speculative_tokens": 3}
PACKED = [{"fc.weight": ("U8", (5120, 5 * 5120 // 2)), "fc.weight_scale": ("F8_E4M3", (5120, 1600))}]
HEAD = [{"fc.weight": ("BF16", (1024, 3072)), "d2t": ("I64", (4096,))}]
SHORT = [{"fc.weight": ("BF16", (1024, 2048))}]
OF_DENSE = {"target": DENSE, "speculative": EAGLE}


@pytest.mark.parametrize(
    ("config", "tensors", "keys", "expected"),
    [
        (QWEN_27B_DFLASH, dflash_27b(), {}, {}),
        (SPECULATORS, dflash_27b(), {}, {}),
        (QWEN_27B_DFLASH, PACKED, {}, {}),
        (QWEN_27B_DFLASH, dflash_27b(), {"speculative": {**DFLASH, "num_speculative_tokens": 15}}, {}),
        # More drafts than a block has
        (
            QWEN_27B_DFLASH,
            dflash_27b(),
            {"speculative": {**DFLASH, "num_speculative_tokens": 16}},
            {"draft-length": "warn"},
        ),
        # A model that is no drafter, or none of the method
        ({**TEXT, "architectures": ["Qwen3ForCausalLM"]}, dflash_27b(), {}, {"drafter-form": "refuse"}),
        (QWEN_27B_DFLASH, dflash_27b(), {"speculative": EAGLE}, {"drafter-form": "refuse"}),
        (EAGLE3, HEAD, OF_DENSE, {}),
        (EAGLE3, SHORT, OF_DENSE, {"drafter-inputs": "refuse", "drafter-table": "refuse"}),
    ],
    ids=["as published", "speculators' form", "packed", "a whole block", "longer", "a model", "other method",
         "eagle3", "of other layers"],
)  # fmt: skip
def test_a_drafter_is_judged_by_its_form_and_sizes(tmp_path, config, tensors, keys, expected):
    assert found(tmp_path, config, tensors, **keys) == expected


def test_a_paired_head_reads_the_targets_cache(tmp_path):
    target = read_checkpoint("t", write_checkpoint(tmp_path / "target", DENSE))
    head = read_checkpoint("d", write_checkpoint(tmp_path / "head", {**DENSE, "num_hidden_layers": 4}))
    mtp = recipe(drafter="d", speculative={"method": "mtp", "num_speculative_tokens": 4})
    assert drafter_layers(mtp, target, head) == ()
    assert list(check_drafter(mtp, target, head)) == []
    model = recipe(drafter="d", speculative={"method": "draft_model", "num_speculative_tokens": 4})
    assert drafter_layers(model, target, head) == (Attention(4, 4, 128),)


def test_an_mtp_head(tmp_path):
    mtp = {"method": "mtp", "num_speculative_tokens": 3}
    body = [{"mtp.fc.weight": ("BF16", (8, 8))}]
    with_head = read_checkpoint("m", write_checkpoint(tmp_path / "with", QWEN_27B, body))
    cut_off = read_checkpoint("m", write_checkpoint(tmp_path / "cut", QWEN_27B))  # its configuration has one
    last = [{"model.layers.7.a.weight": ("BF16", (8, 8)), "model.layers.8.a.weight": ("BF16", (8, 8))}]
    behind = read_checkpoint("m", write_checkpoint(tmp_path / "behind", DENSE, last))
    without = read_checkpoint("m", write_checkpoint(tmp_path / "without", DENSE))
    named = [{"mtp.fc.weight": ("BF16", (8, 8))}]
    by_name = read_checkpoint("m", write_checkpoint(tmp_path / "named", DENSE, named))
    served = recipe(speculative=mtp)
    assert list(check_drafter(served, with_head, None)) == []
    assert list(check_drafter(served, by_name, None)) == []
    assert list(check_drafter(served, behind, None)) == []
    for headless in (without, cut_off):
        (finding,) = check_drafter(served, headless, None)
        assert (finding.check, finding.level) == ("mtp-absent", "refuse")
    assert drafter_layers(served, with_head, None) == (Attention(1, 4, 256),)
    assert list(check_drafter(recipe(), without, None)) == []


def cached(dtype, draft, *, target=HYBRID, version="0.24.0+spark.1", carries=frozenset()):
    options = KvOptions(dtype=dtype, draft_dtype=draft)
    found = check_draft_cache(target, DRAFT, options, EngineFacts(version=version, carries=carries))
    return {one.check: one.level for one in found}


@pytest.mark.parametrize(
    ("dtype", "draft", "version", "carries", "expected"),
    [
        ("fp8", "bfloat16", "0.24.0", set(), {"draft-kv-pages": "refuse"}),
        ("nvfp4", "bfloat16", "0.24.0", set(), {"draft-kv-pages": "refuse"}),
        ("nvfp4", "bfloat16", "0.27.1", set(), {"draft-kv-pages": "warn"}),
        ("fp8", "bfloat16", "0.24.0+spark.1", {"kv-page-nvfp4"}, {"draft-kv-pages": "warn"}),
        ("nvfp4", "bfloat16", "0.33.0", set(), {"draft-kv-pages": "warn"}),
        ("fp8", "bfloat16", "", set(), {"draft-kv-pages": "warn"}),
        ("fp8", "", "0.24.0", set(), {}),
        ("fp8", "fp8", "0.24.0", set(), {}),
        ("auto", "fp8", "0.24.0", set(), {}),
        ("nvfp4", "nvfp4", "0.24.0", set(), {}),
        ("auto", "bfloat16", "0.24.0", set(), {}),
    ],
)
def test_pages_of_a_drafter_in_a_hybrid_model(dtype, draft, version, carries, expected):
    """The probe of kv-page-nvfp4 asserts which of these the planning of 0.24.0 refuses."""
    assert cached(dtype, draft, version=version, carries=frozenset(carries)) == expected


def test_the_whole_of_a_start(tmp_path):
    target = write_checkpoint(tmp_path / "target", QWEN_27B)
    drafter = write_checkpoint(tmp_path / "drafter", QWEN_27B_DFLASH, dflash_27b(), tokenizer=False)
    flags = {"kv-cache-dtype": "fp8_e4m3", "max-num-seqs": 1}
    served = recipe(
        target, drafter=str(drafter), flags=flags, speculative={**DFLASH, "kv_cache_dtype": "bfloat16"}
    )
    with_carry = {one.check: one.level for one in run_preflight(start(served, engine=ENGINE))}
    assert with_carry == {"draft-kv-pages": "warn"}
    stock = EngineFacts(version="0.24.0", carries=frozenset({"draft-kv-dtype"}), packages=ENGINE.packages)
    assert {one.check for one in run_preflight(start(served, engine=stock)) if one.level == "refuse"} == {
        "draft-kv-pages"
    }
