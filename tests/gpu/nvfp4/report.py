"""Tables and charts out of the lines of a run: ``python -m nvfp4.report OUT`` makes them again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# From a copy of the sources: where this runs, nothing of this project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "build"))

from collections.abc import Iterable

from nvfp4.record import markdown, read

__all__ = ["charts", "tables"]

NAMES = {"auto": "16 bits", "fp8": "FP8", "nvfp4": "NVFP4"}
WIDTH = 640
Line = dict[str, Any]


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    """Return the lines of one kind, in order."""
    return [line for line in lines if line["kind"] == kind]


def tables(lines: list[Line]) -> str:
    """All tables that there are lines for, in Markdown."""
    makers = {
        "Facts": facts,
        "Attention": attention,
        "Speed": speed,
        "Beside FlashInfer": beside_flashinfer,
        "Pack kernel": packing,
        "Serving": serving,
        "Capacity": capacity,
        "Quality": quality,
    }
    made = {title: make(lines) for title, make in makers.items()}
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in made.items() if table)


def facts(lines: list[Line]) -> str:
    """Single figures."""
    rows = [(line["part"], line["name"], line["value"]) for line in of_kind(lines, "fact")]
    rows += [
        (line["part"], name, line[name])
        for line in of_kind(lines, "trained")
        for name in ("parameters", "text", "steps", "bytes", "first_loss", "loss")
    ]
    return markdown(("part", "what", "value"), rows) if rows else ""


def attention(lines: list[Line]) -> str:
    """Return the errors by case and cache, relative to the output's root mean square."""
    found = of_kind(lines, "attention")
    rows = [
        (
            line["case"],
            line["shape"],
            NAMES[line["cache"]],
            f"{line['reader'][0]:.1e}",
            f"{line['reader'][1]:.1e}",
            f"{line['original'][0]:.1e}",
            f"{line['format']:.1e}",
        )
        for line in found
    ]
    head = (
        "case",
        "shape",
        "cache",
        "reader, RMS",
        "reader, largest",
        "against original",
        "of it the format",
    )
    return markdown(head, rows) if rows else ""


def speed(lines: list[Line]) -> str:
    """Return the times by case and cache, with floors."""
    rows = []
    for line in of_kind(lines, "speed"):
        floors = ", ".join(f"{name} {value:.1f}" for name, value in line["floor"].items())
        median, low, high = line["us"]
        rows.append(
            (
                line["case"],
                NAMES[line["cache"]],
                floors,
                f"{median:.1f}",
                f"{low:.1f} to {high:.1f}",
                f"{line['of_floor']:.2f}",
                f"{line['to_16_bit']:.2f}",
            )
        )
    head = ("case", "cache", "floor, µs", "median, µs", "quartiles", "of floor", "speed to 16 bits")
    return markdown(head, rows) if rows else ""


def beside_flashinfer(lines: list[Line]) -> str:
    """Return a table of decode times over the same tokens in microseconds: 16 bits, ours and FlashInfer's."""
    found: dict[tuple[str, str], dict[str, Line]] = {}
    for line in of_kind(lines, "flashinfer"):
        found.setdefault((line["shape"], line["case"]), {})[line["cache"]] = line
    head = (
        "shape",
        "case",
        "16 bits",
        "NVFP4, Triton",
        "NVFP4, FlashInfer",
        "to ours",
        "not split",
        "to ours",
    )
    rows = [
        (
            *key,
            *(f"{line[name]['us'][0]:.1f}" for name in ("auto", "nvfp4", "flashinfer")),
            line["flashinfer"]["to_ours"],
            f"{line['unsplit']['us'][0]:.1f}",
            line["unsplit"]["to_ours"],
        )
        for key, line in found.items()
    ]
    return markdown(head, rows) if rows else ""


def packing(lines: list[Line]) -> str:
    """Return the pack kernel beside stores of the other caches and a copy."""
    found = of_kind(lines, "pack")
    names = ("nvfp4", "auto", "fp8", "copy")
    rows = [
        (
            line["tokens"],
            f"{line['bytes']:,}",
            *(f"{line['us'][name][0]:.1f}" for name in names),
            line["to_copy"],
        )
        for line in found
    ]
    head = ("tokens", "bytes read and written", "NVFP4, µs", "16 bits, µs", "FP8, µs", "copy, µs", "to copy")
    return markdown(head, rows) if rows else ""


def serving(lines: list[Line]) -> str:
    """Return the levels by engine."""
    boots = {line["run"]: line for line in of_kind(lines, "boot")}
    levels: dict[str, list[Line]] = {name: [] for name in boots}
    for line in of_kind(lines, "level"):
        levels.setdefault(line["run"], []).append(line)
    rows = []
    for name, found in levels.items():
        bad = [str(line["c"]) for line in found if line["faults"]]
        served = ", ".join(str(line["c"]) for line in found)
        boot = boots.get(name, {})
        graphs = boot.get("view", {}).get("captured", "")
        tokens = sum(line["tokens"] for line in found)
        rows.append((name, boot.get("seconds", ""), graphs, served, f"{tokens:,}", ", ".join(bad) or "none"))
    head = ("engine", "boot, s", "graphs", "c", "tokens", "levels with faults")
    return markdown(head, rows) if rows else ""


def capacity(lines: list[Line]) -> str:
    """Return what pools of equal size hold, by the boot logs."""
    rows = [(line["run"], f"{line['gib']:g}", f"{line['tokens']:,}") for line in of_kind(lines, "capacity")]
    return markdown(("engine", "pool, GiB", "tokens"), rows) if rows else ""


def quality(lines: list[Line]) -> str:
    """Return the divergences of predictions."""
    rows = [
        (
            NAMES[line["cache"]],
            line["against"],
            line["step"],
            f"{line['places']:,}",
            f"{line['kl']:.2e}",
            f"{line['kl_99']:.2e}",
            f"{100 * line['same_first']:.2f} %",
            f"{line['perplexity']:.4f}",
            f"{line['plain_perplexity']:.4f}",
        )
        for line in of_kind(lines, "quality")
    ]
    head = (
        "cache",
        "against",
        "step",
        "tokens",
        "divergence, nats",
        "99th percentile",
        "same first choice",
        "perplexity",
        "the other's",
    )
    return markdown(head, rows) if rows else ""


# Charts -------------------------------------------------------------------------------------------------


def charts(lines: list[Line]) -> dict[str, str]:
    """Return the drawings by name, as SVG files."""
    found = [line for line in of_kind(lines, "speed") if line["queries"] == 1]
    made = {}
    for batch in sorted({line["batch"] for line in found}):
        some = sorted((line for line in found if line["batch"] == batch), key=lambda line: line["context"])
        if len({line["context"] for line in some}) > 1:
            made[f"decode-{batch}"] = decode_chart(batch, some)
    return made


def decode_chart(batch: int, lines: list[Line]) -> str:
    """Time of a decode step by context, one line a cache, and NVFP4's floor."""
    from sparkwright.verify.report import plots
    from sparkwright.verify.report.plots import Point, Series, logarithmic
    from sparkwright.verify.report.vega import Naming, inline_svg

    series = [
        Series(NAMES[cache], style, points(lines, cache, lambda line: line["us"][0]))
        for style, cache in enumerate(NAMES)
    ]
    least = points(lines, "nvfp4", lambda line: max(line["floor"].values()))
    series.append(Series("NVFP4's floor", len(series), least))
    every: list[Point] = [point for one in series for point in one.points]
    x = logarithmic("tokens of context, in thousands", [point.x for point in every], 2)
    y = logarithmic("time of one layer's attention (µs)", [point.y for point in every])
    title = f"Attention in decode, {batch} requests" if batch > 1 else "Attention in decode, one request"
    words = "; ".join(
        f"{one.name}: " + ", ".join(f"{p.x:g}k {p.y:.0f} µs" for p in one.points) for one in series
    )
    return standalone(inline_svg(plots.lines(WIDTH, x, y, series), Naming(f"decode-{batch}", title, words)))


def points(lines: list[Line], cache: str, value: Any) -> Any:
    """Return one line's points: thousands of tokens, microseconds."""
    from sparkwright.verify.report.plots import Point

    return tuple(Point(line["context"] / 1024, value(line)) for line in lines if line["cache"] == cache)


STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif;
  --card: #ffffff; --ink: #14181f; --soft: #4d5766; --line: #dde1e8;
  --s0: #069ce4; --s1: #823bae; --s2: #368223; --s3: #e5598e; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171c; --card: #14171c; --ink: #e9ecf1; --soft: #a7b0be; --line: #2b313b;
    --s0: #4ba3f7; --s1: #b57adb; --s2: #5fb447; --s3: #f3669a; } }
text { font-size: 12.5px; font-variant-numeric: tabular-nums; }
"""
"""The colours and font of a drawing that is a file of its own, outside the page."""


def standalone(drawing: Any) -> str:
    """Return an inline drawing as a file of its own, with its colours."""
    from xml.etree import ElementTree as ET

    drawing.set("xmlns", "http://www.w3.org/2000/svg")
    _, _, width, height = drawing.get("viewBox").split()
    drawing.set("width", width)
    drawing.set("height", height)
    style = ET.Element("style")
    style.text = STYLE
    drawing.insert(2, style)
    return ET.tostring(drawing, encoding="unicode") + "\n"


def main() -> None:
    """Write the tables and charts of a run again."""
    out = Path(sys.argv[1])
    lines = read(out / "lines.jsonl")
    (out / "tables.md").write_text(tables(lines) + "\n", encoding="utf-8")
    for name, drawing in charts(lines).items():
        (out / f"{name}.svg").write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
