"""The log of a start is read in the wording of both releases: its facts, its errors, its stages."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from boot_logs import Boot
from msgspec import structs

from sparkwright.base.events import Event, subscribe
from sparkwright.engine.observations import BootFacts, MetricsSnapshot
from sparkwright.engine.server.bootlog import BootStages, error_lines, facts_from_metrics, read_boot_log

BOTH = pytest.mark.parametrize("dialect", ["0.24", "0.33"])
RUNNERS = pytest.mark.parametrize("runner", ["v1", "v2"])
ROUNDED = (8, 16, 24, 32, 64)


@BOTH
@RUNNERS
def test_every_fact_of_a_boot_is_read(dialect: str, runner: str) -> None:
    assert read_boot_log(Boot(dialect, runner).text) == BootFacts(
        version=f"{dialect}.0",
        runner=runner,
        backends=("TRITON_ATTN", "FLASHINFER"),
        quantization="modelopt",
        eager=False,
        kv_gib=35.7,
        kv_tokens=547_729,
        kv_dtype="fp8_e4m3",
        max_concurrency=11.14,
        weights_gib=17.94,
        graph_gib=1.03,
        graph_actual_gib=0.6,
        utilization=0.7,
        capture_sizes=ROUNDED,
        graph_mode="FULL_AND_PIECEWISE",
        planned_graphs="FULL_AND_PIECEWISE",
        speculative_tokens=7,
        speculative_method="dflash",
        max_model_len=49_152,
        max_num_seqs=64,
    )


PLAIN = (1, 2, 4, 8, 16, 24, 32, 64)


@BOTH
@pytest.mark.parametrize(
    ("boot", "facts"),
    [
        ({"k": 0, "captured": 8},
         {"speculative_tokens": 0, "speculative_method": "", "capture_sizes": PLAIN}),
        ({"estimate": "-35.69"}, {"graph_gib": -35.69}),
        ({"estimate": "0.0"}, {"graph_gib": 0.0}),
        ({"runner": "v2", "estimate": ""}, {"graph_gib": None}),
        ({"sizes": (), "captured": 0, "mode": "NONE", "estimate": ""},
         {"graph_mode": "NONE", "capture_sizes": (), "graph_actual_gib": -1}),
        ({"downgraded": "PIECEWISE"}, {"graph_mode": "PIECEWISE"}),
        ({"kv": "auto"}, {"kv_dtype": "bfloat16"}),
    ],
    ids=["no speculation", "a negative estimate", "an estimate of zero", "no estimate", "no graphs",
         "a mode that the worker changes", "a cache of the model's own type"],
)  # fmt: skip
def test_what_differs_from_boot_to_boot_is_read(dialect, boot, facts) -> None:
    found = read_boot_log(Boot(dialect, **boot).text)
    assert {name: getattr(found, name) for name in facts} == facts


@RUNNERS
def test_capture_sizes_are_rounded_only_if_their_number_says_so(runner: str) -> None:
    boot = Boot(runner=runner, estimate="")
    assert read_boot_log(boot.text).capture_sizes == ROUNDED
    unrounded = replace(boot, captured=8, mode="PIECEWISE")
    assert read_boot_log(unrounded.text).capture_sizes == PLAIN
    unexplained = replace(boot, captured=6)
    assert read_boot_log(unexplained.text).capture_sizes == PLAIN


@RUNNERS
def test_capture_sizes_whose_number_is_not_told_are_unknown(runner: str) -> None:
    untold = Boot(runner=runner, captured=0, mode="FULL_DECODE_ONLY", estimate="")
    assert read_boot_log(untold.text).capture_sizes == ()
    assert read_boot_log(replace(untold, k=0).text).capture_sizes == PLAIN


@pytest.mark.parametrize(
    "text", ["", "garbage\n\x00\xff", "Model loading took GiB", "KV cache size: , tokens"]
)
def test_what_is_not_said_is_absent(text: str) -> None:
    facts = read_boot_log(text)
    assert facts.kv_tokens == -1
    assert facts.weights_gib == -1
    assert facts.graph_gib is None
    assert facts.speculative_tokens == -1


def test_a_log_may_be_cut_anywhere() -> None:
    text = Boot().text
    for end in range(0, len(text), 97):
        read_boot_log(text[:end])


# From /metrics -----------------------------------------------------------------------------


KNOWN = {
    "kv_cache_size_tokens": "1026730", "kv_cache_max_concurrency": "20.9", "cache_dtype": "nvfp4",
    "gpu_memory_utilization": "0.65", "num_gpu_blocks": "1", "block_size": "16",
}  # fmt: skip
UNKNOWN = {"kv_cache_size_tokens": "None", "cache_dtype": "auto", "num_gpu_blocks": "9", "block_size": "None"}


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        (KNOWN, {"kv_tokens": 1_026_730, "max_concurrency": 20.9, "kv_dtype": "nvfp4", "utilization": 0.65}),
        (UNKNOWN, {}),
        ({}, {}),
    ],
)
def test_metrics_know_capacity_better_than_the_log_where_they_know_it(labels, changes) -> None:
    logged = read_boot_log(Boot(kv="auto").text)
    found = facts_from_metrics(MetricsSnapshot(at=0, cache=labels), logged)
    assert structs.replace(found, block_sizes=()) == structs.replace(logged, **changes)


def test_block_sizes_are_those_of_the_labels_and_the_aligned_one_of_a_hybrid_from_the_log() -> None:
    line = "INFO 11-23 08:00:00 [interface.py:561] Setting attention block size to {} tokens to ensure that"
    text = f"{Boot().text}\n{line.format(528)}\n{line.format(784)} attention page size is >= mamba page size."
    assert read_boot_log(Boot().text).block_sizes == ()
    assert read_boot_log(text).block_sizes == (784,)
    labels = {"block_size": "16", "mamba_block_size": "None"}
    hybrid = facts_from_metrics(MetricsSnapshot(at=0, cache=labels), read_boot_log(text))
    assert hybrid.block_sizes == (16, 784)
    labels["mamba_block_size"] = "784"
    plain = read_boot_log(Boot().text)
    assert facts_from_metrics(MetricsSnapshot(at=0, cache=labels), plain).block_sizes == (16, 784)


def test_blocks_tell_the_capacity_where_nothing_else_does() -> None:
    labels = {"num_gpu_blocks": "100", "block_size": "16"}
    assert facts_from_metrics(MetricsSnapshot(at=0, cache=labels), BootFacts()).kv_tokens == 1600


# Errors ------------------------------------------------------------------------------------


def test_a_healthy_boot_has_no_error_lines() -> None:
    assert error_lines(Boot("0.24").text + Boot("0.33", "v2").text) == ()


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=1) ERROR 07-01 10:00:00 [core.py:1233] EngineCore encountered a fatal error.",
        "ERROR 07-01 10:00:00 [async_llm.py:599] something else",
        "RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)",
        "\x1b[31m(Worker pid=2) CRITICAL 07-01 10:00:00 [a.py:1] x\x1b[0m",
        "terminate called: CUDA error: an illegal memory access was encountered",
        "Traceback (most recent call last):",
    ],
)
def test_an_error_line_is_found_among_healthy_ones(line: str) -> None:
    found = error_lines(f"{Boot().text}{line}\n")
    assert len(found) == 1
    assert "\x1b" not in found[0]


def test_error_lines_are_bounded() -> None:
    found = error_lines(("ERROR 07-01 10:00:00 [a.py:1] " + "x" * 1000 + "\n") * 300)
    assert len(found) == 200
    assert {len(line) for line in found} == {400}


ENGINE = "(EngineCore pid=101) INFO 11-27 10:00:00 "
TUNER = "2026-11-27 10:00:01,227 - INFO - autotuner.py:651 - flashinfer.jit: [Autotuner]: "
LOADING = "Loading safetensors checkpoint shards"
CAPTURING = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
LOG = (
    f"{ENGINE}[gpu_model_runner.py:4979] Starting to load model some/model...\n"
    f"\r{LOADING}:   0% Completed | 0/3 [00:00<?, ?it/s]\n"
    f"\r{LOADING}:  67% Completed | 2/3 [00:01<00:00,  1.9it/s]\n"
    f"\r{LOADING}: 100% Completed | 3/3 [00:01<00:00,  1.9it/s]\n"
    f"{ENGINE}[gpu_model_runner.py:5089] Model loading took 17.94 GiB memory and 95.38 seconds\n"
    f"{ENGINE}[backends.py:1188] Dynamo bytecode transform time: 4.11 s\n"
    f"{ENGINE}[backends.py:418] Compiling a graph for compile range (1, 2048) takes 5.20 s\n"
    f"{ENGINE}[monitor.py:76] torch.compile took 9.90 s in total\n"
    f"{ENGINE}[gpu_worker.py:773] Available KV cache memory: 35.7 GiB\n"
    f"{TUNER}Autotuning process starts ...\n"
    f"{TUNER}Autotuning process ends\n"
    f"(EngineCore pid=101) {CAPTURING}:   0%|          | 0/35 [00:00<?, ?it/s]\r{CAPTURING}: "
    " 31%|███▏      | 11/35 [00:01<00:02, 10.1it/s]\r"
    f"{CAPTURING}: 100%|██████████| 35/35 [00:03<00:00, 10.1it/s]\n"
    f"(EngineCore pid=101) Capturing dflash CUDA graphs (FULL): 100%|██████████| 7/7 [00:01<00:00]\n"
    f"{ENGINE}[gpu_model_runner.py:6517] Graph capturing finished in 4 secs, took 0.61 GiB\n"
)


def told(log: Path, pieces: Iterable[bytes]) -> list[tuple[str, str, int | None]]:
    """Return the events of a start whose log comes in *pieces*: kind, name, and the parts to do, or done."""
    events: list[Event] = []
    with subscribe(events.append), BootStages(log) as stages:
        stages.read()  # there is no log yet
        with log.open("wb", buffering=0) as stream:
            for piece in pieces:
                stream.write(piece)
                stages.read()
    return [
        (one.kind, one.data["name"], one.data["total" if one.kind == "task.started" else "done"])
        for one in events
        if one.kind != "task.progress"
    ]


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_each_stage_is_told_with_its_parts(tmp_path: Path, size: int) -> None:
    whole = LOG.encode()
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    graphs = "capture CUDA graphs (mixed prefill-decode, PIECEWISE)"
    assert told(tmp_path / "log", pieces) == [
        ("task.started", "set up the model", None),
        ("task.finished", "set up the model", 0),
        ("task.started", "load the weights", 3),
        ("task.finished", "load the weights", 3),
        ("task.started", "compile the model", None),
        ("task.finished", "compile the model", 0),
        ("task.started", "tune FlashInfer's kernels", None),
        ("task.finished", "tune FlashInfer's kernels", 0),
        ("task.started", graphs, 35),
        ("task.finished", graphs, 35),
        ("task.started", "capture dflash CUDA graphs (FULL)", 7),
        ("task.finished", "capture dflash CUDA graphs (FULL)", 7),
    ]


def test_a_start_that_ends_in_a_stage_ends_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pieces = [LOG.partition("67%")[0].encode(), b"Traceback (most recent call last)\n"]
    assert told(log, pieces)[-1][0] == "task.finished"
    events: list[Event] = []

    def broken() -> None:
        with subscribe(events.append), BootStages(log) as stages:
            stages.read()
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert events[-1].kind == "task.failed"
