"""The state of a running server between two looks: requests, speed, acceptance, cache and memory."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from sparkwright.base.config import Model
from sparkwright.engine.metrics import SpeculationAbsentError, speculation
from sparkwright.engine.metrics.counters import CountersResetError, SeriesAbsentError, counter_delta
from sparkwright.engine.observations import HostSample, MetricsSnapshot

_PRESSURE = Path("/proc/pressure/memory")
_SOME = re.compile(r"^some avg10=([\d.]+)", re.MULTILINE)


class Status(Model, frozen=True):
    """The state of a server. Numbers that cannot be read are -1.

    Attributes:
        running: requests that run.
        tokens_per_s: generated tokens a second since the last look.
        prompt_tokens_per_s: prefilled tokens a second since then.
        acceptance_length: tokens of a step and request since then, 1 where no draft was accepted; -1 without
            drafts.
        kv_usage: share of the KV cache in use, 0 to 1.
        available_gib: memory of the machine that can still be taken (MemAvailable).
        pressure: share of the last ten seconds, in percent, in which something waited for memory (PSI).
    """

    running: float = -1
    waiting: float = -1
    tokens_per_s: float = -1
    prompt_tokens_per_s: float = -1
    acceptance_length: float = -1
    kv_usage: float = -1
    available_gib: float = -1
    pressure: float = -1


def status_between(
    before: MetricsSnapshot, after: MetricsSnapshot, host: HostSample, pressure: float
) -> Status:
    """Return the state at *after*, with rates since *before*."""
    mib = host.memory_available_mib
    return Status(
        running=after.running,
        waiting=after.waiting,
        tokens_per_s=_rate(before, after, "generation_tokens"),
        prompt_tokens_per_s=_rate(before, after, "prompt_tokens"),
        acceptance_length=_acceptance_length(before, after),
        kv_usage=after.kv_usage,
        available_gib=mib / 1024 if mib >= 0 else -1,
        pressure=pressure,
    )


def memory_pressure(path: Path = _PRESSURE) -> float:
    """Return the percentage of the last ten seconds in which a program waited for memory; -1 if unread."""
    with contextlib.suppress(OSError, ValueError):
        if found := _SOME.search(path.read_text(encoding="utf-8")):
            return float(found.group(1))
    return -1


def _rate(before: MetricsSnapshot, after: MetricsSnapshot, counter: str) -> float:
    seconds = (after.at - before.at) / 1e9
    with contextlib.suppress(SeriesAbsentError, CountersResetError):
        return counter_delta(before, after, counter) / seconds if seconds > 0 else -1
    return -1


def _acceptance_length(before: MetricsSnapshot, after: MetricsSnapshot) -> float:
    with contextlib.suppress(SpeculationAbsentError, CountersResetError):
        drafted = speculation(before, after)
        return drafted.mean_acceptance_length if drafted.drafts else -1
    return -1
