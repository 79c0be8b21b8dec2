"""The expected duration of a run follows its cells and rates, and what cells took corrects it."""

import json

import pytest
from click.testing import CliRunner

from sparkwright.cli.verify import command
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.verify.estimate import Rates, Remaining, cell_seconds
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of

RATES = Rates(step_ms=100.0, request_ms=10.0, prefill_tok_s=1000.0, tokens_per_step=2.0, start_s=60.0)
PROMPT = Prompt(name="p", category="code", text="word " * 75)  # a hundred tokens


def cell(**load: object) -> Cell:
    return Cell(check="sweep", name="x", load=Load(**load), prompts=(PROMPT,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        ({"requests": 4, "max_tokens": 20}, 4 * 1.0 + 0.4 + 1.5),
        ({"requests": 4, "concurrency": 2, "max_tokens": 20}, 2 * 1.1 + 0.4 + 1.5),
        ({"requests": 4, "warm_up": 4, "concurrency": 4, "max_tokens": 20}, 2 * 1.3 + 0.8 + 1.5),
        ({"requests": 8, "shape": "burst", "max_tokens": 20}, 1.7 + 0.8 + 1.5),
        ({"requests": 4, "seconds": 300.0, "concurrency": 1, "max_tokens": 20}, 300.5 + 1.5),
        ({"requests": 100, "shape": "open", "rate": 2.0, "concurrency": 0, "max_tokens": 20}, 51.0 + 1.5),
    ],
)
def test_a_cell_takes_its_waves_of_steps_and_its_prompts(load: dict[str, object], seconds: float) -> None:
    assert cell_seconds(cell(**load), RATES) == pytest.approx(seconds)
    assert cell_seconds(cell(**load), RATES, 2.0) == pytest.approx(seconds / 2)


def test_cells_that_take_longer_make_the_rest_longer() -> None:
    cells = [cell(requests=400, max_tokens=20) for _ in range(4)]
    left = Remaining(RATES, 1.0)
    first = left.of(cells)
    assert first == pytest.approx(4 * cell_seconds(cells[0], RATES))
    left.took(cells[0], 3 * cell_seconds(cells[0], RATES))
    assert 2 < left.of(cells) / first < 3
    left.took(cells[0], cell_seconds(cells[0], RATES))
    assert 1.5 < left.of(cells) / first < 2


def test_the_plan_is_shown_and_nothing_is_run() -> None:
    shown = CliRunner().invoke(command, ["--demo", "--plan"])
    assert shown.exit_code == 0
    lines = [line.strip() for line in shown.output.splitlines() if line.strip()]
    assert lines[0].split() == ["check", "measurements", "requests", "tokens", "about"]
    assert lines[-1].startswith("together")
    told = json.loads(CliRunner().invoke(command, ["--demo", "--plan", "--json"]).output)
    assert told["seconds"] == pytest.approx(
        plan_of(VerifyOptions(simulator=True, profile="demo")).estimate().seconds, abs=0.1
    )
    assert set(told["checks"]) == {"boot", "coherence", "soak", "sweep", "crash", "context", "lossless"}
