"""The fleet of tiny models on a card: its cells, how each is judged, and a session over them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import serve_fleet
from fleet import judge, load, matrix
from fleet.matrix import Cell, Expectation, Fleet
from fleet.shapes import DRAFTERS, SHAPES

V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"
LEVELS = [1, 8]
CELL = Cell("dense", "dflash", "fp8", eager=False)
SERVES, TOLD = Expectation("serves"), Expectation("told")
ASKED = {
    "version": V24,
    "backend": "TRITON_ATTN",
    "device": "cuda",
    "prefix": True,
    "levels": LEVELS,
    "layers": 6,
}
RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
PROPOSER = "vllm.v1.spec_decode.dflash.DFlashProposer"


NEAR = {"100": 0.0, "2000": 0.02, "4000": 3.5, "8000": 3.4}


def answers(asked: list[load.Asked]) -> list[dict[str, Any]]:
    return [{"tokens": [100] * one.output, "cached": 0, "near": [dict(NEAR)] * one.output} for one in asked]


def layer(backend: str = "TRITON_ATTN", cache: str = "fp8", **more: Any) -> dict[str, Any]:
    return {"backend": backend, "cache": cache, "kind": "Attention", "size": 128, "sinks": False, **more}


def view(**changes: Any) -> dict[str, Any]:
    layers = {f"model.layers.{place}.self_attn.attn": layer() for place in range(6)}
    layers["model.layers.6.self_attn.attn"] = layer("FLASH_ATTN", "auto")  # a drafter's own
    return {
        "runner": RUNNER, "drafter": PROPOSER, "layers": layers, "captured": 9, "prefix_cache": True,
        **changes,
    }  # fmt: skip


def seen(*, counted: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    rise = {"drafts": 40, "drafted": 120, "accepted": 30} if counted is None else counted
    levels = {
        str(level): {"answers": answers(load.requests(level)), "counters": dict(rise)} for level in LEVELS
    }
    cold = answers([load.prefix()])[0]
    found = {
        "stage": "end",
        "vllm": V24,
        "view": view(),
        "levels": levels,
        "cold": cold,
        "boot_seconds": 9.0,
    }
    return {**found, "warm": {**cold, "cached": 1024}, **changes}


def record(what: dict[str, Any] | None, status: int | None = 0, tail: str = "") -> dict[str, Any]:
    return {"status": status, "seconds": 30.0, "seen": what, "tail": tail}


RIGHT = seen(counted={})


def faults(what: dict[str, Any], cell: Cell = CELL, wanted: Expectation = SERVES) -> list[str]:
    return judge.faults(cell, record(what), RIGHT, wanted, ASKED)


def other(what: dict[str, Any], token: int, *, level: str = "8", requests: int = 1) -> dict[str, Any]:
    """Return a copy with another token at the fifth place of some answers of a level."""
    changed = json.loads(json.dumps(what))
    for one in changed["levels"][level]["answers"][:requests]:
        one["tokens"][4] = token
    return changed


def test_a_healthy_cell_passes() -> None:
    assert faults(seen()) == []
    assert faults(seen(), wanted=TOLD) == []


def test_a_near_tie_passes_and_another_token_is_found() -> None:
    assert faults(other(seen(), 2000)) == []
    assert any("3.500 nats below" in fault for fault in faults(other(seen(), 4000)))
    near = json.loads(json.dumps(RIGHT))
    near["levels"]["8"]["answers"][0]["near"][4]["2000"] = 0.6
    found = judge.faults(CELL, record(other(seen(), 2000)), near, SERVES, ASKED)
    assert any("0.600 nats below the reference's, 0.5 allowed" in fault for fault in found)
    states = replace(CELL, shape="hybrid", cache="bf16")
    near["levels"]["8"]["answers"][0]["near"][4]["2000"] = 0.38
    assert not any(
        "nats" in one for one in judge.faults(states, record(other(seen(), 2000)), near, TOLD, ASKED)
    )
    near["levels"]["8"]["answers"][0]["near"][4]["2000"] = 0.6
    assert any(
        "0.4 allowed" in one for one in judge.faults(states, record(other(seen(), 2000)), near, TOLD, ASKED)
    )
    wide = replace(CELL, cache="nvfp4")
    found = judge.faults(wide, record(other(seen(), 2000)), near, SERVES, ASKED)
    assert not any("nats" in fault for fault in found)


def test_a_token_that_was_not_kept_is_halfway_between_two_opposite_ones() -> None:
    """Rows of a tied table that are no likely token's are small: a near tie of theirs is as near as that."""
    near = json.loads(json.dumps(RIGHT))
    near["levels"]["8"]["answers"][0]["near"][4] = {"5664": 0.0, "100": 0.5, "2000": 0.1, "4000": 0.2}
    found = judge.faults(CELL, record(other(seen(), 7308)), near, SERVES, ASKED)
    assert found == []
    near["levels"]["8"]["answers"][0]["near"][4] = {"100": 0.0, "2000": 3.0, "4000": 1.2, "8000": 1.8}
    found = judge.faults(CELL, record(other(seen(), 7308)), near, SERVES, ASKED)
    assert any("1.500 nats below" in fault for fault in found)
    near["levels"]["8"]["answers"][0]["near"][4] = {"100": 0.0}
    found = judge.faults(CELL, record(other(seen(), 7308)), near, SERVES, ASKED)
    assert any("inf nats below" in fault for fault in found)


def test_a_formats_own_loss_is_no_fault_and_answers_to_another_context_are() -> None:
    own = Cell("dense", cache="nvfp4")
    layers = {f"model.layers.{place}.self_attn.attn": layer(cache="nvfp4") for place in range(6)}
    what = seen(counted={}, view=view(drafter="", captured=0, layers=layers))
    plain = json.loads(json.dumps(RIGHT))
    for level in LEVELS:
        for one in plain["levels"][str(level)]["answers"]:
            one["tokens"][3] = 8000  # every fourth compared token is another, and 3.4 nats off
    some = judge.pooled(what, plain)
    assert (some.others, some.tokens) == (9, 36)
    assert judge.faults(own, record(what), what, SERVES, ASKED, plain=plain) == []
    for level in LEVELS:
        for one in plain["levels"][str(level)]["answers"]:
            one["tokens"][:2] = [8000, 100] if len(one["tokens"]) % 4 else [100, 8000]
    found = judge.faults(own, record(what), what, SERVES, ASKED, plain=plain)
    assert found == ["9 of 12 tokens are not those of a cache of 16 bits"]


def test_what_is_no_number_is_found() -> None:
    broken = json.loads(json.dumps(RIGHT))
    broken["levels"]["8"]["answers"][0]["near"][4]["2000"] = math.nan
    found = judge.faults(CELL, record(other(seen(), 2000)), broken, SERVES, ASKED)
    assert any("nan nats" in fault for fault in found)


def test_too_many_near_ties_are_found() -> None:
    many = other(seen(), 2000, requests=8)
    some = judge.compared(many["levels"]["8"]["answers"], RIGHT["levels"]["8"]["answers"])
    assert (some.tokens, some.others, some.worst) == (40, 8, 0.02)
    assert any("8 of 40 compared tokens are others" in fault for fault in faults(many))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": {"model.layers.0.self_attn.attn": layer("FLASH_ATTN")}}, "served by FLASH_ATTN instead"),
        (
            {"layers": {"model.layers.0.self_attn.attn": layer(cache="auto")}},
            "caches are auto instead of fp8",
        ),
        ({"layers": {"mtp.layers.0.self_attn.attn": layer()}}, "no layer of attention"),
        ({"runner": "vllm.v1.worker.gpu.model_runner.GPUModelRunner"}, "the runner is"),
        ({"drafter": ""}, "the drafter is none"),
        ({"drafter": "vllm.v1.spec_decode.eagle.EagleProposer"}, "the drafter is vllm"),
        ({"captured": 0}, "0 graphs were captured"),
        ({"prefix_cache": False}, "the prefix cache is off"),
    ],
)
def test_what_booted_must_be_what_was_asked_for(change: dict[str, Any], words: str) -> None:
    assert any(words in fault for fault in faults(seen(view=view(**change))))


def test_another_vllm_is_found() -> None:
    other_wheel = seen(vllm="0.24.0+spark.4.11111111")
    assert any("vLLM is 0.24.0+spark.4" in fault for fault in faults(other_wheel))
    any_wheel = {**ASKED, "version": "0.24.0"}
    assert judge.faults(CELL, record(other_wheel), RIGHT, SERVES, any_wheel) == []


def test_a_build_is_told_from_others_of_its_release() -> None:
    release, build = {"vllm": "0.24.0"}, "0.24.0+cpu.9c1d5c0b"
    asked = {**ASKED, "version": build}
    right = RIGHT | release | {"wheel": build}

    def found(wheel: str) -> list[str]:
        return judge.faults(CELL, record(seen(**release, wheel=wheel)), right, SERVES, asked)

    assert found(build) == []
    another = "0.24.0+cpu.07d6ac1e"
    assert found(another) == [
        f"vLLM is 0.24.0 instead of {build}",
        f"the wheel is {another}, and the reference's {build}",
    ]


def test_sinks_and_heads_of_two_sizes_are_looked_for() -> None:
    def layers(**more: Any) -> dict[str, Any]:
        return {f"model.layers.{place}.attn.attn": layer(**more) for place in range(6)}

    sinks = Cell("gptoss", "dflash", "fp8", eager=False)
    assert faults(seen(view=view(layers=layers(sinks=True))), sinks) == []
    assert "layers have no sinks" in faults(seen(view=view(layers=layers())), sinks)
    gemma = Cell("gemma4", "dflash", "fp8", eager=False)
    both = layers(size=256) | {"model.layers.2.self_attn.attn": layer(size=512)}
    assert faults(seen(view=view(layers=both)), gemma) == []
    assert any("heads are of [256]" in one for one in faults(seen(view=view(layers=layers(size=256))), gemma))


def test_a_missing_counter_and_a_wrong_one_are_found() -> None:
    assert any("no counter of accepted" in one for one in faults(seen(counted={"drafts": 1, "drafted": 3})))
    assert any(
        "nothing was drafted" in one for one in faults(seen(counted=dict.fromkeys(load.expected(1), 0)))
    )
    much = {"drafts": 1, "drafted": 3, "accepted": 4}
    assert any("4 of 3 drafted" in one for one in faults(seen(counted=much)))
    plain = replace(CELL, drafter="none")
    healthy = seen(counted={}, view=view(drafter=""))
    assert faults(healthy, plain) == []
    assert any("3 drafts without a drafter" in one for one in faults(seen(counted={"drafts": 3}), plain))


def synthetic() -> dict[str, Any]:
    found = other(other(seen(), 4000), 4000, level="1")
    for level in LEVELS:
        found["levels"][str(level)]["counters"] = load.expected(level)
    return found


def test_synthetic_acceptance_has_exact_counters_and_wrong_answers() -> None:
    cell = replace(CELL, synthetic=True)
    assert faults(synthetic(), cell) == []
    short = synthetic()
    short["levels"]["8"]["counters"]["accepted"] -= 1
    assert [fault for fault in faults(short, cell) if "accepted rose by" in fault]
    looked_at = seen()
    for level in LEVELS:
        looked_at["levels"][str(level)]["counters"] = load.expected(level)
    assert faults(looked_at, cell) == ["drafts were accepted blindly, and the answers are right"]


def test_prefix_faults_are_found() -> None:
    cold = answers([load.prefix()])[0]
    assert faults(seen(warm={**cold, "cached": 0})) == ["warm: nothing came from the prefix cache"]
    wrong = {**cold, "tokens": [100, 4000, *cold["tokens"][2:]], "cached": 1024}
    assert any(fault.startswith("warm: a token is 3.500") for fault in faults(seen(warm=wrong)))
    short = seen()
    del short["warm"]
    assert "warm: not answered in full" in faults(short)


def test_an_answer_that_ends_early_or_a_level_that_was_never_served_is_found() -> None:
    short = seen()
    short["levels"]["1"]["answers"][0]["tokens"].pop()
    assert any("c=1: answers of [39] tokens" in fault for fault in faults(short))
    never = seen()
    del never["levels"]["8"]
    assert "c=8: never served" in faults(never)


REFUSAL = "INFO 1\nTraceback (most recent call last):\nValueError: kv_cache_dtype nvfp4 is not for MLA\n"


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (REFUSAL, "ValueError: kv_cache_dtype nvfp4 is not for MLA"),
        (
            "[rank0]:     raise ValueError(\n[rank0]: ValueError: Failed to find a kernel\n\n",
            "Failed to find",
        ),
        (
            "pydantic.ValidationError: 1 error\n  Value error, nvfp4 KV cache is not supported with MLA",
            "Value error, nvfp4 KV cache is not supported with MLA",
        ),
        ("(Worker pid=7) ERROR 11-23 13:28:11 [core.py:1120] KeyError: 'x'\nINFO 1", "KeyError: 'x'"),
    ],
)
def test_the_reason_of_a_refusal_is_read_from_logs(tail: str, words: str) -> None:
    line = record({"stage": "start"}, 1, tail)
    assert judge.outcome(line) == "refused"
    assert words in judge.reason(line)
    assert judge.reason(record({"stage": "start"}, 1, "no ErrorProne class\nINFO fine")) == ""


def test_a_refusal_is_right_only_where_it_may_be() -> None:
    line = record({"stage": "start", "levels": {}}, 1, REFUSAL)
    refused = Expectation("refused", "nvfp4")
    assert judge.outcome(line) == "refused"
    assert judge.faults(CELL, line, RIGHT, refused, ASKED) == []
    assert judge.faults(CELL, line, RIGHT, TOLD, ASKED) == []
    assert "it was refused: ValueError" in judge.faults(CELL, line, RIGHT, SERVES, ASKED)[0]
    words = judge.faults(CELL, line, RIGHT, Expectation("refused", "sm100"), ASKED)
    assert "other words" in words[0]
    assert faults(seen(), wanted=refused) == ["it was served, and must be refused"]


@pytest.mark.parametrize(
    "line",
    [
        record({"stage": "start"}, None, REFUSAL),
        record({"stage": "start"}, -11, REFUSAL),
        record({"stage": "level 1"}, 1, REFUSAL),
        record({"stage": "start"}, 1, REFUSAL + "CUDA error: an illegal memory access was encountered"),
        record({"stage": "start"}, 1, "nothing is said"),
        record(None, 1, ""),
        record({"stage": "level 64"}, 0),
    ],
)
def test_a_hang_a_fault_and_a_late_or_silent_end_are_no_refusal(line: dict[str, Any]) -> None:
    assert judge.outcome(line) == "crashed"
    assert judge.faults(CELL, line, RIGHT, TOLD, ASKED)


@pytest.mark.parametrize(
    "words",
    [
        "ModuleNotFoundError: Could not import module 'MistralCommonBackend'.",
        "ImportError: cannot import name 'x' from 'y'",
        "torch.distributed.DistNetworkError: no socket. code: -98, name: EADDRINUSE, message: in use",
    ],
)
@pytest.mark.parametrize("wanted", [Expectation("told"), Expectation("refused")])
def test_a_missing_package_or_a_taken_port_is_no_refusal_of_vllms(words: str, wanted: Expectation) -> None:
    own = judge.faults(CELL, record(None, 1, "ValueError: no NVFP4 here"), RIGHT, wanted, ASKED)
    assert own == []
    found = judge.faults(CELL, record(None, 1, words), RIGHT, wanted, ASKED)
    assert "nothing is shown" in found[0]


def test_answers_without_a_reference_pass_nowhere() -> None:
    assert judge.faults(CELL, record(seen()), None, TOLD, ASKED) == [
        "there is no reference to compare answers with"
    ]


V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"


def test_every_kind_of_the_fleet_is_among_the_cells() -> None:
    for version in (V24, V33):
        every = Fleet(version).cells()
        names = [cell.name for cell in every]
        assert len(set(names)) == len(names)
        assert {cell.shape for cell in every} == set(SHAPES)
        assert {cell.drafter for cell in every} == set(DRAFTERS)
        assert {cell.cache for cell in every} == set(matrix.CACHES)
        for cell in every:
            own = Fleet(version).reference(cell)
            assert own in every
            assert (own.cache, own.drafter, own.eager) == (cell.cache, "none", True)
            assert Fleet(version).plain(cell) in every
    assert all(cell.runner == "v1" and cell.eager for cell in Fleet(V24, "cpu").cells())


def test_one_of_each_refusal_is_a_cell() -> None:
    def refused(version: str) -> set[str]:
        every = Fleet(version).cells()
        return {cell.name for cell in every if Fleet(version).expectation(cell).outcome == "refused"}

    assert refused(V33) == {"mla-none-nvfp4-v2-eager"}
    assert refused(V24) == {"mla-none-nvfp4-v1-eager", "hybrid-none-bf16-v2-eager"} | {
        f"{shape}-ngram-bf16-v2-eager" for shape in ("gemma4", "gptoss", "moe", "dense")
    }
    assert Fleet(V24).expectation(Cell("mla", cache="nvfp4")).pattern


DENSE = ("--only", "dense", "fp8", "graphs", "v1")


def args(folder: Path, *words: str) -> Any:
    for name in ("logs", "cells"):
        (folder / name).mkdir(exist_ok=True)
    return serve_fleet.arguments(["--out", str(folder), "--version", V24, "--levels", "1", "8", *words])


def put(asked: Any, cell: Cell, what: dict[str, Any] | None, **more: Any) -> None:
    line = {**record(what), "asked": [asked.version, asked.device, asked.levels], **more}
    serve_fleet.path_of(cell, asked).write_text(json.dumps(line))


def put_references(asked: Any) -> None:
    for cell, cache in ((Fleet(V24).reference(CELL), "fp8"), (Fleet(V24).plain(CELL), "auto")):
        layers = {"model.layers.0.self_attn.attn": layer(cache=cache)}
        put(asked, cell, seen(counted={}, view=view(drafter="", captured=0, layers=layers), wheel=V24))


def test_the_report_judges_what_is_on_record(tmp_path: Path) -> None:
    asked = args(tmp_path, "--report")
    assert serve_fleet.report(asked) == 1
    put_references(asked)
    put(asked, CELL, seen(wheel=V24))
    assert serve_fleet.report(asked) == 0
    put(asked, CELL, other(seen(wheel=V24), 4000))
    assert serve_fleet.report(asked) == 1
    text = (tmp_path / "matrix.md").read_text()
    assert text.startswith(f"wheel: {V24}\n")
    assert f"| {CELL.name} | served | FAIL |" in text
    own = Fleet(V24).reference(CELL)
    assert f"| {own.name} | served | pass | 9.0 | 30 | 0/332 (0.00) | 0/332 (0.00) |" in text
    assert "2 passed, 1 failed, 0 out of time" in text


@pytest.mark.parametrize(
    ("status", "cut", "tail", "came"),
    [
        (None, True, "still at it", "out of time"),
        (None, False, "still at it", "crashed"),
        (None, True, "CUDA error: an illegal memory access was encountered", "crashed"),
        (-11, False, "Segmentation fault", "crashed"),
    ],
)
def test_a_cell_that_the_budget_ends_is_no_failure_and_is_run_again(tmp_path, *, status, cut, tail, came):
    asked = args(tmp_path, *DENSE)
    put(asked, Fleet(V24).reference(CELL), RIGHT)
    put(asked, CELL, {"stage": "start", "levels": {}}, status=status, tail=tail, cut=cut)
    assert CELL in serve_fleet.planned(asked)
    serve_fleet.report(asked)
    text, late = (tmp_path / "matrix.md").read_text(), came == "out of time"
    assert f"| {CELL.name} | {came} | {'not run to its end' if late else 'FAIL'} |" in text
    # The reference here is no healthy one, and fails by itself.
    assert f"{1 if late else 2} failed, {1 if late else 0} out of time" in text
