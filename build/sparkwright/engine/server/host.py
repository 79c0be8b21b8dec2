"""The machine at one moment: memory, and the card's clock, power and temperature where available."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from contextvars import Context
from urllib.parse import urlsplit

import psutil

from sparkwright.base.machine import ask_card, look, numbers_of
from sparkwright.base.process.session import family_mib
from sparkwright.engine.observations import HostSample

CARD_QUERY = "clocks.sm,power.draw,temperature.gpu,utilization.gpu,clocks.max.sm"
"""Fields of a sample, as ``nvidia-smi`` names them; `_SLOWED` follows where the driver knows it."""
_SLOWED = "clocks_event_reasons.active"  # a driver that does not know it refuses the whole query
_MIB = 1 << 20


async def sample_host(pid: int | None = None, card: str | None = None) -> HostSample:
    """Sample the machine.

    Args:
        pid: the server's first process; its descendants count with it. `None` leaves its memory out.
        card: readings of the server's card, as ``nvidia-smi`` prints `CARD_QUERY` and the reasons of low
            clocks; empty where the card is out of reach. `None` asks ``nvidia-smi`` of this machine.

    Returns:
        The sample. Values that cannot be read, on a machine without an NVIDIA card for instance, are -1.
    """
    loop = asyncio.get_running_loop()
    # In an empty context, so that samples every few seconds emit no process events.
    return await loop.run_in_executor(None, Context().run, _sample, pid, card)


def _sample(pid: int | None, card: str | None) -> HostSample:

    with_reasons = card is not None or _reasons_known()
    answer = card if card is not None else ask_card(f"{CARD_QUERY},{_SLOWED}" if with_reasons else CARD_QUERY)
    clock, power, temperature, utilization, highest = numbers_of(answer, CARD_QUERY.count(",") + 1)
    return HostSample(
        at=time.perf_counter_ns(),
        memory_available_mib=psutil.virtual_memory().available / _MIB,
        server_rss_mib=-1 if pid is None else family_mib(pid),
        gpu_clock_mhz=clock,
        gpu_power_w=power,
        gpu_temperature_c=temperature,
        gpu_slowed_by=_mask(answer.rpartition(",")[2]) if with_reasons else -1,
        swap_used_mib=psutil.swap_memory().used / _MIB,
        memory_pressure=pressure.some if (pressure := look().pressure) else -1,
        gpu_utilization=utilization,
        gpu_clock_max_mhz=highest,
    )


def is_here(url: str) -> bool:
    """Tell if the server at *url* runs on this machine, as far as its address shows.

    A tunnel has an address of this machine too: readings of a card without load are used for nothing.
    """
    name = (urlsplit(url).hostname or "").casefold()
    return name in {"localhost", socket.gethostname().casefold()} or name in _own_addresses()


@functools.cache
def _own_addresses() -> frozenset[str]:

    return frozenset(one.address for found in psutil.net_if_addrs().values() for one in found)


@functools.cache
def _reasons_known() -> bool:
    """Tell if the driver reports why clocks are lowered; asked once."""
    return _mask(ask_card(_SLOWED)) >= 0


def _mask(cell: str) -> int:
    """Return a hexadecimal mask such as ``0x0000000000000004``; -1 for anything else."""
    try:
        return int(cell.strip(), 16)
    except ValueError:
        return -1
