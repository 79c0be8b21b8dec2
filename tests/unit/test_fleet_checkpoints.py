"""Checkpoints of the fleet's cells hold what their names say, and engines are told of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import serve_fleet
from fleet import matrix, tensors
from fleet.engine import NEAREST
from fleet.matrix import Cell
from fleet.shapes import SHAPES, checkpoint, drafter, rows, speculative
from pair.models import VOCABULARY


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_an_engine_is_told_what_its_cell_says_and_finds_its_checkpoint(shape: str, tmp_path: Path) -> None:
    cell = Cell(shape, "ngram", "nvfp4", eager=False, synthetic=True)
    asked = serve_fleet.arguments(["--out", str(tmp_path), "--version", "0.24.0"])
    spec = serve_fleet.specification(cell, asked, tmp_path)
    engine = spec["engine"]
    assert (engine["kv_cache_dtype"], engine["enforce_eager"]) == ("nvfp4", False)
    assert engine["speculative_config"]["rejection_sample_method"] == "synthetic"
    json.dumps(spec)
    one = checkpoint(shape)
    raw = Path(engine["model"], "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    ends = [entry["data_offsets"][1] for entry in header.values()]
    assert max(ends) == len(raw) - 8 - size
    assert set(one.tensors) == set(header)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_drafters_fit_their_targets(shape: str) -> None:
    one = checkpoint(shape)
    for kind in matrix.PAIRED[shape]:
        own = drafter(shape, kind)
        if own is not None and "dflash_config" in own.config:
            layers = own.config["dflash_config"]["target_layer_ids"]
            assert max(layers) < one.config["num_hidden_layers"]
            assert len(set(layers)) == 3


def test_speculation_is_asked_for_by_its_own_rules(tmp_path: Path) -> None:
    asked = {"synthetic": False, "backend": "TRITON_ATTN"}
    assert speculative("dense", "none", tmp_path, **asked) is None
    windows = speculative("dense", "windows", tmp_path, **asked) or {}
    assert (windows["method"], windows["attention_backend"]) == ("dflash", "TRITON_ATTN")
    config = json.loads(Path(windows["model"], "config.json").read_text())
    assert config["layer_types"].count("sliding_attention") == 4
    assert "model" not in (speculative("hybrid", "mtp", tmp_path, **asked) or {})
    assert "gemma4-mtp" in (speculative("gemma4", "mtp", tmp_path, **asked) or {})["model"]


def test_layers_and_experts_of_a_table_get_their_own_weights_and_others_none() -> None:
    table = "norm D 1.0; L.a Q 3; full:L.b= 2 head; L.mlp.experts.E.up 1 D"
    found = rows(table, "model.layers.", ["full", "linear"], Q=7)
    assert found["norm.weight"] == tensors.Tensor((512,), "1.0")
    assert found["model.layers.1.a.weight"] == tensors.Tensor((7, 3))
    assert found["model.layers.0.b"] == tensors.Tensor((2,), "head")
    assert "model.layers.1.b" not in found
    assert len([name for name in found if "experts.7.up" in name]) == 2


def test_tables_let_four_tokens_be_answers_alone() -> None:
    head = tensors.values("lm_head.weight", tensors.Tensor((VOCABULARY, 64), tensors.HEAD))
    assert sorted(np.flatnonzero(np.abs(head).sum(1))) == sorted(tensors.TOKENS)
    tied = tensors.values("embed", tensors.Tensor((VOCABULARY, 64), tensors.TIED))
    sizes = np.linalg.norm(tied, axis=1)
    others = np.delete(sizes, tensors.TOKENS)
    assert sizes[list(tensors.TOKENS)].min() > 10 * others.max() > 0


@pytest.mark.parametrize("kind", [tensors.HEAD, tensors.TIED])
def test_the_reference_keeps_what_others_may_answer(kind: str) -> None:
    """Among the best tokens two of the four likely ones are lost; all others are halfway between a pair."""
    table = tensors.values("lm_head.weight", tensors.Tensor((VOCABULARY, 64), kind))
    logits = table @ np.random.default_rng(0).standard_normal(64).astype(np.float32)
    best = set(np.argsort(-logits)[:8].tolist())
    assert len(best & set(tensors.TOKENS)) == 2
    assert NEAREST["logprob_token_ids"] == list(tensors.TOKENS)
    gaps = logits.max() - logits
    others = np.delete(gaps, tensors.TOKENS)
    for pair in (tensors.TOKENS[:2], tensors.TOKENS[2:]):
        assert np.abs(others - gaps[list(pair)].mean()).max() < 0.2 * np.abs(logits).max()


@pytest.mark.parametrize(
    ("cell", "near"),
    [
        (Cell("hybrid"), True),
        (Cell("gemma4", cache="nvfp4"), True),
        (Cell("hybrid", "mtp"), False),
        (Cell("hybrid", cache="fp8", eager=False), False),
    ],
)
def test_only_references_say_how_near_others_came(cell: Cell, *, near: bool, tmp_path: Path) -> None:
    asked = serve_fleet.arguments(["--out", str(tmp_path), "--version", "0.24.0"])
    spec = serve_fleet.specification(cell, asked, tmp_path)
    assert spec["near"] is near


@pytest.mark.parametrize("shape", ["moe", "hybrid", "mla", "gptoss"])
def test_experts_hardly_change_an_answer_when_a_near_tie_among_them_falls_otherwise(shape: str) -> None:
    made = checkpoint(shape).tensors
    routers = [name for name in made if name.endswith(("mlp.gate.weight", "router.weight"))]
    outputs = [name for name in made if ".experts." in name and "down_proj" in name and "bias" not in name]
    assert routers
    assert outputs
    for name in routers:
        assert np.std(tensors.values(name, made[name])) > 2 * made[name].shape[-1] ** -0.5
    for name in outputs:
        assert np.std(tensors.values(name, made[name])) < made[name].shape[-1] ** -0.5 / 2
    plain = tensors.values("model.layers.0.mlp.down_proj.weight", tensors.Tensor((512, 512)))
    assert np.std(plain) == pytest.approx(512**-0.5, rel=0.01)


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    given = np.array([1.0, 1.00390625, 1.01171875, -3.1415927], dtype=np.float32)
    back = (tensors.rounded(given).astype(np.uint32) << 16).view(np.float32)
    assert back.tolist() == [1.0, 1.0, 1.015625, -3.140625]


def test_expert_weights_of_gpt_oss_have_names_that_both_releases_load() -> None:
    names = [name for name in checkpoint("gptoss").tensors if ".experts." in name]
    assert names
    assert all(".mlp.experts.routed_experts." in name for name in names)


def test_both_runners_find_the_auxiliary_layers_of_an_eagle3_head() -> None:
    for shape in ("dense", "moe", "gemma4"):
        head = drafter(shape, "eagle3")
        assert head is not None
        layers = head.config["eagle_aux_hidden_state_layer_ids"]
        assert len(set(layers)) * 512 == head.tensors["fc.weight"].shape[1]
