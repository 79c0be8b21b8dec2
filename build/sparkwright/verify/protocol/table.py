"""The results as users of llama-benchy publish them: Markdown, CSV and its JSON report."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sparkwright.base.digests import to_json
from sparkwright.verify.protocol.figures import protocol_figures
from sparkwright.verify.protocol.options import CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sparkwright.engine.observations import Observation
    from sparkwright.verify.protocol.figures import Metric, ProtocolFigures
    from sparkwright.verify.protocol.options import Latency

FORM = "0.4.0"
"""Release of llama-benchy whose forms these are."""


@dataclass(frozen=True)
class ProtocolTest:
    """One test of the protocol, with its figures.

    Attributes:
        depth: tokens of context before the prompt.
        pp: prompt length in tokens.
        tg: longest output.
        concurrency: requests at a time.
        context_phase: the requests only put contexts into the prefix cache.
        figures: by llama-benchy's definitions.
        prompt_tokens: mean of the server's counts; 0 if it counts none.
        cached_share: share of prompt tokens that came from the prefix cache; -1 where it is not reported.
        output_tokens: mean of the server's counts.
        requests: number of counted requests.
    """

    depth: int
    pp: int
    tg: int
    concurrency: int
    context_phase: bool
    figures: ProtocolFigures
    prompt_tokens: float
    cached_share: float
    output_tokens: float
    requests: int

    @property
    def expected(self) -> int:
        """Tokens that a prompt should have, context included."""
        return self.depth + (0 if self.context_phase else self.pp)

    def name(self, phase: str, *, levels: bool) -> str:
        """Return the name of its *phase*, ``pp`` or ``tg``, with the concurrency if there are *levels*."""
        suffix = f" (c{self.concurrency})" if levels else ""
        if self.context_phase:
            return f"ctx_{phase} @ d{self.depth}{suffix}"
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{phase}{self.pp if phase == 'pp' else self.tg}{depth}{suffix}"


def latency_ms(observations: Sequence[Observation], mode: Latency, speed: float) -> float:
    """Return the latency that is taken off times to the first response, in ms of the server's clock."""
    if mode == "none":
        return 0.0
    of = {"api": "sizing", "generation": "latency"}[mode]
    seen = next((one for one in observations if one.cell.check == CHECK and one.cell.name == of), None)
    if seen is None:
        return 0.0
    times = seen.listing_ms if mode == "api" else [sample.ttft_ms for sample in seen.counted if sample.chunks]
    return fmean(times) * speed if times else 0.0


def group_tests(
    observations: Sequence[Observation], latency: float, speed: float, *, cached: bool
) -> list[ProtocolTest]:
    """Return the tests that were measured, in order; batches that only warm up are left out.

    Args:
        observations: of a run.
        latency: in ms of the server's clock.
        speed: server's seconds in one of the client's.
        cached: contexts were put into the prefix cache before.
    """
    grouped: dict[tuple[int, int, int, int, bool], list[Observation]] = {}
    for seen in observations:
        tags = seen.cell.tags
        if seen.cell.check != CHECK or tags.get("run", "0") == "0":
            continue
        sizes = (int(tags["depth"]), int(tags["pp"]), int(tags["tg"]), seen.cell.load.concurrency)
        grouped.setdefault((*sizes, "phase" in tags), []).append(seen)
    return [_test(key, seen, latency, speed, cached=cached) for key, seen in grouped.items()]


def _test(
    key: tuple[int, int, int, int, bool],
    seen: Sequence[Observation],
    latency: float,
    speed: float,
    *,
    cached: bool,
) -> ProtocolTest:
    depth, pp, tg, level, context = key
    samples = [sample for one in seen for sample in one.counted]
    expected = depth if context else pp if cached and depth else depth + pp
    known = [sample for sample in samples if sample.cached_tokens >= 0]
    prompts = sum(sample.prompt_tokens for sample in known)
    return ProtocolTest(
        depth=depth,
        pp=pp,
        tg=tg,
        concurrency=level,
        context_phase=context,
        figures=protocol_figures([one.samples for one in seen], level, expected, latency / 1e3, speed),
        prompt_tokens=fmean(sample.prompt_tokens for sample in samples) if samples else 0.0,
        cached_share=sum(sample.cached_tokens for sample in known) / prompts if prompts else -1.0,
        output_tokens=fmean(sample.output_tokens for sample in samples) if samples else 0.0,
        requests=len(samples),
    )


# Forms ---------------------------------------------------------------------------------------------------

_Row = tuple[str, dict[str, "Metric | None"]]


def _rows(tests: Sequence[ProtocolTest]) -> list[_Row]:
    """Return name and columns of each row, two for each test."""
    levels = max((test.concurrency for test in tests), default=1) > 1
    rows: list[_Row] = []
    for test in tests:
        of = test.figures
        if of.pp is not None:
            times = {"ttfr": of.ttfr, "est_ppt": of.est_ppt, "e2e_ttft": of.e2e_ttft}
            rows.append((test.name("pp", levels=levels), {"t_s": of.pp, "t_s_req": of.pp_req, **times}))
        if of.tg is not None or of.peak is not None:
            peaks = {"peak_ts": of.peak, "peak_ts_req": of.peak_req}
            rows.append((test.name("tg", levels=levels), {"t_s": of.tg, "t_s_req": of.tg_req, **peaks}))
    return rows


_COLUMNS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
_HEADS = {
    "t_s": "t/s",
    "t_s_req": "t/s (req)",
    "peak_ts": "peak t/s",
    "peak_ts_req": "peak t/s (req)",
    "ttfr": "ttfr (ms)",
    "est_ppt": "est_ppt (ms)",
    "e2e_ttft": "e2e_ttft (ms)",
}


def protocol_rows(tests: Sequence[ProtocolTest]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the table, without the model."""
    levels = max((test.concurrency for test in tests), default=1) > 1
    columns = [name for name in _COLUMNS if levels or not name.endswith("_req")]
    heads = ["test", *(_HEADS[name] for name in columns)]
    if levels:
        heads[1] = "t/s (total)"
    return heads, [[test, *(_shown(found.get(name)) for name in columns)] for test, found in _rows(tests)]


def render_markdown(tests: Sequence[ProtocolTest], model: str, notes: Iterable[str] = ()) -> str:
    """Return the table as Markdown, with *notes* below it."""
    columns, found = protocol_rows(tests)
    heads, rows = ["model", *columns], [[_cell(model), *row] for row in found]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [_line(heads, widths), _rule(widths), *(_line(row, widths) for row in rows)]
    return "\n".join([*lines, "", *notes, ""])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _shown(metric: Metric | None) -> str:
    return "" if metric is None else f"{metric.mean:.2f} ± {metric.std:.2f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    pad: Callable[[str, int], str]
    padded = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        pad = str.rjust if place else str.ljust
        padded.append(pad(cell, width))
    return f"| {' | '.join(padded)} |"


def _rule(widths: Sequence[int]) -> str:
    left, *rest = widths
    return f"|:{'-' * (left + 1)}|{'|'.join('-' * (width + 1) + ':' for width in rest)}|"


def render_csv(tests: Sequence[ProtocolTest], model: str) -> str:
    """Return the table as CSV: llama-benchy's columns, mean and standard deviation of each figure."""
    text = io.StringIO()
    names = [f"{name}_{of}" for name in _COLUMNS for of in ("mean", "std")]
    writer = csv.writer(text)
    writer.writerow(["model", "test_name", *names])
    for test, found in _rows(tests):
        metrics = [found.get(name) for name in _COLUMNS]
        figures = [value for one in metrics for value in ((one.mean, one.std) if one else ("", ""))]
        writer.writerow([_plain(model), test, *figures])
    return text.getvalue()


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def report_of(tests: Sequence[ProtocolTest], model: str, head: dict[str, Any]) -> dict[str, Any]:
    """Return llama-benchy's report: *head* (version, timestamp, latency) and a benchmark for each test."""
    return {
        **head,
        "model": model,
        "max_concurrency": max((test.concurrency for test in tests), default=1),
        "benchmarks": [_benchmark(test) for test in tests],
    }


def render_report(tests: Sequence[ProtocolTest], model: str, head: dict[str, Any]) -> bytes:
    """Return `report_of` as JSON."""
    return to_json(report_of(tests, model, head)) + b"\n"


_FIELDS = {
    "pp_throughput": "pp",
    "pp_req_throughput": "pp_req",
    "tg_throughput": "tg",
    "tg_req_throughput": "tg_req",
    "peak_throughput": "peak",
    "peak_req_throughput": "peak_req",
    "ttfr": "ttfr",
    "est_ppt": "est_ppt",
    "e2e_ttft": "e2e_ttft",
}


def _benchmark(test: ProtocolTest) -> dict[str, Any]:
    metrics = {name: getattr(test.figures, own) for name, own in _FIELDS.items()}
    return {
        "concurrency": test.concurrency,
        "context_size": test.depth,
        "prompt_size": test.pp,
        "response_size": test.tg,
        "is_context_prefill_phase": test.context_phase,
        **{name: asdict(metric) if metric else None for name, metric in metrics.items()},
    }
