"""The arithmetic of `scripts/kv_quality` where torch is: ``python kv_quality_checks.py FILE`` prints JSON."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "gpu")]

import torch  # noqa: E402
from kv_quality import acceptance, drafter, formats, measures, training  # noqa: E402
from nvfp4 import coder  # noqa: E402

DRAW = torch.Generator().manual_seed(0)


def states(*shape: int) -> torch.Tensor:
    """Return keys as a model has them: channels of unlike size, and some large ones."""
    x = torch.randn(*shape, generator=DRAW) * torch.randn(*shape, generator=DRAW).exp()
    x[..., 3] *= 20
    return x


def same_as_the_coder(scale: float, *, planted: float = 1.0) -> bool:
    x = states(64, 3, 128)
    x[0], x[1], x[2] = 0.0, 1e-6, 1e6
    x[3, :, :16] = torch.tensor([6.0, 5.0, 2.5, 0.25, 0.75, 1.25, 1.75, 3.5, *[-0.25] * 8])  # ties
    wanted = coder.decode(coder.encode(x.bfloat16(), scale), scale).float()
    return torch.equal(formats.nvfp4(x, scale * planted), wanted)


def error(rounding, x: torch.Tensor, scale: float = 1.0) -> float:
    return float((rounding(x, scale) - x).norm() / x.norm())


class Attending:
    """One layer of attention over rounded keys and values, with random scores behind it."""

    def __init__(self) -> None:
        self.query, self.keys, self.values = (states(200, 64) / 4 for _ in range(3))
        self.head = torch.randn(64, 300, generator=DRAW) / 4
        self.mask = torch.ones(200, 200).tril().bool()

    def scores(self, format_: formats.Format, scale: float = 1.0) -> torch.Tensor:
        keys, values = format_.keys(self.keys, scale), format_.values(self.values, scale)
        weights = (self.query @ keys.T / 8).masked_fill(~self.mask, -torch.inf).softmax(-1)
        return weights @ values @ self.head


def divergences() -> dict[str, float]:
    model = Attending()
    base = model.scores(formats.FORMATS["16 bits"])
    found = {name: model.scores(one) for name, one in formats.FORMATS.items()}
    found["FP8, scale 1000"] = model.scores(formats.FORMATS["FP8"], 1000.0)
    found["NVFP4, scale 1000"] = model.scores(formats.FORMATS["NVFP4"], 1000.0)
    return {name: float(measures.divergence(base, one).mean()) for name, one in found.items()}


def by_definition() -> bool:
    base, other = torch.randn(2, 50, 400, generator=DRAW)
    one, two = base.double().log_softmax(-1), other.double().log_softmax(-1)
    wanted = (one.exp() * (one - two)).sum(-1)
    return torch.allclose(measures.divergence(base, other).double(), wanted, atol=1e-5)


def four_over_six() -> dict[str, float]:
    x = states(500, 64)
    return {name: error(formats.FORMATS[name].keys, x) for name in ("NVFP4", "NVFP4, 4 over 6")}


def mask() -> dict[str, object]:
    made = drafter.context_mask(torch.tensor([3, 5]), 6, 2, 3)
    whole = drafter.context_mask(torch.tensor([3, 5]), 6, None, 3, 4)
    return {"window": made.int().tolist(), "begin": whole[:, :6].int().tolist()}


def small_drafter() -> drafter.Drafter:
    torch.manual_seed(0)
    shape = drafter.Shape(width=64, heads=4, kv_heads=2, inner=96, layers=2, features=2, theta=10_000.0)
    table = torch.randn(40, 64)
    return drafter.Drafter(shape, table, table, torch.arange(40)).eval()


def reads_the_context() -> dict[str, bool]:
    """Tell whether a change of hidden states outside of what a block may read leaves its scores alone."""
    made = small_drafter()
    features = torch.randn(1, 30, 128, generator=DRAW)
    anchors = torch.tensor([[20]])
    tokens = torch.tensor([[7]])

    def scores(some: torch.Tensor, window: int | None) -> torch.Tensor:
        allowed = drafter.context_mask(anchors[0], 30, window, drafter.BLOCK)[None]
        return made(tokens, anchors, made.store(some), allowed)

    found = {}
    with torch.inference_mode():
        for name, place, window in (
            ("the place itself", 20, None),
            ("before", 19, None),
            ("far before", 3, None),
            ("in the window", 12, 8),
            ("before the window", 11, 8),
        ):
            changed = features.clone()
            changed[0, place] += 1.0
            found[name] = not torch.equal(scores(changed, window), scores(features, window))
    return found


def learns() -> dict[str, float]:
    """Train on an answer that repeats one pattern: loss before and after, and the share of right drafts."""
    torch.manual_seed(0)
    wide, narrow, inner = 64, 32, 96
    linear = partial(torch.nn.Linear, bias=False)
    layer = SimpleNamespace(
        self_attn=SimpleNamespace(
            q_proj=linear(wide, wide),
            k_proj=linear(wide, narrow),
            v_proj=linear(wide, narrow),
            o_proj=linear(wide, wide),
        ),
        mlp=SimpleNamespace(
            gate_proj=linear(wide, inner), up_proj=linear(wide, inner), down_proj=linear(inner, wide)
        ),
        input_layernorm=torch.nn.RMSNorm(wide),
        post_attention_layernorm=torch.nn.RMSNorm(wide),
    )
    table = SimpleNamespace(weight=torch.randn(20, wide) / 4)
    inside = SimpleNamespace(layers=[layer] * 30, norm=torch.nn.RMSNorm(wide), embed_tokens=table)
    config = SimpleNamespace(
        hidden_size=wide, num_attention_heads=4, num_key_value_heads=2, intermediate_size=inner,
        rope_parameters={"rope_theta": 10_000.0},
    )  # fmt: skip
    subject = SimpleNamespace(model=SimpleNamespace(model=inside, lm_head=table, config=config))
    tokens = torch.arange(60) % 7
    row = {"tokens": tokens, "prompt": 10, "features": table.weight[tokens].repeat(1, 3).bfloat16()}
    file = Path(sys.argv[1])
    told = training.train(subject, [row] * training.BATCH, file, 120, 0)
    made = training.load(subject, file)
    anchors = torch.arange(10, 50)
    allowed = drafter.context_mask(anchors, 60, None)[None]
    with torch.inference_mode():
        context = made.store(row["features"].float()[None])
        drafts = made.draft(tokens[anchors][None], anchors[None], context, allowed)[0]
    right = float((drafts[:, 0] == tokens[anchors + 1]).float().mean())
    return {"first": told["first_loss"], "last": told["loss"], "right": right}


def main() -> None:
    calibrated = states(300, 64) / 500
    torch.set_num_threads(1)
    print(  # noqa: T201
        json.dumps(
            {
                "coder": {str(scale): same_as_the_coder(scale) for scale in (1.0, 0.0371, 0.5)},
                "planted": same_as_the_coder(1.0, planted=1.01),
                "levels": formats.normal_levels().tolist(),
                "hadamard": float((formats.hadamard(64) @ formats.hadamard(64) - torch.eye(64)).abs().max()),
                "errors": {name: error(one.keys, states(400, 64)) for name, one in formats.FORMATS.items()},
                "small": {str(scale): error(formats.nvfp4, calibrated, scale) for scale in (1.0, 1e-4)},
                "four over six": four_over_six(),
                "divergences": divergences(),
                "definition": by_definition(),
                "mask": mask(),
                "reads": reads_the_context(),
                "learns": learns(),
                "calls": [
                    measures.read_call(
                        'The weather is:\n{"name": "f", "arguments": {"city": "Rome"}}\n\nEnd'
                    ),
                    measures.read_call('{"name": "f", "arguments": {"city": "Ro'),
                    measures.read_call("It is sunny."),
                ],
                "look up": [
                    acceptance.look_up([1, 2, 3, 4, 9, 1, 2, 3]),
                    acceptance.look_up([1, 2, 3, 7, 1, 2, 5, 1, 2]),
                    acceptance.look_up([1, 2, 3]),
                ],
                "perfect": acceptance.walk(list(range(20)), 5, lambda at: [at + 1 + n for n in range(5)]),
                "wrong third": acceptance.walk(list(range(20)), 5, lambda at: [at + 1, at + 2, 0, at + 4]),
                "none": acceptance.walk(list(range(20)), 5, lambda _: []),
            }
        )
    )


if __name__ == "__main__":
    main()
