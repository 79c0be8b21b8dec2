"""The tables, intervals and chart of `scripts/kv_quality`, which need no torch."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def modules():
    """The script's modules, imported from their folder."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield {
            name: importlib.import_module(f"kv_quality.{name}") for name in ("chart", "intervals", "tables")
        }
    finally:
        sys.path[:] = before


def text_line(part: str, name: str, loss: float, kl: float, *, stride: int = 1, places: int = 1023):
    row = {
        "format": name,
        "stride": stride,
        "loss": [loss] * places,
        "kl": [kl] * places,
        "same": [1] * places,
    }
    return {"model": "m", "part": part, "row": row}


def lines():
    found = []
    # The formats' lines are in another order than the texts', as where a run was stopped.
    for name, kl, more in (("16 bits", 0.0, 0.0), ("FP8", 0.01, 0.02), ("NVFP4", 0.1, 0.09)):
        parts = [("text prose 0", 2.0), ("text code 0", 1.0)]
        for part, loss in parts if name == "16 bits" else parts[::-1]:
            found.append(text_line(part, name, loss + more, kl if "code" in part else 2 * kl))
    return found


def test_an_interval_covers_the_mean_and_shrinks_with_more_texts(modules):
    bootstrap = modules["intervals"].bootstrap
    few, many = [0.0, 1.0] * 3, [0.0, 1.0] * 60
    (low, high), (least, most) = bootstrap(few, mean), bootstrap(many, mean)
    assert low < 0.5 < high
    assert least < 0.5 < most
    assert most - least < (high - low) / 2


def test_an_interval_of_equal_texts_is_a_point(modules):
    assert modules["intervals"].bootstrap([3.0] * 5, mean) == (3.0, 3.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.99, 3.97)])
def test_quantiles_are_linear_between_values(modules, share, value):
    assert modules["intervals"].quantile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(value)


def test_each_text_is_compared_with_itself(modules):
    table = modules["tables"].text(lines())
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in table.splitlines()}
    assert cells["FP8"][2:4] == [f"{math.exp(1.52):.3f}", "+2.02 % [+2.02, +2.02]"]
    assert cells["NVFP4"][4].startswith("0.1500 [0.1000, 0.2000]")
    assert cells["16 bits"][4] == "0.0000 [0.0000, 0.0000]"


def test_a_single_text_has_no_interval(modules):
    table = modules["tables"].text([line for line in lines() if "prose" in line["part"]])
    assert "| +2.02 % | 0.0200 |" in table
    assert "[" not in table


def test_places_are_counted_by_their_stride(modules):
    row = {"kl": [1.0, 2.0, 3.0, 4.0, 5.0], "stride": 4}
    first, second, *others = modules["tables"].by_position([row])
    assert (first, second) == (2.5, 5.0)
    assert all(math.isnan(one) for one in others)


def test_the_common_beginning_is_counted(modules):
    prefix = modules["tables"].prefix
    assert prefix([1, 2, 3], [1, 2, 4]) == 2
    assert prefix([1, 2], [1, 2, 4]) == 2
    assert prefix([5], [1]) == 0


def test_answers_and_calls_are_compared_with_those_of_16_bits(modules):
    def line(part, name, **row):
        return {"model": "m", "part": part, "row": {"format": name, **row}}

    found = [
        line("greedy all", "16 bits", answers={"a": [1, 2, 3, 4], "b": [7, 8]}),
        line("greedy all", "NVFP4", answers={"a": [1, 2, 9, 4], "b": [7, 8]}),
        line("tools all", "16 bits", valid=[True, True], right=[True, False], texts=["x", "y"]),
        line("tools all", "NVFP4", valid=[True, False], right=[False, False], texts=["x", "z"]),
    ]
    report = modules["tables"].report(found)
    assert "| NVFP4 | 1 of 2 | 2.0 [2.0, 2.0] of 3.0 | 88 % [75, 100] |" in report
    assert "| NVFP4 | 1 of 2 | 0 of 2 | 1 of 2 |" in report


def test_needles_are_in_order_of_their_context(modules):
    found = []
    for length, name, chance in (
        (768, "16 bits", -1.0),
        (768, "FP8", -2.0),
        (96, "FP8", -3.0),
        (96, "16 bits", -2.5),
    ):
        row = {"format": name, "right": name == "16 bits", "log_probability": chance}
        found.append({"model": "m", "part": f"needle {length} 0", "row": row})
    head, _, *rows = modules["tables"].needle(found).splitlines()
    assert head.index("96 tokens") < head.index("768 tokens")
    assert rows[0].startswith("| FP8 | 0 of 1 | -0.50 [-0.50, -0.50] | 0 of 1 | -1.00")


def test_acceptance_is_stated_by_place(modules):
    def row(prompt, accepted):
        counts = {"steps": 10, "tokens": 20, "tried": [10] * 5, "accepted": accepted}
        return {"prompt": prompt, "drafter": "block", "own": "FP8", "context": "all", **counts}

    rows = [row("a", [8, 4, 2, 0, 0]), row("b", [6, 4, 2, 0, 0])]
    table = modules["tables"].acceptance(
        [{"model": "m", "part": "acceptance", "row": {"format": "NVFP4", "rows": rows}}]
    )
    wanted = "| block | NVFP4 | FP8 | all | 70.0 [60.0, 80.0] | 40.0 | 20.0 | 0.0 | 0.0 | 2.00 [2.00, 2.00] |"
    assert wanted in table


def test_the_chart_is_a_drawing_with_each_format(modules):
    drawing = ET.fromstring(modules["chart"].draw(lines()))  # noqa: S314 - our own
    words = " ".join(drawing.itertext())
    assert "NVFP4: " in words
    assert "FP8: " in words


def test_the_report_reads_the_lines_of_a_file(tmp_path):
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    command = [sys.executable, ROOT / "scripts" / "kv_quality", "-o", results, "--report"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "## m" in done.stdout
    assert "| FP8 | 2 · 2,046 |" in done.stdout
