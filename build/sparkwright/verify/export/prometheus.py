"""A run in Prometheus' text format, for node-exporter's textfile collector: gauges without timestamps."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sparkwright.base.text import clean
from sparkwright.engine.findings import Verdict
from sparkwright.verify.export.definitions import OWN
from sparkwright.verify.report.figures import cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run
    from sparkwright.verify.statistics import Summary

_PREFIX = "sparkwright_verify"
_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99"}
_MS = 1e3


class MetricSample(NamedTuple):
    """One value of a family.

    Attributes:
        labels: by name.
        value: finite.
    """

    labels: Mapping[str, str]
    value: float


def render_prometheus(run: Run) -> bytes:
    """Return the verdict, the findings by verdict and the figures of each cell.

    Unknown figures are left out. Base units: seconds, tokens, ratios from 0 to 1. Every sample has the label
    ``run``, the folder's name, so that files of several runs can lie side by side.
    """
    name = _name(run)
    lines: list[str] = []
    for family, (text, samples) in {**_of_run(run), **_of_cells(run)}.items():
        known = [sample for sample in samples if math.isfinite(sample.value)]
        if known:
            lines += [f"# HELP {_PREFIX}_{family} {_help(text)}", f"# TYPE {_PREFIX}_{family} gauge"]
            lines += [_line(family, {"run": name, **sample.labels}, sample.value) for sample in known]
    return "".join(f"{line}\n" for line in lines).encode()


def _name(run: Run) -> str:
    parts = str(run.manifest.get("report", "")).replace("\\", "/").split("/")
    return clean(parts[-2] if len(parts) > 1 else str(run.manifest.get("title", "run")))


def _line(family: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
    return f"{_PREFIX}_{family}{{{shown}}} {value!r}"


def _label(text: str) -> str:
    return clean(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str) -> str:
    return clean(text).replace("\\", r"\\").replace("\n", r"\n")


_Families = dict[str, tuple[str, list[MetricSample]]]


def _of_run(run: Run) -> _Families:
    manifest = run.manifest
    told = {
        "title": str(manifest.get("title", "")),
        "profile": str(manifest.get("profile", "")),
        "sparkwright": str(manifest.get("sparkwright", "")),
    }
    counts = Counter(finding.verdict for finding in run.findings)
    families: _Families = {
        "info": ("The server that was verified, always 1.", [MetricSample(told, 1.0)]),
        "verdict": (
            "1 for the verdict of the run, 0 for the others.",
            [MetricSample({"verdict": one}, float(one is run.verdict)) for one in Verdict],
        ),
        "findings": (
            "Number of conclusions with this verdict.",
            [MetricSample({"verdict": one}, float(counts[one])) for one in Verdict],
        ),
        "finding_passed": (
            "1 for a conclusion that passed, 0 for one that did not; absent where it is not applicable.",
            [
                MetricSample({"check": one.check, "finding": one.name}, float(one.verdict is Verdict.PASS))
                for one in run.findings
                if one.verdict is not Verdict.NOT_APPLICABLE
            ],
        ),
    }
    if (started := _moment(str(manifest.get("started", "")))) is not None:
        families["start_timestamp_seconds"] = ("Start of the run.", [MetricSample({}, started)])
    return families


def _moment(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _of_cells(run: Run) -> _Families:
    found = cells(run)

    def each(value: Callable[[CellFigures], float | None]) -> list[MetricSample]:
        return [
            MetricSample(_labels(cell), math.nan if (of := value(cell)) is None else of) for cell in found
        ]

    def quantiles(value: Callable[[CellFigures], Summary]) -> list[MetricSample]:
        return [sample for cell in found for sample in _quantiles(cell, value(cell))]

    return {
        "cell_requests": ("Requests that were counted.", each(lambda cell: float(cell.requests))),
        "cell_failed_requests": (OWN["failed"], each(lambda cell: float(len(cell.observation.failed)))),
        "cell_concurrency": ("Requests at a time.", each(lambda cell: float(cell.concurrency))),
        "cell_output_tokens_per_second": (OWN["throughput (whole)"], each(lambda cell: cell.whole_tok_s)),
        "cell_steady_output_tokens_per_second": (
            OWN["throughput (steady)"],
            each(lambda cell: cell.steady_tok_s),
        ),
        "cell_decode_tokens_per_second": (OWN["decode rate"], each(lambda cell: cell.decode_tok_s)),
        "cell_ttft_seconds": (OWN["TTFT"], quantiles(lambda cell: cell.ttft_ms)),
        "cell_tpot_seconds": (OWN["TPOT"], quantiles(lambda cell: cell.tpot_ms)),
        "cell_acceptance_ratio": (
            OWN["acceptance"],
            each(lambda cell: cell.acceptance.rate if cell.acceptance else None),
        ),
        "cell_mean_acceptance_length_tokens": (OWN["mean acceptance length"], each(lambda cell: cell.mal)),
        "cell_verify_step_seconds": (OWN["verify step"], each(lambda cell: cell.step_ms / _MS)),
        "cell_prefix_cache_hit_ratio": (
            "Share of prompt tokens that came from the prefix cache, by the server's counters.",
            each(lambda cell: cell.hit_rate),
        ),
        "cell_trouble": (
            "Number of reasons not to trust a cell's figures.",
            each(lambda cell: float(len(cell.trouble))),
        ),
    }


def _labels(cell: CellFigures) -> dict[str, str]:
    of = cell.observation.cell
    return {
        "check": of.check,
        "cell": of.name,
        "server": of.arm,
        "start": str(of.boot),
        "category": cell.category,
    }


def _quantiles(cell: CellFigures, found: Summary) -> Iterator[MetricSample]:
    for quantile, name in _QUANTILES.items():
        value = getattr(found, name)
        if value is not None:
            yield MetricSample({**_labels(cell), "quantile": quantile}, value / _MS)
