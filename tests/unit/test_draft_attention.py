"""The judge of the proof of sliding windows fires on each planted fault and is silent on the healthy twin."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import draft_attention
from draft_attention import SERVING, WINDOW, Work
from pair import judge, models

FLASH = "serve-full-flash"


def case(**changes: Any) -> dict[str, Any]:
    return {
        "backend": "FLASH_ATTN",
        "histories": "beyond",
        "window": 64,
        "causal": True,
        "drafts": 15,
        "heads": 32,
        "kv_heads": 8,
        "head_size": 128,
        "fault": "",
        "error": 3e-3,
        "worst_row": 5e-3,
        "apart": {"causality": 0.2, "window -1": 0.1, "window +1": 0.1},
        "padding": True,
        "seconds": 0.1,
        **changes,
    }


def failed(checks: list[Any]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def work(tmp_path: Path, **arguments: Any) -> Work:
    args = argparse.Namespace(
        out=tmp_path,
        device="cuda",
        runner="v1",
        levels=[],
        boot_seconds=1,
        gpu_memory_utilization=0.5,
        **arguments,
    )
    return Work(args, tmp_path)


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_healthy_case_has_no_faults() -> None:
    assert judge.faults(case()) == []
    # Within the window a smaller or larger one gives the same.
    assert judge.faults(case(histories="below", apart={"causality": 0.2})) == []
    assert judge.faults(case(window=None, apart={"causality": 0.2})) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error": 2e-2}, "error 2.00e-02"),
        ({"error": float("nan")}, "error nan"),
        ({"apart": {"causality": 0.2, "window -1": 3e-3, "window +1": 0.1}}, "another window -1"),
        ({"apart": {"causality": 0.2, "window -1": 0.1, "window +1": 3e-3}}, "another window +1"),
        ({"apart": {"causality": 3e-3, "window -1": 0.1}}, "another causality"),
        ({"error": 9e-3, "apart": {"causality": 1.1e-2, "window -1": 0.1}}, "another causality"),
        ({"apart": {"window -1": 0.1}}, "causality makes no difference"),
        ({"apart": {"causality": 0.2}}, "the window makes no difference"),
        ({"padding": False}, "padding"),
        ({"fault": "RuntimeError('boom')"}, "boom"),
    ],
)
def test_each_fault_of_a_case_is_found(changes: dict[str, Any], words: str) -> None:
    assert [fault for fault in judge.faults(case(**changes)) if words in fault]


def test_cases_are_judged_and_none_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status: dict[str, int] = {}

    def start(self: Work, name: str, *_rest: Any) -> int:
        (self.out / f"{name}.log").write_text("")
        if name == "attention-TRITON_ATTN":  # one of the processes that share the cases
            write(self.out / "attention.jsonl", found)
        return status.get(name, 0)

    monkeypatch.setattr(Work, "start", start)
    found = [case()]
    assert failed(draft_attention.attention(work(tmp_path))) == []
    found = [case(), case(error=1.0)]
    assert failed(draft_attention.attention(work(tmp_path))) == [draft_attention.case_name(case())]
    found = []
    assert failed(draft_attention.attention(work(tmp_path))) == ["cases"]
    found, status = [case()], {"attention-FLASH_ATTN-64": 1}
    assert failed(draft_attention.attention(work(tmp_path))) == ["came to its end"]


def serving_lines(name: str = FLASH) -> list[dict[str, Any]]:
    serving = SERVING[name]
    runner, drafter, sampler = draft_attention.RUNNERS["v1"]
    sliding = [kind == "sliding_attention" for kind in models.WINDOW_LAYERS]
    layers = [
        {
            "name": f"draft.{i}",
            "window": [WINDOW - 1, 0] if one else [-1, -1],
            "backend": serving.backend,
            "kv": "FullAttentionSpec",
            "group": 0,
        }
        for i, one in enumerate(sliding)
    ]
    view = {
        "runner": runner,
        "drafter": drafter,
        "rejection_sampler": sampler,
        "cudagraph_mode": f"CUDAGraphMode.{serving.graphs or 'NONE'}",
        "captured": 9 if serving.graphs else 0,
    }
    causality = {f"draft.{i}": [str(one)] for i, one in enumerate(sliding)}
    return [
        {"run": name, "kind": "boot", "view": view, "asked": [layers], "canary": True, "seconds": 9.0},
        {"run": name, "kind": "level", "c": 3, "faults": []},
        {"run": name, "kind": "end", "asked": [causality]},
    ]


def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], name: str = FLASH
) -> list[str]:
    def start(self: Work, name: str, *_rest: Any) -> int:
        (self.out / f"{name}.log").write_text("")
        write(self.out / "lines.jsonl", lines)
        return 0

    monkeypatch.setattr(Work, "start", start)
    here = work(tmp_path)
    here.args.levels = [3]
    return failed(draft_attention.serve(here, name))


@pytest.mark.parametrize("name", SERVING)
def test_a_healthy_engine_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert served(tmp_path, monkeypatch, serving_lines(name), name) == []


def test_each_fault_of_an_engine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(change: Any) -> list[str]:
        lines = serving_lines()
        change(*lines)
        return served(tmp_path, monkeypatch, lines)

    boot_view = {"runner": "v2", "drafter": "x", "rejection_sampler": "x"}
    for key, value in boot_view.items():
        assert altered(lambda boot, *_, k=key, v=value: boot["view"].update({k: v})) == [key]
    assert altered(lambda boot, *_: boot["view"].update(captured=0)) == ["graphs"]
    assert altered(lambda boot, *_: boot["view"].update(cudagraph_mode="PIECEWISE")) == ["graphs"]
    assert altered(lambda boot, *_: boot.update(canary=False)) == ["first request"]
    assert altered(lambda boot, *_: boot["asked"][0][0].update(window=[-1, -1])) == ["draft windows"]
    assert altered(lambda boot, *_: boot["asked"][0][4].update(backend="TRITON_ATTN")) == ["draft backend"]
    assert altered(lambda boot, *_: boot["asked"][0][1].update(group=1)) == ["draft KV"]
    kv = {"kv": "SlidingWindowSpec"}
    assert altered(lambda boot, *_: [layer.update(kv) for layer in boot["asked"][0]]) == ["draft KV"]
    assert altered(lambda _, __, end: end["asked"][0].update({"draft.4": ["True"]})) == ["draft causality"]
    assert altered(lambda _, __, end: end["asked"][0].pop("draft.0")) == ["draft causality"]
    assert altered(lambda _, level, __: level.update(faults=["lost"])) == ["c=3"]
    assert altered(lambda _, level, __: level.update(c=4)) == ["c=3"]
    assert served(tmp_path, monkeypatch, serving_lines()[1:]) == ["boot and end"]


def asked_layers(name: str) -> list[dict[str, Any]]:
    window = draft_attention.DRAFTERS[name]
    sliding = [-1, -1] if window is None else [window - 1, 0]
    return [{"window": one, "backend": "FLASH_ATTN"} for one in (*[sliding] * 4, [-1, -1])]


def compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: dict[tuple[str, int], Any],
    layers: dict[str, Any] | None = None,
) -> list[str]:
    def start(self: Work, run: str, *_rest: Any) -> int:
        name = run.removeprefix("compare-")
        told = {"run": run, "kind": "compare", "tokens": [1]}
        lines = [
            {
                **told,
                "prompt": prompt,
                "states": vector,
                "layers": {name: asked_layers(name), **(layers or {})}[name],
            }
            for (of, prompt), vector in states.items()
            if of == name
        ]
        (self.out / f"{run}.log").write_text("")
        with (self.out / "lines.jsonl").open("a") as stream:
            stream.write("".join(json.dumps(line) + "\n" for line in lines))
        return 0

    monkeypatch.setattr(Work, "start", start)
    (tmp_path / "lines.jsonl").unlink(missing_ok=True)
    return failed(draft_attention.compare(work(tmp_path)))


def test_windows_must_show_beyond_them_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = draft_attention.PROMPTS
    one, other = [1.0, 2.0], [2.0, 1.0]
    healthy = {
        ("window", short): one, ("wide", short): one, ("none", short): other,
        ("window", long): one, ("wide", long): other, ("none", long): other,
    }  # fmt: skip
    assert compared(tmp_path, monkeypatch, healthy) == []
    for change, words in (
        ({("window", short): other}, "within the window, windows change nothing"),
        ({("wide", long): one}, "beyond the window, they do"),
        ({("none", short): one}, "within the window, causality does"),
        ({("window", long): []}, "beyond the window, they do"),
    ):
        found = compared(tmp_path, monkeypatch, healthy | change)
        assert [name for name in found if name.startswith(words)] == found != []
    for name, other_layers in (
        ("window", asked_layers("none")),
        ("wide", asked_layers("window")),
        ("none", [layer | {"backend": "TRITON_ATTN"} for layer in asked_layers("none")]),
    ):
        assert compared(tmp_path, monkeypatch, healthy, {name: other_layers}) == [f"windows of {name}"]


@pytest.mark.parametrize(("runner", "asked"), [("v1", "0"), ("v2", "1")])
def test_the_comparison_runs_on_the_runner_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str, asked: str
) -> None:
    seen = set()

    def start(self: Work, run: str, _command: list[str], _seconds: float, chosen: str | None) -> int:
        seen.add(chosen)
        (self.out / f"{run}.log").write_text("")
        return 0

    monkeypatch.setattr(Work, "start", start)
    here = work(tmp_path)
    here.args.runner = runner
    draft_attention.compare(here)
    assert seen == {asked}


def test_model_runner_v2_has_the_comparison_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*more: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["draft_attention.py", "--out", "x", *more])
        only: list[str] = draft_attention.arguments().only
        return only

    assert chosen() == draft_attention.PARTS
    assert chosen("--runner", "v2") == ["compare"]
    with pytest.raises(SystemExit):
        chosen("--runner", "v2", "--only", "refuse")


def test_a_refusal_is_one_only_if_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(status: int | None, log: str, lines: list[dict[str, Any]]) -> list[str]:
        def start(self: Work, name: str, *_rest: Any) -> int | None:
            (self.out / f"{name}.log").write_text(log)
            write(self.out / "lines.jsonl", lines)
            return status

        monkeypatch.setattr(Work, "start", start)
        return failed(draft_attention.refuse(work(tmp_path)))

    said = "ValueError: …, which run with VLLM_USE_V2_MODEL_RUNNER=0\n"
    assert refused(1, said, []) == []
    for status, log, lines in (
        (0, said, []),
        (None, said, []),
        (1, "CUDA error\n", []),
        (1, said, [{"run": "refuse", "kind": "boot"}]),
    ):
        assert refused(status, log, lines) == ["V2 refuses windows"]


def test_a_drafter_with_windows_is_a_copy_with_a_configuration_of_its_own(tmp_path: Path) -> None:
    _, drafter = models.write_models(tmp_path)
    with_windows = models.write_window_drafter(drafter, "window", 64)
    without = models.write_window_drafter(drafter, "none", None)
    config = json.loads((with_windows / "config.json").read_text())
    assert config["layer_types"] == models.WINDOW_LAYERS
    assert config["num_hidden_layers"] == len(models.WINDOW_LAYERS)
    assert (config["sliding_window"], config["use_sliding_window"]) == (64, True)
    plain = json.loads((without / "config.json").read_text())
    assert "layer_types" not in plain
    assert plain["num_hidden_layers"] == config["num_hidden_layers"]


def test_a_part_that_dies_fails_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def boom(_work: Work) -> list[Any]:
        raise LookupError("no card")

    monkeypatch.setattr(draft_attention, "attention", boom)
    monkeypatch.setattr(
        draft_attention, "refuse", lambda _work: [draft_attention.Check("a", ok=True, detail="b")]
    )
    monkeypatch.setattr(
        sys, "argv", ["draft_attention.py", "--out", str(tmp_path / "out"), "--only", "attention", "refuse"]
    )
    assert draft_attention.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"
    assert "no card" in (tmp_path / "out" / "table.md").read_text()
