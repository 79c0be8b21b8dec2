"""Time of short GPU work: captured graphs, CUDA events, the L2 cache flushed before each.

A graph is replayed, as vLLM does in decode, so that the time to launch from Python is not in it. What is
compared is timed in turn, round after round: drift of the clocks meets all alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

L2_BYTES = 512 << 20  # several times any card's L2


def quartiles(samples: list[float]) -> list[float]:
    """Return the median of at least two samples, and the quartiles around it."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return [round(median, 2), round(low, 2), round(high, 2)]


class Clock:
    """Times functions of one device in turn."""

    def __init__(self) -> None:
        # Read, not written: what is written would still have to leave the cache while the clock runs.
        self._flush = torch.zeros(L2_BYTES // 4, dtype=torch.float32, device="cuda")

    def graph(self, run: Callable[[], object]) -> Callable[[], None]:
        """*run* as a graph; it is run three times first, so that kernels are compiled.

        What *run* holds lives as long as the graph, which knows addresses alone: memory that PyTorch took
        back would be given to others, and a replay would read their bytes for lengths and offsets.
        """
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        torch.cuda.synchronize()

        def replay(kept: Callable[[], object] = run) -> None:
            del kept
            graph.replay()

        return replay

    def times(
        self, runs: dict[str, Callable[[], None]], rounds: int, seconds: float
    ) -> dict[str, list[float]]:
        """Return quartiles in µs of each of *runs*: up to *rounds* times, about *seconds* in all at most."""
        marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
        names = list(runs)
        spent = 0.0
        for index in range(rounds + 1):  # the first round only warms up
            for name in names[index % len(names) :] + names[: index % len(names)]:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self._flush.sum()
                begin.record()
                runs[name]()
                end.record()
                marks[name].append((begin, end))
            torch.cuda.synchronize()
            spent += sum(some[-1][0].elapsed_time(some[-1][1]) for some in marks.values()) / 1000
            if spent > seconds and index >= 3:
                break
        return {
            name: quartiles([1000 * begin.elapsed_time(end) for begin, end in some[1:]])
            for name, some in marks.items()
        }
