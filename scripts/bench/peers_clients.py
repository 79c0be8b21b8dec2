"""Load generators of the field: how each is installed and run, and how the times of its requests are read."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOOK = "file:///notes"
_FIND_VLLM = "import importlib.util as u; print(all(map(u.find_spec, ('vllm', 'torch'))))"


@dataclass(frozen=True)
class PeerTime:
    """The times of one request as a load generator reports them.

    Attributes:
        request: part of the server's id of it; empty if the program reports none.
        batch: number of the batch that it was sent in, where it has no id.
        ttft_ms: time to the first token.
        tpot_ms: time per token after it.
    """

    ttft_ms: float
    tpot_ms: float
    request: str = ""
    batch: int = 0


@dataclass(frozen=True)
class PeerJob:
    """One run of a load generator.

    Attributes:
        model: name to request.
        level: requests at a time.
        requests: number of counted requests.
        tokenizer: folder with a tokenizer.
    """

    url: str
    model: str
    level: int
    requests: int
    tokens: int
    tokenizer: Path
    folder: Path


@dataclass(frozen=True)
class Peer:
    """A load generator.

    Attributes:
        package: on the package index; empty for one that is found in an environment.
        command: arguments after the interpreter, for a job.
        read: times of the requests of a finished job.
        environment: variables for a job.
    """

    name: str
    package: str
    command: Callable[[PeerJob], Sequence[str]]
    read: Callable[[PeerJob], list[PeerTime]]
    environment: Callable[[PeerJob], Mapping[str, str]] = field(default=lambda _: {})


# Environments ---------------------------------------------------------------------------------------------


def environments() -> Path:
    """Return the folder of the environments."""
    from sparkwright.store.paths import default_home

    return default_home() / "peers"


def find_python(peer: Peer) -> Path | None:
    """Return the interpreter that has *peer*, if there is one."""
    if peer.package:
        found = sorted(environments().glob(f"{peer.package}-*/bin/python"))
        return found[-1] if found else None
    if peer.name == "sparkwright":
        return Path(sys.executable)
    for python in sorted(environments().parent.glob("environments/*/bin/python")):
        asked = subprocess.run([python, "-c", _FIND_VLLM], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == "True":
            return python
    return None


def prepare(peer: Peer) -> Path | None:
    """Return the interpreter that has *peer*; its environment is made where the package index has it."""
    if (python := find_python(peer)) is not None or not peer.package:
        return python
    new = environments() / f".{peer.package}"
    shutil.rmtree(new, ignore_errors=True)
    subprocess.run(["uv", "venv", "--quiet", new], check=True)
    install = ["uv", "pip", "install", "--quiet", "--python"]
    subprocess.run([*install, new / "bin" / "python", peer.package], check=True)
    version = version_of(peer, new / "bin" / "python")
    shutil.rmtree(new)  # programs in an environment have its path in them, so it is made where it stays
    place = environments() / f"{peer.package}-{version}"
    subprocess.run(["uv", "venv", "--quiet", place], check=True)
    subprocess.run([*install, place / "bin" / "python", f"{peer.package}=={version}"], check=True)

    return place / "bin" / "python"


def version_of(peer: Peer, python: Path) -> str:
    """Return the version of *peer* that *python* has."""
    code = f"import importlib.metadata as m; print(m.version({peer.package or 'vllm'!r}))"
    if peer.name == "sparkwright":
        code = "import sparkwright; print(sparkwright.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# aiperf -------------------------------------------------------------------------------------------------


def _aiperf(job: PeerJob) -> list[str]:
    return [
        "-m", "aiperf", "profile", "--model", job.model, "--url", job.url, "--endpoint-type", "chat",
        "--streaming",
        "--tokenizer", str(job.tokenizer), "--use-server-token-count", "--concurrency", str(job.level),
        "--request-count", str(job.requests), "--warmup-request-count", str(job.level), "--isl", "32",
        "--osl", str(job.tokens), "--extra-inputs", "ignore_eos:true",
        "--output-artifact-dir", str(job.folder), "--ui", "none", "--no-gpu-telemetry",
    ]  # fmt: skip


def _read_aiperf(job: PeerJob) -> list[PeerTime]:
    lines = (job.folder / "profile_export.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [
        PeerTime(
            request=record["metadata"]["x_request_id"],
            ttft_ms=record["metrics"]["time_to_first_token"]["value"],
            tpot_ms=record["metrics"]["inter_token_latency"]["value"],
        )
        for record in records
        if record["metadata"]["benchmark_phase"] == "profiling"
    ]


# guidellm -----------------------------------------------------------------------------------------------


def _guidellm(job: PeerJob) -> list[str]:
    return [
        "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={job.url},model={job.model}",
        "--profile", f"kind=concurrent,streams={job.level}",
        "--constraint", f"kind=max_requests,count={job.requests + job.level}",
        "--tokenizer", f"kind=hf_auto,model={job.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={job.tokens}",
        "--output", f"kind=json,path={job.folder / 'benchmarks.json'}", "--disable-console",
    ]  # fmt: skip


def _read_guidellm(job: PeerJob) -> list[PeerTime]:
    """Return times without those of the first requests, since it has no warm-up by a number of them."""
    report = json.loads((job.folder / "benchmarks.json").read_text())
    done = report["benchmarks"][0]["requests"]["successful"]
    done.sort(key=lambda request: request["info"]["timings"]["request_start"])
    return [
        PeerTime(
            request=request["response_id"],
            ttft_ms=request["time_to_first_token_ms"],
            tpot_ms=request["inter_token_latency_ms"],
        )
        for request in done[job.level :]
    ]


# vllm bench serve ---------------------------------------------------------------------------------------


def _vllm(job: PeerJob) -> list[str]:
    return [
        "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", job.url,
        "--model", job.model, "--tokenizer", str(job.tokenizer), "--dataset-name", "random",
        "--random-input-len", "32", "--random-output-len", str(job.tokens), "--ignore-eos",
        "--num-prompts", str(job.requests), "--num-warmups", str(job.level),
        "--max-concurrency", str(job.level), "--request-id-prefix", f"peer{job.level}-",
        "--save-result", "--save-detailed", "--result-dir", str(job.folder),
        "--result-filename", "result.json", "--disable-tqdm",
    ]  # fmt: skip


def _read_vllm(job: PeerJob) -> list[PeerTime]:
    result = json.loads((job.folder / "result.json").read_text())
    rows = zip(result["ttfts"], result["itls"], result["output_lens"], strict=True)
    return [
        PeerTime(
            request=f"peer{job.level}-{number}", ttft_ms=1e3 * ttft, tpot_ms=1e3 * sum(gaps) / (count - 1)
        )
        for number, (ttft, gaps, count) in enumerate(rows)
    ]


# llama-benchy -------------------------------------------------------------------------------------------


def _benchy(job: PeerJob) -> list[str]:
    return [
        "-m", "llama_benchy", "--base-url", f"{job.url}/v1", "--model", job.model,
        "--tokenizer", str(job.tokenizer / "tokenizer.json"), "--book-url", BOOK, "--pp", "32",
        "--tg", str(job.tokens), "--exact-tg", "--concurrency", str(job.level),
        "--runs", str(-(-job.requests // job.level)), "--latency-mode", "none", "--skip-coherence",
        "--no-adapt-prompt", "--save-result", str(job.folder / "result.json"), "--format", "json",
    ]  # fmt: skip


def _benchy_home(job: PeerJob) -> dict[str, str]:
    """Return a home folder in whose cache the program finds its book, since it would fetch it otherwise."""
    import hashlib

    from sparkwright.verify.corpus import write_notes

    cache = job.folder / ".cache" / "llama-benchy"
    cache.mkdir(parents=True, exist_ok=True)
    name = hashlib.md5(BOOK.encode()).hexdigest()  # noqa: S324 - how that program names its cached files
    (cache / f"{name}.txt").write_text(write_notes(20_000, 0), encoding="utf-8")
    return {"HOME": str(job.folder)}


def _read_benchy(job: PeerJob) -> list[PeerTime]:
    """Return times in the order in which batches were sent: the program reports no ids."""
    (run,) = json.loads((job.folder / "result.json").read_text())["benchmarks"]
    pairs = zip(run["e2e_ttft"]["values"], run["tg_req_throughput"]["values"], strict=True)
    return [
        PeerTime(batch=number // job.level, ttft_ms=ttft, tpot_ms=1e3 / rate)
        for number, (ttft, rate) in enumerate(pairs)
    ]


# sparkwright --------------------------------------------------------------------------------------------


def _own(job: PeerJob) -> list[str]:
    sizes = (job.level, job.requests, job.tokens)
    script = Path(__file__).with_name("peers_own.py")
    return [str(script), job.url, job.model, *map(str, sizes), str(job.folder / "times.csv")]


def _read_own(job: PeerJob) -> list[PeerTime]:
    with (job.folder / "times.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [
        PeerTime(request=row["request"], ttft_ms=float(row["ttft_ms"]), tpot_ms=float(row["tpot_ms"]))
        for row in rows
    ]


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("sparkwright", "", _own, _read_own),
        Peer("vllm bench serve", "", _vllm, _read_vllm),
        Peer("llama-benchy", "llama-benchy", _benchy, _read_benchy, _benchy_home),
        Peer("aiperf", "aiperf", _aiperf, _read_aiperf),
        Peer("guidellm", "guidellm", _guidellm, _read_guidellm),
    )
}
"""Load generators by name, ours first."""


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that needs no download into *folder*."""
    from sparkwright.engine.tiny import tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(2048)), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 100_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def variables(peer: Peer, job: PeerJob) -> dict[str, str]:
    """Return the variables of a run of *peer*: nothing is fetched or reported."""
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **quiet, **peer.environment(job)}
