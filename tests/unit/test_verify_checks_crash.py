"""The crash hunt: bursts on and off the grid, drain-down, waves; a crash names its batch."""

import pytest
from verify_kit import (
    Bench,
    changed,
    context,
    failing,
    profile,
)

from sparkwright.engine.observations import FailureKind
from sparkwright.verify.checks import ALL

CRASH = ALL["crash"]
BURSTS = "no batch size breaks the server"
DRAIN = "draining breaks nothing"
WAVES = "mixed waves break nothing"
BENCH = Bench(CRASH)
healthy, judged, named = BENCH.healthy, BENCH.judged, BENCH.at


def test_levels_lie_on_and_between_the_grid() -> None:
    cells = CRASH.cells(context(profile(levels=(1, 8, 24), off_grid=(3, 17, 23), waves=3)))
    names = [cell.name for cell in cells]
    assert names[:7] == [f"burst c={c}" for c in (1, 3, 8, 17, 23, 24)] + ["drain from c=24"]
    assert [cell.tags["kind"] for cell in cells[7:]] == ["wave"] * 3
    assert all(len(cell.prompts) == cell.load.requests == cell.load.concurrency for cell in cells)
    every = [prompt.name for cell in cells for prompt in cell.prompts]
    assert len(set(every)) == len(every)


def test_a_drain_passes_through_every_size() -> None:
    """Each request is longer than the one before by about two verify steps."""
    load = healthy()[named("drain")].cell.load
    assert load.shape == "drain"
    assert (load.max_tokens - load.min_tokens) / load.requests == pytest.approx(6)


def test_waves_mix_prompts_of_many_lengths() -> None:
    lengths = [len(prompt.text.split()) for prompt in healthy()[named("wave 1")].cell.prompts]
    assert min(lengths) < 20
    assert max(lengths) > 100


def test_a_crash_on_the_drain_names_what_was_left_of_the_batch() -> None:
    observations = list(healthy())
    drain = observations[named("drain")]
    ends = sorted(sample.ended for sample in drain.samples)
    living = {sample.prompt for sample in drain.samples if sample.ended > ends[-6]}
    broken = failing(drain, FailureKind.RESET)
    samples = tuple(
        b if b.prompt in living else a for a, b in zip(drain.samples, broken.samples, strict=True)
    )
    finding = judged(changed(observations, named("drain"), samples=samples, canary="connection refused"))[
        DRAIN
    ]
    assert finding.verdict == "fail"
    assert "5 of 24 requests in drain from c=24 had their connection broken with 5 in flight" in finding.cause


def test_a_wave_that_breaks_is_named() -> None:
    at = named("wave 2")
    name = healthy()[at].cell.name
    found = judged(changed(healthy(), at, log=("CUDA error: an illegal memory access was encountered",)))
    assert found[WAVES].verdict == "fail"
    assert f"in {name} the log has" in found[WAVES].cause
    assert found[BURSTS].verdict == found[DRAIN].verdict == "pass"
