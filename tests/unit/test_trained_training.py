"""A drafter learns, is exported as vLLM reads it, sees what it may, and needs its weights to be accepted."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="a drafter is trained in torch")
pytest.importorskip("transformers", reason="the target is transformers'")
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from trained.model import (  # noqa: E402 - torch may be missing
    BLOCK,
    Drafter,
    configuration,
    export,
    load,
    shape_of,
    spread,
    visible,
)
from trained.training import (  # noqa: E402
    Plan,
    Target,
    drafts_of,
    features,
    predicted,
    rate,
    train,
    walk,
)

CYCLE = [5, 9, 12, 7, 20, 11, 3, 17, 8, 14, 6]
"""The answer that the target gives, again and again."""


@pytest.fixture(scope="module")
def target() -> Any:
    """A made-up Llama whose greedy answers are never asked for: its hidden states alone are read."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    found = Target.__new__(Target)
    found.model, found.device, found.dtype, found.ends = (
        LlamaForCausalLM(config).eval(), "cpu", torch.float32, {2},
    )  # fmt: skip
    # Transformers begins so small that no score could ever stand out.
    found.model.model.embed_tokens.weight.data.normal_(0.0, 0.5)
    found.tokenizer = SimpleNamespace()
    return found


@pytest.fixture(scope="module")
def taught(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """Drafters of a text that goes round, and the losses of their training."""
    folder = tmp_path_factory.mktemp("taught")
    texts = [(CYCLE[at:] + CYCLE * 4, 6) for at in range(len(CYCLE))]
    plan = Plan(
        seconds=900, steps=100, share=0.0, windows=(None, 8), layers=2, batch=8, anchors=8, peak=3e-3, mask=30
    )
    return folder, train(target, plan, folder, texts)


def accepted(target: Any, drafter: Drafter) -> float:
    text = CYCLE * 5
    (steps,) = predicted(target, drafter.float(), [text[:12]], [text[12:50]])
    return sum(steps) / len(steps)


@pytest.mark.parametrize("name", ["full", "window"])
def test_training_lowers_the_loss_and_drafts_are_accepted(target, taught, name):
    folder, told = taught
    column = {"full": 0, "window": 1}[name]
    assert told[-1][column] < 0.5 * told[0][column]
    assert accepted(target, load(folder / name)) > 3.0


def test_a_drafter_with_shuffled_weights_is_found_by_its_acceptance(target, taught):
    drafter = load(taught[0] / "full")
    torch.manual_seed(2)
    for weight in drafter.parameters():
        if weight.dim() == 2:
            weight.data = weight.data.flatten()[torch.randperm(weight.numel())].view_as(weight)
    assert accepted(target, drafter) < 0.6 * accepted(target, load(taught[0] / "full"))


def test_an_export_is_read_back_and_says_what_vllm_asks_for(target: Any, tmp_path: Path) -> None:
    shape = shape_of(target.model.config, layers=3, mask=30, window=16)
    drafter = Drafter(shape).bfloat16()
    again = load(export(drafter, tmp_path))
    assert again.shape == shape
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in drafter.state_dict().items())
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["layer_types"] == ["sliding_attention"] * 2 + ["full_attention"]
    assert (told["sliding_window"], told["use_sliding_window"]) == (16, True)
    assert told["dflash_config"] == {"mask_token_id": 30, "target_layer_ids": list(spread(6))}
    assert "layer_types" not in configuration(shape_of(target.model.config, 3, 30, None))


def test_a_block_reads_the_context_before_it_and_itself_alone() -> None:
    mask = visible(torch.tensor([3, 5]), 7, None, block=2)
    assert mask[0].int().tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert mask[3].int().tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]


def test_a_window_counts_the_query_and_is_causal() -> None:
    mask = visible(torch.tensor([5]), 6, 3, block=3)
    # Queries at 5, 6 and 7 see places 3 to 5, 4 to 6 and 5 to 7; the context ends before 5.
    assert mask[0].int().tolist() == [0, 0, 0, 1, 1, 0, 1, 0, 0]
    assert mask[1].int().tolist() == [0, 0, 0, 0, 1, 0, 1, 1, 0]
    assert mask[2].int().tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_drafts_of_many_places_at_once_are_those_of_each_alone(target: Any) -> None:
    torch.manual_seed(3)
    drafter = Drafter(shape_of(target.model.config, 2, 30, 8))
    text = CYCLE * 3
    at_once = drafts_of(target, drafter, text, 12)
    for anchor in (12, 20, 31):
        alone = drafts_of(target, drafter, [*text[: anchor + 1], 0], anchor)
        assert alone == [at_once[anchor - 12]]


def test_hidden_states_are_those_behind_the_layers(target: Any) -> None:
    ids = torch.tensor([CYCLE])
    seen: list[Any] = []
    layer = target.model.model.layers[2]
    handle = layer.register_forward_hook(lambda _module, _given, out: seen.append(out))
    found = features(target, ids, [0, 2])
    handle.remove()
    state = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    assert torch.allclose(found[..., 32:], state.view(1, len(CYCLE), 32))


def test_steps_of_an_answer_are_counted_as_an_engine_makes_them() -> None:
    tokens = [1, 2, *range(10, 20)]
    drafts = [[0] * 7 for _ in tokens[2:-1]]
    drafts[0] = [11, 12, 99, 0, 0, 0, 0]
    drafts[3] = [99] * 7
    assert walk(tokens, 2, drafts) == [3, 1, 1, 1, 1, 1][: len(walk(tokens, 2, drafts))]
    assert walk(tokens, 2, drafts)[:2] == [3, 1]
    assert sum(walk(tokens, 2, drafts)) == len(tokens) - 2 - 1 - 1
    right = [[tokens[min(at + ahead, len(tokens) - 1)] for ahead in range(1, BLOCK)] for at in range(2, 11)]
    assert walk(tokens, 2, right) == [8]


def test_the_rate_of_learning_rises_and_falls() -> None:
    plan = Plan(seconds=1)
    assert rate(plan, 0.0) < rate(plan, 0.02) < plan.peak
    assert rate(plan, 1.0) == pytest.approx(plan.peak / 20)
