"""The result files of a run by the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkwright.base.text import clean
from sparkwright.engine.capabilities import TOKEN_COUNTS
from sparkwright.verify.protocol.figures import DEVIATIONS
from sparkwright.verify.protocol.options import CHECK, parse_protocol
from sparkwright.verify.protocol.table import (
    FORM,
    group_tests,
    latency_ms,
    render_csv,
    render_markdown,
    render_report,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.protocol.options import ProtocolOptions
    from sparkwright.verify.protocol.table import ProtocolTest
    from sparkwright.verify.run import Run

MARKDOWN, CSV, REPORT = "llama-benchy.md", "llama-benchy.csv", "llama-benchy.json"


def protocol_files(run: Run) -> dict[str, bytes]:
    """Return the table of *run* as Markdown, CSV and llama-benchy's JSON; nothing if it has no tests."""
    tests = protocol_tests(run)
    if not tests:
        return {}
    model = model_of(run)
    options = _options(run)
    return {
        MARKDOWN: render_markdown(tests, model, _notes(run, options)).encode(),
        CSV: render_csv(tests, model).encode(),
        REPORT: render_report(tests, model, _head(run, options)),
    }


def protocol_tests(run: Run) -> Sequence[ProtocolTest]:
    """Return the tests of a run by the protocol; none of another run, or where tokens are not counted."""
    measured = any(seen.cell.check == CHECK for seen in run.observations)
    if not measured or TOKEN_COUNTS in run.lacks:
        return ()
    options = _options(run)
    latency = latency_ms(run.observations, options.latency, run.speed)
    return group_tests(run.observations, latency, run.speed, cached=options.cached)


def model_of(run: Run) -> str:
    """Return the name of the model that *run* is about, or the server's title."""
    manifest = run.manifest
    return clean(
        str(manifest.get("main-model") or manifest.get("model") or manifest.get("title") or "unknown")
    )


def _options(run: Run) -> ProtocolOptions:
    return parse_protocol(str(run.manifest.get("protocol", "llama-benchy")))


def _head(run: Run, options: ProtocolOptions) -> dict[str, Any]:
    return {
        "version": f"sparkwright {run.manifest.get('sparkwright', '')}, as llama-benchy {FORM}",
        "timestamp": str(run.manifest.get("started", "")),
        "latency_mode": options.latency,
        "latency_ms": latency_ms(run.observations, options.latency, run.speed),
        "prefix_caching_enabled": options.cached,
    }


def _notes(run: Run, options: ProtocolOptions) -> list[str]:
    """Return the lines below the table: settings, and what is measured otherwise than by llama-benchy."""
    exact = "outputs of exactly tg tokens" if options.exact else "answers may end before tg tokens"
    runs = f"{options.runs} runs and a warm-up"
    latency = latency_ms(run.observations, options.latency, run.speed)
    head = f"By the definitions of llama-benchy {FORM}, measured by sparkwright"
    head += f" {run.manifest.get('sparkwright', '')}: {runs}, {exact}, latency ({options.latency})"
    head += f" {latency:.2f} ms, the server's own temperature."
    return [head, "", *(f"- {deviation}" for deviation in DEVIATIONS)]
