"""Protocols and exports against the simulated server, and in the programs whose forms they have.

The programs are found in the environments that ``scripts/bench/peers.py --prepare`` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from field_kit import carried_out, peer_python

from sparkwright.verify.export.formats import ExportRequest, export_run
from sparkwright.verify.protocol.results import protocol_files, protocol_tests
from sparkwright.verify.results import load_run

if TYPE_CHECKING:
    from pathlib import Path

VERIFY = (sys.executable, "-m", "sparkwright", "verify")
SMALL = "llama-benchy pp=128 tg=16 depth=0,256 c=1,2 runs=1 exact"


def verify(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    argv = [*VERIFY, *map(str, arguments)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by the protocol."""
    place = tmp_path_factory.mktemp("field")
    done = verify("--demo", "--protocol", SMALL, "--out", "run", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["coverage"]["text"] == "1 of 1 checks"
    return place / "run"


def test_the_protocol_is_carried_out_on_the_simulator(finished: Path) -> None:
    tests = protocol_tests(load_run(finished))
    assert [(test.depth, test.concurrency, test.requests) for test in tests] == [
        (0, 1, 1), (0, 2, 2), (256, 1, 1), (256, 2, 2),
    ]  # fmt: skip
    assert [test.prompt_tokens for test in tests] == pytest.approx([128, 128, 384, 384], rel=0.05)
    assert {test.output_tokens for test in tests} == {16}
    assert "pp128 @ d256 (c2)" in (finished / "llama-benchy.md").read_text(encoding="utf-8")


def test_a_server_that_breaks_streams_fails_it(tmp_path: Path) -> None:
    fault = ("--fault", "cut-close")
    done = verify("--demo", "--protocol", SMALL, *fault, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 83, done.stderr
    assert json.loads(done.stdout)["findings"][0]["verdict"] == "fail"


def test_the_command_writes_every_form(finished: Path, tmp_path: Path) -> None:
    for form in ("prometheus", "guidellm", "csv", "junit", "json", "aiperf"):
        done = verify("export", finished, "--format", form, "-o", f"out/{form}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out" / form).exists()
    for end in ("md", "csv", "json"):
        done = verify("export", finished, "--format", "llama-benchy", "-o", f"t.{end}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"t.{end}").read_bytes() == (finished / f"llama-benchy.{end}").read_bytes()


def test_a_cell_that_is_not_there_is_refused(finished: Path, tmp_path: Path) -> None:
    done = verify("export", finished, "--format", "aiperf", "--cell", "nothing", "-o", "x", cwd=tmp_path)
    assert done.returncode != 0
    assert "nothing to export" in done.stderr
    assert not (tmp_path / "x").exists()


# In other programs --------------------------------------------------------------------------------------


def asked(name: str, code: str, *arguments: str | Path, given: Any = None) -> Any:
    """Return what *code* prints as JSON in the environment of a program."""
    python = peer_python(name)
    if python is None:
        pytest.skip(f"{name} is not installed; run 'python scripts/bench/peers.py --prepare'")
    argv = [python, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        argv, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# Its own client reads chunks into a result, and its own results make metrics of them.
_BENCHY = """
import json, sys
from llama_benchy.client import LLMClient, RequestResult
from llama_benchy.results import BenchmarkReport, BenchmarkResults
client, results, given = LLMClient("", "", ""), BenchmarkResults(), json.load(sys.stdin)
def request(one):
    made = RequestResult(start_ts=one["start"], end_ts=one["end"], prompt_tokens=one["prompt"])
    made.first_response_ts, made.first_token_ts = one["response"], one["chunks"][0][0]
    chunks = [{"timestamp": at, "text": "x", "token_ids": [0] * count} for at, count in one["chunks"]]
    client._finalize_stream_tokens(made, chunks, None)
    return made
for test in given["tests"]:
    batches = [[request(one) for one in batch] for batch in test["batches"]]
    results.add("m", *test["sizes"], batches, given["latency"], test["expected"])
BenchmarkReport.model_validate(given["report"])
print(json.dumps([run.model_dump() for run in results.runs]))
"""


def as_benchy_sees(run: Any) -> dict[str, Any]:
    """Return the requests of *run* by test, in seconds, and our report."""
    tests = []
    for test in protocol_tests(run):
        batches = [
            [
                {
                    "start": one.started / 1e9,
                    "end": one.ended / 1e9,
                    "response": one.responded / 1e9,
                    "prompt": one.prompt_tokens,
                    "chunks": [(chunk.at / 1e9, chunk.tokens) for chunk in one.chunks],
                }
                for one in seen.samples
            ]
            for seen in run.observations
            if seen.cell.tags.get("run", "0") != "0"
            and (seen.cell.tags["depth"], seen.cell.load.concurrency) == (str(test.depth), test.concurrency)
        ]
        sizes = (test.pp, test.tg, test.depth, test.concurrency)
        tests.append({"sizes": sizes, "expected": test.expected, "batches": batches})
    report = json.loads(protocol_files(run)["llama-benchy.json"])
    return {"tests": tests, "latency": report["latency_ms"] / 1e3, "report": report}


def unlike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Return the metrics of which the other program makes something else."""
    return [
        f"{name} of test {number}: {one[name]['mean']} is {other[name]['mean']}"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True))
        for name in one
        if isinstance(one[name], dict)
        and (one[name]["mean"], one[name]["std"])
        != pytest.approx((other[name]["mean"], other[name]["std"]), rel=1e-4, abs=1e-4)
    ]


def test_llama_benchy_makes_the_same_of_the_same_requests() -> None:
    run = carried_out("llama-benchy pp=128 tg=24 depth=0,256 c=1,4 runs=2 exact")
    given = as_benchy_sees(run)
    theirs = asked("llama-benchy", _BENCHY, given=given)
    ours = given["report"]["benchmarks"]
    assert unlike(ours, theirs) == []
    ours[1]["tg_throughput"]["mean"] *= 1.01
    assert [text.partition(":")[0] for text in unlike(ours, theirs)] == ["tg_throughput of test 1"]


def test_llama_benchy_makes_the_same_of_a_real_run(finished: Path) -> None:
    """Requests of the simulator, whose chunks have several tokens; times are those of the client's clock."""
    run = load_run(finished)
    run = type(run)(**{**vars(run), "manifest": {**run.manifest, "speed": 1.0}})
    given = as_benchy_sees(run)
    assert unlike(given["report"]["benchmarks"], asked("llama-benchy", _BENCHY, given=given)) == []


_AIPERF = """
import json, sys
from aiperf.common.models.export_models import JsonExportData
read = JsonExportData.model_validate_json(open(sys.argv[1]).read())
print(json.dumps({"version": read.schema_version, "ttft": read.time_to_first_token.avg,
                  "p99": read.inter_token_latency.p99, "count": read.request_count.avg}))
"""


def test_aiperf_reads_its_summary(finished: Path, tmp_path: Path) -> None:
    files = export_run(finished, ExportRequest("aiperf", tmp_path / "a", ("pp128 tg16 d0 c2 run 1",)))
    summary = json.loads(files[0].read_text(encoding="utf-8"))
    read = asked("aiperf", _AIPERF, files[0])
    assert read["version"] == "1.4"
    assert read["count"] == 2
    assert read["ttft"] == summary["time_to_first_token"]["avg"]
    assert read["p99"] == summary["inter_token_latency"]["p99"]


# The loader of its plots takes a folder with a file of requests, which it need not read.
_AIPERF_LOADER = """
import json, sys
from pathlib import Path
from aiperf.plot.core.data_loader import DataLoader
folder = Path(sys.argv[1])
(folder / "profile_export.jsonl").touch()
run = DataLoader().load_run(folder, load_per_request_data=False)
names = json.loads(sys.argv[2])
print(json.dumps({name: run.get_metric(name)["avg"] for name in names}))
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of checks, whose sweep has two levels."""
    place = tmp_path_factory.mktemp("swept")
    small = ("--checks", "sweep", "--categories", "code", "--levels", "1,8", "--max-tokens", "32")
    done = verify("--demo", *small, "--out", "run", cwd=place)
    assert (place / "run" / "verdict.json").is_file(), done.stderr
    return place / "run"


@pytest.mark.walk  # that program takes half a minute to be imported
def test_aiperfs_own_loader_reads_a_sweep(swept: Path, tmp_path: Path) -> None:
    file, *_ = export_run(swept, ExportRequest("aiperf", tmp_path / "a", ("code c=8",)))
    summary = json.loads(file.read_text(encoding="utf-8"))
    names = [name for name, value in summary.items() if isinstance(value, dict) and "avg" in value]
    assert len(names) > 12
    assert asked("aiperf", _AIPERF_LOADER, file.parent, json.dumps(names)) == {
        name: summary[name]["avg"] for name in names
    }


@pytest.mark.walk
def test_guidellms_own_loader_reads_a_sweep(swept: Path, tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    export_run(swept, ExportRequest("guidellm", file, ("code",)))
    assert asked("guidellm", _GUIDELLM, file) == []
    levels = [one["config"]["strategy"]["streams"] for one in json.loads(file.read_bytes())["benchmarks"]]
    assert levels == [1, 8]


# Its own classes work the metrics out once more, from the requests of our report.
_GUIDELLM = """
import json, sys
from guidellm.benchmark.schemas.report import GenerativeBenchmarksReport
from guidellm.schemas import DistributionSummary as D
def each(done, name, weight=lambda one: 1.0):
    return D.from_values([(getattr(one, name), float(weight(one))) for one in done])
found = []
for one in GenerativeBenchmarksReport.load_file(sys.argv[1]).benchmarks:
    done, begin, end = one.requests.successful, one.start_time, one.end_time
    theirs = {
        "time_to_first_token_ms": each(done, "time_to_first_token_ms"),
        "request_latency": each(done, "request_latency"),
        "time_per_output_token_ms": each(done, "time_per_output_token_ms", lambda r: r.output_tokens),
        "inter_token_latency_ms": each(done, "inter_token_latency_ms", lambda r: r.output_tokens - 1),
        "output_token_count": each(done, "output_tokens"),
        "requests_per_second": D.rate_distribution_from_timings(
            [r.request_end_time for r in done], begin, end),
        "prompt_tokens_per_second": D.rate_distribution_from_timings(
            [r.prompt_tokens_timing for r in done], begin, end),
        "request_concurrency": D.concurrency_distribution_from_timings(
            [(r.request_start_time, r.request_end_time) for r in done], begin, end),
    }
    for name, value in theirs.items():
        ours = getattr(one.metrics, name).successful
        pairs = [(ours.mean, value.mean), (ours.count, value.count)]
        pairs += [(ours.percentiles.p90, value.percentiles.p90)]
        found += [(name, a, b) for a, b in pairs if abs(a - b) > 1e-3 * max(abs(b), 1e-3)]
print(json.dumps(found))
"""


@pytest.mark.walk  # that program takes half a minute to be imported
def test_guidellm_reads_its_report_and_makes_the_same_of_the_requests(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    export_run(finished, ExportRequest("guidellm", file, ("run 1",)))
    assert asked("guidellm", _GUIDELLM, file) == []
    report = json.loads(file.read_text(encoding="utf-8"))
    report["benchmarks"][1]["metrics"]["time_to_first_token_ms"]["successful"]["mean"] *= 1.01
    file.write_text(json.dumps(report), encoding="utf-8")
    assert {name for name, _, _ in asked("guidellm", _GUIDELLM, file)} == {"time_to_first_token_ms"}
