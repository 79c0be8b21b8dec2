"""The watchdog: long prefills, warm-up and load leave it silent; engines that do nothing are called."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulator_kit import Bench, settings

from sparkwright.recipes.recipe import load_recipe
from sparkwright.serve.supervise import notify
from sparkwright.serve.watchdog import EngineSample, Watchdog, WatchLimits, WatchVerdict
from sparkwright.verify.simulator.engine import Engine
from sparkwright.verify.simulator.settings import Settings, StepCosts

LIMITS = WatchLimits(young_s=0.0)
IDLE = EngineSample(at=0.0, running=0, waiting=0, generated=10, prompt=10, preemptions=0, kv_usage=0.0)
EVERY = 5.0


def verdicts(samples: Iterator[EngineSample], limits: WatchLimits = LIMITS) -> list[WatchVerdict]:
    watchdog, found = Watchdog(limits), []
    for sample in samples:
        watchdog, judgement = watchdog.observe(sample)
        found.append(judgement.verdict)
    return found


def steady(first: EngineSample, seconds: float, **later: Any) -> Iterator[EngineSample]:
    """Yield *first*, then samples that differ from it by *later* alone."""
    yield first
    for number in range(1, int(seconds / EVERY) + 1):
        yield replace(first, at=first.at + number * EVERY, **later)


def simulated(told: Settings, prompts: list[int], seconds: float) -> Iterator[EngineSample]:
    """Yield samples of a simulated engine by its own clock, with prompts of these lengths at the start."""
    engine = Engine(told)
    bench = Bench(engine)
    for number, words in enumerate(prompts, 1):
        bench.add(f"[{number:012x}]\n" + "sort " * words)
    at, due = 0.0, 0.0
    while at < seconds:
        while engine.busy and due <= at:
            due += engine.step(due).seconds
        yield EngineSample(
            at=at,
            running=len(engine.running),
            waiting=len(engine.waiting),
            generated=engine.counters.generated,
            prompt=engine.counters.prompt,
            preemptions=0,
            kv_usage=sum(one.computed for one in engine.running) / 1e6,
        )
        at += EVERY


@pytest.mark.parametrize("seed", range(20))
def test_long_prefills_are_never_wedged(seed: int) -> None:
    """Prompts of up to 39,000 tokens at about 160 tokens a second: minutes pass without a single token."""
    costs = replace(StepCosts(), prefill=6.0)
    told = settings(seed=seed, costs=costs, k=7 if seed % 2 else 0, max_model_len=40_000)
    prompts = [39_000, 20_000 + 500 * seed, 39_000, 100 + seed]
    found = verdicts(simulated(told, prompts, 1500.0))
    assert not any(verdict.ends for verdict in found)


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_stops_in_a_prefill_is_wedged(seed: int) -> None:
    costs = replace(StepCosts(), prefill=6.0)
    healthy = list(simulated(settings(seed=seed, costs=costs, max_model_len=40_000), [39_000, 39_000], 100.0))
    stopped = steady(replace(healthy[-1], at=healthy[-1].at + EVERY), 300.0)
    found = verdicts(iter([*healthy, *stopped]))
    assert not any(verdict.ends for verdict in found[: len(healthy)])
    assert found[-1] is WatchVerdict.WEDGED
    worked = max(later.at for before, later in pairwise(healthy) if later.kv_usage > before.kv_usage)
    assert found.index(WatchVerdict.WEDGED) * EVERY - worked == LIMITS.stall_s


@pytest.mark.parametrize("counted", [0, 1])
def test_one_lost_canary_is_no_wedge_and_two_are(counted: int) -> None:
    half = LIMITS.stall_s / 2
    held = replace(IDLE, running=counted)  # the canary itself may be among the requests that run
    one = [replace(held, at=at, canary_pending=True) for at in range(0, int(half), 5)]
    lost = replace(held, at=half, canary_pending=True, canary_failures=1)
    good = replace(IDLE, at=half + 5, canaries_good=1)
    assert not any(verdict.ends for verdict in verdicts(iter([IDLE, *one, lost, good])))
    waits = [replace(lost, at=at) for at in range(int(half), int(half) * 2 + 1, 5)]
    assert verdicts(iter([IDLE, *one, *waits]))[-1] is WatchVerdict.WEDGED


def test_a_canary_behind_a_long_queue_proves_nothing() -> None:
    def loaded() -> Iterator[EngineSample]:
        for number in range(200):
            yield replace(
                IDLE, at=number * EVERY, running=64, waiting=500, generated=100.0 * number,
                canary_pending=True, canary_failures=number // 12,
            )  # fmt: skip

    assert set(verdicts(loaded())) == {WatchVerdict.HEALTHY}


SILENT = {"responds": False, "running": -1, "waiting": -1, "generated": -1, "prompt": -1}


@pytest.mark.parametrize(
    ("limits", "changes", "patient_s", "wedged_s"),
    [
        (LIMITS, {"compilers": 4}, 1700.0, 1900.0),
        (WatchLimits(young_s=300.0, warm_s=300.0), {}, 290.0, 310.0),
        (LIMITS, {"available_mib": 300.0}, 235.0, 245.0),
        (LIMITS, {"pressure": 70.0}, 235.0, 245.0),
        (LIMITS, SILENT, 110.0, 130.0),
    ],
    ids=["compilers", "young", "little memory", "pressure", "silent HTTP"],
)
def test_what_delays_an_engine_extends_the_limit_and_does_not_lift_it(limits, changes, patient_s, wedged_s):
    held = replace(IDLE, running=1)
    found = verdicts(steady(held, patient_s, **changes), limits)
    assert not any(verdict.ends for verdict in found)
    assert verdicts(steady(held, wedged_s, **changes), limits)[-1] is WatchVerdict.WEDGED


def test_counters_that_cannot_be_read_are_no_sign_of_work() -> None:
    def flickering() -> Iterator[EngineSample]:
        for number in range(60):
            unread = {"generated": -1, "prompt": -1} if number % 2 else {}
            yield replace(IDLE, at=number * EVERY, running=2, **unread)

    assert verdicts(flickering())[-1] is WatchVerdict.WEDGED


@pytest.mark.parametrize(
    "changes",
    [{"exited": 1}, {"exited": -9}, {"failing": True, "canary_failures": 2, "canary_pending": True}],
)
def test_a_dead_engine_is_dead_at_once(changes: dict[str, Any]) -> None:
    assert verdicts(steady(IDLE, EVERY, **changes))[-1] is WatchVerdict.DEAD


def test_limits_allow_for_the_longest_step_of_a_recipe() -> None:
    recipe = load_recipe("qwen3.6-27b-nvfp4-kv-dflash")
    assert WatchLimits.of(recipe).stall_s == 120.0
    import msgspec

    large = msgspec.structs.replace(recipe, flags={**recipe.flags, "max-num-batched-tokens": 32_768})
    assert WatchLimits.of(large).stall_s == 327.68
    whole = msgspec.structs.replace(recipe, flags={**recipe.flags, "enable-chunked-prefill": False})
    assert WatchLimits.of(whole).stall_s == 491.52


@pytest.mark.parametrize("abstract", [False, True])
def test_a_message_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, abstract: bool) -> None:
    shown = f"@sparkwright-test-{tmp_path.name}-{time.time_ns()}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", shown)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + shown[1:] if abstract else shown)
        assert notify("READY=1\nSTATUS=serving")
        assert listener.recv(4096) == b"READY=1\nSTATUS=serving"


@pytest.mark.parametrize("address", ["", "relative", "/nonexistent/gone"])
def test_without_systemd_nothing_is_sent(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")
