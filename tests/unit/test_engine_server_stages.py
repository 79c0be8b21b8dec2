"""The stages of a start, from a log that comes in pieces."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from sparkwright.base.events import Event, subscribe
from sparkwright.engine.server.bootlog import BootStages

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


def test_other_lines_are_no_stages(tmp_path: Path) -> None:
    lines = f"{ENGINE}[core.py:1] Loading plugins: 3 of 4\nGET /metrics 200 | 1/2 [ok]\n"
    assert told(tmp_path / "log", [lines.encode()]) == []
