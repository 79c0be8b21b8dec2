"""A queue with several places as arithmetic: steps of a search, and its exact capacity by Erlang."""

import heapq
import itertools
import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.client.load import arrivals
from sparkwright.engine.observations import Chunk, Observation, Sample
from sparkwright.verify.checks.capacity import FACTOR, MOMENTS, rises, step_of
from sparkwright.verify.rate_search import Capacity, NextStep, SearchPlan, Slo, Step, decide
from sparkwright.verify.statistics import percentile


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

    def step(self, step: NextStep, seed: str, limit_s: float) -> Step:
        """Return what `step_of` makes of `observe`, without an observation: ten times as fast."""
        service, number = random.Random(f"service {seed}"), random.Random(seed).randrange(1 << 30)
        free, dues, ends = [0.0] * self.places, [], []
        total, first = step.warm_up + step.requests, step.warm_up
        for due in itertools.islice(arrivals(step.rate, number), total):
            begin = max(due, heapq.heappop(free))
            ends.append(begin + self.first_s + service.expovariate(1 / self.service_s))
            heapq.heappush(free, ends[-1])
            dues.append((due, begin + self.first_s - due))
        begin, span = dues[first][0], dues[-1][0] - dues[first][0]
        arrived, left = [due for due, _ in dues], sorted(ends)
        shares = [(place + 0.5) / MOMENTS for place in range(MOMENTS)]
        running = [
            float(bisect_right(arrived, begin + span * share) - bisect_right(left, begin + span * share))
            for share in shares
        ]
        return Step(
            rate=step.rate,
            requests=step.requests,
            good=sum(waited <= limit_s for _, waited in dues[first:]),
            duration_s=percentile(
                [end - due for end, (due, _) in zip(ends[first:], dues[first:], strict=True)], 50
            ),
            grows=rises(shares, running),
            factor=step.factor,
        )

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
    waits = slo.limits.keys() == {"ttft"}
    while isinstance(following := decide(steps, plan), NextStep):
        name = f"{seed} {len(steps)}"
        if waits:
            steps.append(queue.step(following, name, slo.limits["ttft"]))
        else:
            steps.append(step_of(queue.observe(following, name), slo, 1.0))
    return following, steps


def _ns(seconds: float) -> int:
    return round(seconds * 1e9) + 1  # 0 means never
