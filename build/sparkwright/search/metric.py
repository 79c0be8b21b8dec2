"""A judge of a metric: interleaved samples of a candidate and the good end, until their ratio is decided."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Protocol

import msgspec
from msgspec import structs

from sparkwright.base.config import decode_json
from sparkwright.base.digests import digest_of
from sparkwright.base.events import emit
from sparkwright.search.model import Evaluation, StepVerdict
from sparkwright.store.atomic import storing, write_atomically

_FIRST_LOOK = 4
_ERROR = 0.05  # of all looks at a candidate together


class Sampler(Protocol):
    """Source of samples of a metric, such as tokens a second of one boot."""

    @property
    def name(self) -> str:
        """The metric's name."""

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Measure the start with the changes *applied* once; *number* counts samples of both arms together.

        *folder* takes the logs of this sample; it does not exist yet.

        Raises:
            UntestableError: this candidate cannot be measured.
        """


class UntestableError(Exception):
    """A candidate cannot be measured; the text is the reason."""


def timed(judge: Callable[[], Evaluation]) -> Evaluation:
    """Return what *judge* says with the seconds that it took; one that cannot be made is untestable."""
    started = time.monotonic()
    try:
        found = judge()
    except UntestableError as error:
        found = Evaluation(verdict=StepVerdict.UNTESTABLE, detail=str(error))
    return structs.replace(found, seconds=round(time.monotonic() - started, 3))


def paired_interval(of: Sequence[float], to: Sequence[float], *, level: float) -> tuple[float, float, float]:
    """Return the ratio of two arms whose samples were taken in turn, and its interval (t, on logarithms).

    A drift of the machine moves both samples of a pair, so it does not widen the interval.

    Raises:
        ValueError: there are fewer than two pairs, or a sample is not a positive number.
    """
    from scipy.stats import t

    if len(of) < 2 or not all(0 < value < math.inf for value in (*of, *to)):  # noqa: PLR2004 - one has no spread
        raise ValueError(f"no interval of {list(of)} to {list(to)}")
    logs = [math.log(one / other) for one, other in zip(of, to, strict=True)]
    width = float(t.ppf((1 + level) / 2, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs)), math.exp(fmean(logs) - width), math.exp(fmean(logs) + width)


@dataclass
class MetricJudge:
    """Judge a candidate as bad if its metric is worse than the good end's by a given share.

    Looks at 4, 8, 16, … samples an arm, taken in turn and compared in pairs. A candidate is bad if the
    interval of the ratio lies wholly on the worse side of half that share, and good if wholly on the other;
    else more samples are taken, and in the end it is unstable. Intervals are widened so that all looks
    together err in at most 5 % of candidates. A search takes each verdict as it is: let
    `SearchProblem.deterministic` be true.

    Attributes:
        sampler: measures.
        worse_by: the share, such as 0.05.
        higher_is_better: the metric is a rate, not a time.
        baseline: the changes of the good end: none, or all of them where the start is the bad end.
        most_samples: of one arm, before the candidate is given up as unstable.
        kept: folder that keeps finished pairs of samples, so that a killed search takes none of them again.
    """

    sampler: Sampler
    worse_by: float
    higher_is_better: bool
    baseline: frozenset[str] = frozenset()
    most_samples: int = 128
    kept: Path | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: the share is not between 0 and 1, or too few samples are allowed for a first look.
        """
        if not 0 < self.worse_by < 1 or self.most_samples < _FIRST_LOOK:
            raise ValueError(f"no metric can be judged by {self.worse_by} with {self.most_samples} samples")
        self.name = f"metric {self.sampler.name} worse by {self.worse_by:.3g}"

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the candidate; its value is its metric over the good end's."""
        started = time.monotonic()
        verdict, ratio, detail = self._judged(applied, self._pairs(applied, attempt), folder)
        return Evaluation(
            verdict=verdict,
            signature=self.name if verdict is StepVerdict.BAD else "",
            detail=detail,
            seconds=time.monotonic() - started,
            evidence=str(folder),
            value=ratio,
        )

    def _pairs(self, applied: frozenset[str], attempt: int) -> Pairs:
        """Return the pairs of samples of this evaluation that were taken before."""
        name = f"{digest_of(sorted(applied))[:16]}-{attempt}.jsonl"
        return Pairs(self.kept / name if self.kept else None)

    def _judged(
        self, applied: frozenset[str], pairs: Pairs, folder: Path
    ) -> tuple[StepVerdict, float | None, str]:
        if applied == self.baseline:
            return StepVerdict.GOOD, 1.0, "it is what others are compared with"
        limit = math.sqrt(1 - self.worse_by)
        looks = math.ceil(math.log2(self.most_samples / _FIRST_LOOK)) + 1
        count = 0
        while True:
            count = min(max(_FIRST_LOOK, 2 * count), self.most_samples)
            try:
                while len(pairs.taken) < count:
                    pairs.add(*self._pair(applied, len(pairs.taken), folder))
            except UntestableError as error:
                return StepVerdict.UNTESTABLE, None, str(error)
            good, candidate = zip(*pairs.taken[:count], strict=True)
            ratio, low, high = paired_interval(candidate, good, level=1 - _ERROR / looks)
            worst, best = (low, high) if self.higher_is_better else (1 / high, 1 / low)
            detail = f"{ratio:.4f} of the good end's ({low:.4f} to {high:.4f}), {count} samples each"
            emit("bisect.metric", ratio=ratio, low=low, high=high, samples=count)
            if best < limit:
                return StepVerdict.BAD, ratio, detail
            if worst > limit:
                return StepVerdict.GOOD, ratio, detail
            if count == self.most_samples:
                return StepVerdict.UNSTABLE, ratio, f"{detail}: not decided"

    def _pair(self, applied: frozenset[str], done: int, folder: Path) -> tuple[float, float]:
        """Return a sample of the good end and one of the candidate, in the order ABBA over two pairs."""
        arms = self.baseline, applied
        values = []
        for place, arm in enumerate(arms if done % 2 == 0 else arms[::-1], 2 * done + 1):
            values.append(self.sampler.sample(arm, number=place, folder=folder / f"sample-{place}"))
        good, candidate = values if done % 2 == 0 else values[::-1]
        return good, candidate


class Pairs:
    """Pairs of samples, each on the disk before the next is taken; a cut last line is taken again."""

    def __init__(self, path: Path | None) -> None:
        """Read the pairs in *path*; `None` keeps them in memory alone."""
        self.path = path
        self.taken: list[tuple[float, float]] = []
        if path is None:
            return
        with storing(f"reading {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                write_atomically(path, whole)
        self.taken = [decode_json(line, tuple[float, float]) for line in whole.splitlines()]

    def add(self, good: float, candidate: float) -> None:
        """Append a pair.

        Raises:
            StorageError: it could not be written.
        """
        if self.path is not None:
            with storing(f"writing {self.path}"), self.path.open("ab") as stream:
                stream.write(msgspec.json.encode([good, candidate]) + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        self.taken.append((good, candidate))
