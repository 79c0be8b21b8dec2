"""Exports of a run: each is valid in its form, and its figures are those of the cells."""

from __future__ import annotations

import csv
import io
import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
import report_kit
from field_kit import MANIFEST, carried_out, sample
from prometheus_client.parser import text_string_to_metric_families
from verify_kit import failing

from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, Observation
from sparkwright.verify.export.aiperf import CSV, aiperf_summary, render_aiperf
from sparkwright.verify.export.definitions import AIPERF, GUIDELLM, OWN
from sparkwright.verify.export.distribution import concurrency_distribution, distribution, rate_distribution
from sparkwright.verify.export.formats import FORMATS, ExportRequest, _benchy, _chosen
from sparkwright.verify.export.guidellm import render_guidellm
from sparkwright.verify.export.prometheus import render_prometheus
from sparkwright.verify.export.schema import verdict_schema
from sparkwright.verify.report import render_html
from sparkwright.verify.report.figures import cells
from sparkwright.verify.results import described
from sparkwright.verify.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "verdict-1.json"


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


@pytest.fixture(scope="module")
def unhealthy() -> Run:
    return report_kit.unhealthy()


def one_cell(*samples: Any, **load: Any) -> Run:
    """Return a run of one cell with these requests."""
    sizes = Load(**{"concurrency": 2, "requests": len(samples), **load})
    prompts = tuple(
        Prompt(name=f"p{number}", category="code", text=f"p{number}") for number in range(len(samples))
    )
    cell = Cell(check="sweep", name="code c=2", load=sizes, prompts=prompts)
    return Run(manifest=MANIFEST, observations=(Observation(cell=cell, samples=samples),))


TWO = (sample(0, 100, [150, 300], [2, 2, 4]), sample(50, 250, [350], [1, 3], prompt_tokens=60))


# Prometheus ---------------------------------------------------------------------------------------------


def scraped(data: bytes) -> dict[tuple[str, str, str, str], float]:
    """Return each cell's values as its own parser reads them, by metric, check, cell and quantile."""
    return {
        (one.name, one.labels["check"], one.labels["cell"] + one.labels["server"] + one.labels["start"],
         one.labels.get("quantile", "")): one.value
        for family in text_string_to_metric_families(data.decode())
        for one in family.samples
        if "cell" in one.labels
    }  # fmt: skip


def differing(values: dict[tuple[str, str, str, str], float], run: Run) -> list[str]:
    """Return the metrics whose values are not those of the run's cells."""
    expected = {}
    for cell in cells(run):
        of = cell.observation.cell
        place = (of.check, f"{of.name}{of.arm}{of.boot}")
        expected |= {
            ("sparkwright_verify_cell_output_tokens_per_second", *place, ""): cell.whole_tok_s,
            ("sparkwright_verify_cell_ttft_seconds", *place, "0.5"): cell.ttft_ms.p50 / 1e3,
            ("sparkwright_verify_cell_tpot_seconds", *place, "0.95"): cell.tpot_ms.p95 / 1e3,
            ("sparkwright_verify_cell_failed_requests", *place, ""): float(len(cell.observation.failed)),
        }
    known = {key: value for key, value in expected.items() if math.isfinite(value)}
    assert known
    return [
        f"{key}: {values.get(key)}" for key, value in known.items() if values.get(key) != pytest.approx(value)
    ]


@pytest.mark.parametrize("of", ["healthy", "unhealthy"])
def test_prometheus_reads_the_figures_of_every_cell(of: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(of)
    data = render_prometheus(run)
    assert differing(scraped(data), run) == []
    names = [family.name for family in text_string_to_metric_families(data.decode())]
    assert len(set(names)) == len(names)
    assert b"NaN" not in data
    assert not any(
        one.timestamp for family in text_string_to_metric_families(data.decode()) for one in family.samples
    )


def test_a_wrong_figure_in_the_export_is_found(healthy: Run) -> None:
    data = render_prometheus(healthy).decode()
    lines = data.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("sparkwright_verify_cell_ttft_seconds{"))
    head, _, value = lines[at].rpartition(" ")
    lines[at] = f"{head} {float(value) * 1.01!r}"
    found = differing(scraped("\n".join([*lines, ""]).encode()), healthy)
    assert len(found) == 1
    assert "ttft_seconds" in found[0]


def test_the_verdict_is_one_of_all(unhealthy: Run) -> None:
    families = {
        one.name: one for one in text_string_to_metric_families(render_prometheus(unhealthy).decode())
    }
    verdicts = {one.labels["verdict"]: one.value for one in families["sparkwright_verify_verdict"].samples}
    assert set(verdicts) == {one.value for one in Verdict}
    assert [name for name, value in verdicts.items() if value] == [unhealthy.verdict.value]


def test_labels_cannot_break_out() -> None:
    run = one_cell(*TWO)
    cell = msgspec.structs.replace(run.observations[0].cell, name='c="8"} 1\nevil_metric 7\\')
    hostile = Run(manifest=MANIFEST, observations=(msgspec.structs.replace(run.observations[0], cell=cell),))
    names = {family.name for family in text_string_to_metric_families(render_prometheus(hostile).decode())}
    assert all(name.startswith("sparkwright_verify_") for name in names)


# aiperf -------------------------------------------------------------------------------------------------


def by_hand() -> dict[str, float]:
    """The averages of `TWO` by aiperf's definitions, worked out from its times."""
    return {
        "request_latency": fmean([300, 300]),
        "time_to_first_token": fmean([100, 200]),
        "time_to_second_token": fmean([50, 100]),
        "inter_token_latency": fmean([200 / 7, 100 / 3]),
        "inter_chunk_latency": fmean([50, 150, 100]),
        "output_token_throughput_per_user": fmean([7 / 0.2, 3 / 0.1]),
        "benchmark_duration": 0.35,
        "request_throughput": 2 / 0.35,
        "output_token_throughput": 12 / 0.35,
        "total_token_throughput": 172 / 0.35,
        "total_isl": 160,
        "total_osl": 12,
        "request_count": 2,
        "error_request_count": 0,
        "input_sequence_length": 80,
        "output_sequence_length": 6,
    }


def wrong_fields(summary: dict[str, Any]) -> list[str]:
    """Return the fields of an aiperf summary that are not as worked out by hand."""
    return [
        name for name, value in by_hand().items() if summary[name]["avg"] != pytest.approx(value, rel=1e-9)
    ]


def test_aiperfs_fields_follow_its_definitions() -> None:
    run = one_cell(*TWO)
    summary = aiperf_summary(run, run.observations[0])
    assert wrong_fields(summary) == []
    assert {name for name in AIPERF if name in summary} == set(AIPERF)
    assert set(summary["sparkwright"]["definitions"]) == set(AIPERF)


@pytest.mark.parametrize("field", list(by_hand()))
def test_a_wrong_field_is_found(field: str) -> None:
    run = one_cell(*TWO)
    summary = aiperf_summary(run, run.observations[0])
    summary[field]["avg"] += 1
    assert wrong_fields(summary) == [field]


def test_failed_requests_are_counted_and_in_no_other_figure() -> None:
    run = one_cell(*TWO)
    failed = failing(run.observations[0], FailureKind.STALL, "no token")
    summary = aiperf_summary(run, failed)
    counted = len(failed.counted)
    assert summary["request_count"]["avg"] == counted
    assert summary["error_request_count"]["avg"] == 2 - counted
    assert summary["error_summary"][0]["error_details"]["type"] == "stall"


def test_aiperfs_table_has_its_columns() -> None:
    run = one_cell(*TWO)
    lines = list(csv.reader(io.StringIO(render_aiperf(run, run.observations[0])[CSV].decode())))
    assert lines[0][:4] == ["Metric", "avg", "min", "max"]
    rows = {line[0]: line[1] for line in lines if line}
    assert rows["Time to First Token (ms)"] == "150.00"
    assert rows["Request Throughput (requests/sec)"] == "5.71"


# guidellm -----------------------------------------------------------------------------------------------


def benchmark(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render_guidellm(run, run.observations))["benchmarks"][0]
    return found


def test_guidellms_metrics_follow_its_definitions() -> None:
    metrics = {
        name: one["successful"]
        for name, one in benchmark(one_cell(*TWO))["metrics"].items()
        if isinstance(one, dict) and isinstance(one.get("successful"), dict)
    }
    assert metrics["time_to_first_token_ms"]["mean"] == pytest.approx(150)
    assert metrics["time_to_first_token_ms"]["percentiles"]["p50"] == pytest.approx(100)  # not interpolated
    weighted = (300 / 8 * 8 + 300 / 4 * 4) / 12  # the first token's wait is in it, each token weighs as much
    assert metrics["time_per_output_token_ms"]["mean"] == pytest.approx(weighted)
    assert metrics["inter_token_latency_ms"]["mean"] == pytest.approx((200 + 100) / (7 + 3))
    assert metrics["request_latency"]["mean"] == pytest.approx(0.301)
    assert metrics["output_tokens_per_second"]["mean"] == pytest.approx(12 / 0.351)
    assert metrics["requests_per_second"]["mean"] == pytest.approx(2 / 0.351, rel=1e-4)
    assert metrics["request_concurrency"]["mean"] == pytest.approx(0.602 / 0.351)
    assert set(GUIDELLM) <= set(metrics)


def test_every_benchmark_says_how_its_metrics_are_computed() -> None:
    report = json.loads(render_guidellm(one_cell(*TWO), one_cell(*TWO).observations))
    labels = report["config"]["metadata"]["labels"]
    assert {f"definition {name}" for name in GUIDELLM} <= set(labels)
    assert "it is not this figure" in labels["definition time_per_output_token_ms"]


def test_weights_decide_percentiles() -> None:
    found = distribution([(1.0, 1), (2.0, 1), (3.0, 8)])
    assert (found["percentiles"]["p10"], found["percentiles"]["p25"], found["median"]) == (1.0, 3.0, 3.0)
    assert found["mean"] == pytest.approx(2.7)
    assert distribution([])["count"] == 0


def test_a_rate_over_time_adds_up_to_its_events() -> None:
    events = [(at, 2.0) for at in (0.5, 1.0, 1.00005, 2.0, 3.5)]
    found = rate_distribution(events, 0.0, 4.0)
    assert found["mean"] == pytest.approx(10 / 4)
    assert found["count"] == 10
    assert found["max"] == pytest.approx(4 / ((2.0 - 0.5) / 2))  # two within 0.1 ms are one


def test_concurrency_is_weighted_by_time() -> None:
    found = concurrency_distribution([(0.0, 2.0), (1.0, 2.0)], 4.0)
    assert found["mean"] == pytest.approx(3 / 4)
    assert found["percentiles"]["p99"] == 2


# The verdict --------------------------------------------------------------------------------------------


def validate(value: Any) -> None:
    jsonschema.Draft202012Validator(verdict_schema()).validate(value)


@pytest.mark.parametrize("make", [report_kit.healthy, report_kit.unhealthy, carried_out, Run])
def test_verdicts_fit_the_published_schema(make: Callable[[], Run]) -> None:
    validate(json.loads(msgspec.json.encode(described(make()))))


def test_the_schema_is_published_as_it_is() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json.loads(json.dumps(verdict_schema()))
    jsonschema.Draft202012Validator.check_schema(verdict_schema())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told.update(verdict="maybe"),
        lambda told: told.update(format=2),
        lambda told: told.pop("coverage"),
        lambda told: told["findings"][0].pop("verdict"),
        lambda told: told["findings"][0].update(measured={"x": [1]}),
        lambda told: told["servers"]["main-0"].update({"kv-tokens": "many"}),
    ],
)
def test_what_is_no_verdict_is_refused(spoil: Callable[[Any], Any]) -> None:
    told = json.loads(msgspec.json.encode(described(report_kit.healthy())))
    validate(told)
    spoil(told)
    with pytest.raises(jsonschema.ValidationError):
        validate(told)


def test_a_reader_must_stand_further_keys() -> None:
    told = json.loads(msgspec.json.encode(described(report_kit.healthy())))
    told["findings"][0]["new"] = told["new"] = 1
    validate(told)


# The page -----------------------------------------------------------------------------------------------


def test_the_page_defines_every_aggregate() -> None:
    page = render_html(one_cell(*TWO))
    assert all(f"<dt>{name}</dt>" in page for name in OWN)
    assert "Tests by the definitions" not in page


def test_the_page_of_a_protocol_has_its_table() -> None:
    page = render_html(carried_out())
    assert "Tests by the definitions of llama-benchy" in page
    assert "pp128 @ d256 (c4)" in page


def test_findings_are_told_once_each() -> None:
    finding = Finding(check="a", name="b", definition="", verdict=Verdict.PASS, cause="")
    data = render_prometheus(Run(manifest=MANIFEST, findings=(finding,)))
    passed = [
        line for line in data.decode().splitlines() if line.startswith("sparkwright_verify_finding_passed{")
    ]
    assert passed == ['sparkwright_verify_finding_passed{run="of-a-server",check="a",finding="b"} 1.0']


def test_forms_of_the_command_are_those_that_exist() -> None:
    from sparkwright.cli.verify_export import _FORMATS

    assert sorted(_FORMATS) == sorted(FORMATS)


def test_gaps_are_those_between_chunks() -> None:
    gaps = [later - before for one in TWO for before, later in pairwise([chunk.at for chunk in one.chunks])]
    run = one_cell(*TWO)
    summary = aiperf_summary(run, run.observations[0])
    assert summary["inter_chunk_latency"]["max"] == pytest.approx(max(gaps) / 1e6)
    assert summary["inter_chunk_latency"]["count"] == len(gaps)


def test_a_run_of_other_loads_is_no_table_of_llama_benchys() -> None:
    with pytest.raises(ConfigError, match="no tests of llama-benchy"):
        _benchy(one_cell(*TWO), ExportRequest("llama-benchy", Path("x.md")))
    with pytest.raises(ConfigError, match="no form of"):
        _benchy(carried_out(), ExportRequest("llama-benchy", Path("x.txt")))


@pytest.mark.parametrize(("wanted", "count"), [((), 6), (("c4 run 2",), 1), (("run 1", "run 2"), 4)])
def test_cells_are_chosen_by_parts_of_their_names(wanted: tuple[str, ...], count: int) -> None:
    run = carried_out("llama-benchy pp=128 tg=8 c=1,4 runs=2 exact")
    chosen = _chosen(run, ExportRequest("guidellm", Path("x"), wanted))
    assert len([seen for seen in chosen if seen.cell.name != "sizing"]) == count
