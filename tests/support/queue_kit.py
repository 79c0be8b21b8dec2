"""A queue with several places as arithmetic: steps of a search, and its exact capacity by Erlang."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.capacity.search import Capacity, NextStep, SearchPlan, Step, decide
from sparkwright.verify.capacity.step import FACTOR, step_of
from sparkwright.verify.cell import Cell, Load
from sparkwright.verify.client.load import arrivals
from sparkwright.verify.model import Chunk, Observation, Sample

if TYPE_CHECKING:
    from sparkwright.verify.capacity.slo import Slo


@dataclass(frozen=True)
class Queue:
    """*places* servers that take *service_s* on average, exponentially distributed; first come, first served.

    The first token comes when a request leaves the queue, after *first_s*.
    """

    places: int
    service_s: float
    first_s: float = 1e-6

    def late_share(self, rate: float, limit_s: float) -> float:
        """Return the share of requests that wait for longer than *limit_s* in the steady state."""
        load = rate * self.service_s
        if load >= self.places:
            return 1.0
        blocked = 1.0
        for number in range(1, self.places + 1):
            blocked = load * blocked / (number + load * blocked)
        waits = blocked / (1 - load / self.places * (1 - blocked))
        return waits * math.exp(-(self.places / self.service_s - rate) * limit_s)

    def capacity(self, limit_s: float, share: float) -> float:
        """Return the rate at which *share* of the requests wait for *limit_s* at the most."""
        low, high = 0.0, self.places / self.service_s
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.late_share(middle, limit_s) < 1 - share else (low, middle)
        return low

    def observe(self, step: NextStep, seed: str, late_s: float = 0.0) -> Observation:
        """Return what a client sees of *step*, if it sends each request *late_s* after it was due."""
        service, number = random.Random(f"service {seed}"), random.Random(seed).randrange(1 << 30)
        free, samples = [0.0] * self.places, []
        total = step.warm_up + step.requests
        for index, due in enumerate(itertools.islice(arrivals(step.rate, number), total)):
            begin = max(due + late_s, heapq.heappop(free))
            end = begin + self.first_s + service.expovariate(1 / self.service_s)
            heapq.heappush(free, end)
            first, last = (_ns(begin + self.first_s), _ns(end))
            samples.append(
                Sample(
                    prompt="p", category="code", started=_ns(due + late_s), ended=last, due=_ns(due),
                    late=round(late_s * 1e9), counted=index >= step.warm_up, output_tokens=2,
                    chunks=(Chunk(first, 1), Chunk(last, 1)),
                )
            )  # fmt: skip
        load = Load(shape="open", concurrency=0, rate=step.rate, requests=step.requests, warm_up=step.warm_up)
        cell = Cell(
            check="capacity", name=f"{step.rate:g}", load=load, prompts=(), tags={FACTOR: str(step.factor)}
        )
        return Observation(cell=cell, samples=tuple(samples))


def search(queue: Queue, slo: Slo, plan: SearchPlan, seed: int) -> tuple[Capacity, list[Step]]:
    """Return the answer of a search on *queue*, and its steps."""
    steps: list[Step] = []
    while isinstance(following := decide(steps, plan), NextStep):
        steps.append(step_of(queue.observe(following, f"{seed} {len(steps)}"), slo, 1.0))
    return following, steps


def _ns(seconds: float) -> int:
    return round(seconds * 1e9) + 1  # 0 means never
