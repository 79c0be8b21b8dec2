"""Sort a check's observations into sound ones and trouble: ended servers, failed requests, wrong counts.

Start reading at `triage`. Figures may be taken from `CheckedCells.sound`; the reasons against the others are
`Trouble`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Verdict
from sparkwright.engine.metrics.counters import CountersResetError, SpeculationAbsentError, speculation
from sparkwright.engine.observations import FailureKind, Observation
from sparkwright.engine.server.failures import diagnose, known_cause
from sparkwright.verify.check import Context

_FAILS = {
    FailureKind.CONNECT: "found no connection",
    FailureKind.STATUS: "got an HTTP error",
    FailureKind.NOT_JSON: "got something that is not JSON",
    FailureKind.FORM: "got a chunk of another form than OpenAI's",
    FailureKind.IN_BAND: "got an error inside the stream",
    FailureKind.TRUNCATED: "ended without [DONE]",
    FailureKind.RESET: "had their connection broken",
    FailureKind.NO_FINISH: "ended without a finish reason",
    FailureKind.FIRST_TOKEN: "hung: no token within the deadline",
    FailureKind.STALL: "stalled in the middle of the stream",
    FailureKind.OVERDUE: "did not end within the deadline, though tokens came",
    FailureKind.RUNAWAY: "were a runaway generation: more came than was requested, without an end",
}
"""Failures of the server, and a description of the requests."""

_BREAKS = {FailureKind.RESET, FailureKind.TRUNCATED, FailureKind.IN_BAND}
"""Failures of a server that breaks under its batch."""

_AFTER_DEATH = {FailureKind.CONNECT, FailureKind.STATUS, FailureKind.FIRST_TOKEN}
"""Failures of requests to a server that was dead before they were sent."""

_INVALIDATES = {
    FailureKind.NO_COUNT: "brought no token count: neither usage nor token ids",
    FailureKind.COUNT: "brought a token count that contradicts itself",
    FailureKind.LENGTH: "brought another number of tokens than requested",
}
"""Failures that invalidate figures, though the server answered."""

# Minimum for the detection of answers in one piece: a busy machine may read one or two answers at once.
_FEWEST_CHUNKS, _FEWEST_ANSWERS = 12, 4
_STREAMED = 0.01
"""Share of the time to the first token that all others take at the least, where answers are streamed. A
prompt of 33,000 tokens takes a GB10 some 30 s, and 256 tokens after it 5."""
_LATE = 0.5
"""Share of the time to the first token from which the client's own lateness may explain such answers."""

SEVERITY = (Verdict.NOT_APPLICABLE, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL)
"""Verdicts, the gravest last."""
_LONGEST_LINE = 200

Reason = tuple[Verdict, str]
"""A reason against a conclusion: the verdict that it leads to, and the cause."""


@dataclass(frozen=True)
class Trouble:
    """One reason why a cell does not count: the verdict of findings on it, and the cause, which names it."""

    verdict: Verdict
    cause: str
    cell: str


@dataclass(frozen=True)
class CheckedCells:
    """A check's cells, sorted into sound observations and trouble.

    Attributes:
        sound: observations that figures may be taken from, in order of the plan.
        troubles: reasons against the others, in order of the plan.
        lacks: reasons by the capability that the server lacks, see `Context`.
        made: all observations as they were made.
    """

    check: str
    planned: tuple[Cell, ...]
    sound: tuple[Observation, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    made: tuple[Observation, ...] = ()

    def tagged(self, **tags: str) -> CheckedCells:
        """Return the part that concerns the cells with these tags."""
        return self.where(lambda cell: tags.items() <= cell.tags.items())

    def where(self, chosen: Callable[[Cell], bool]) -> CheckedCells:
        """Return the part that concerns the cells for which *chosen* is true."""
        planned = tuple(cell for cell in self.planned if chosen(cell))
        keys = {cell.key for cell in planned}
        return dataclasses.replace(
            self,
            planned=planned,
            sound=tuple(observation for observation in self.sound if observation.cell.key in keys),
            troubles=tuple(trouble for trouble in self.troubles if trouble.cell in keys),
        )

    def on_facts(self) -> CheckedCells:
        """Return *self* without cells, for findings that rest on facts of a start alone."""
        return CheckedCells(self.check, (), lacks=self.lacks)

    def without_failed_baseline(self) -> CheckedCells:
        """Return *self* with failures of the baseline as invalid: there is nothing to compare with."""
        baseline = {cell.key for cell in self.planned if cell.arm == "baseline"}
        troubles = [
            dataclasses.replace(one, verdict=Verdict.INVALID)
            if one.cell in baseline and one.verdict is Verdict.FAIL
            else one
            for one in self.troubles
        ]
        return dataclasses.replace(self, troubles=tuple(troubles))


def triage(
    check: str, context: Context, observations: Sequence[Observation], planned: Sequence[Cell]
) -> CheckedCells:
    """Sort the *planned* cells of a check into sound observations and trouble."""
    by_key = {observation.cell.key: observation for observation in observations}
    sound: list[Observation] = []
    found: list[Trouble] = []
    notes: list[str] = []
    gone = ""
    for cell in planned:
        observation = by_key.get(cell.key)
        if observation is None or (gone and _unreachable(observation)):
            why = f": the server was gone since {gone}" if gone else ""
            found.append(Trouble(Verdict.INCONCLUSIVE, f"{describe(cell)} was not measured{why}", cell.key))
            continue
        gone = describe(cell) if observation.died is not None or observation.canary else ""
        of_this = troubles(observation)
        found.extend(of_this)
        notes += [  # error lines that show no broken engine
            f"{describe(cell)}: the log has {_short(line)}"
            for line in observation.log[:3]
            if known_cause(line, running=True) is None
        ]
        if not of_this:
            sound.append(observation)
    return CheckedCells(
        check, tuple(planned), tuple(sound), tuple(found), tuple(notes), context.lacks, tuple(observations)
    )


def _unreachable(observation: Observation) -> bool:
    """Tell if every request failed as on a server whose engine, or all of it, had ended before."""
    failures = [sample.failure for sample in observation.samples]
    return observation.died is None and all(
        failure is not None and failure.kind in _AFTER_DEATH for failure in failures
    )


def describe(cell: Cell) -> str:
    """Return a cell's name for a cause, such as ``code c=8`` or ``code c=8 of baseline, boot 2``."""
    if cell.arm == "main" and not cell.boot:
        return cell.name
    return f"{cell.name} of {cell.arm}, boot {cell.boot}"


def troubles(observation: Observation, *, metered: bool = True) -> tuple[Trouble, ...]:
    """Return every reason for which this observation does not count, the worst and most specific first.

    Missing counters are a reason if it should be *metered*.
    """
    found, where = [*_engine(observation), *_failures(observation)], describe(observation.cell)
    if unanswered(observation.canary) and observation.died is None:
        cause = f"after {where} the server no longer answered a plain request: {observation.canary}"
        found.append((Verdict.FAIL, cause))
    elif observation.canary and observation.died is None:
        cause = f"the answer to the plain request after {where} cannot be used: {observation.canary}"
        found.append((Verdict.INVALID, cause))
    if observation.died is None and metered:
        found.extend(_counters(observation))
    if not found:
        found.extend([*_incomplete(observation), *_unstreamed(observation)])
    found.sort(key=lambda entry: -SEVERITY.index(entry[0]))
    return tuple(Trouble(verdict, cause, observation.cell.key) for verdict, cause in found)


def unanswered(canary: str) -> bool:
    """Tell if a plain request, with the result *canary*, got no answer.

    A request of which only the token count is wrong, or the form of a chunk, got one.
    """
    answered = {kind.value for kind in (*_INVALIDATES, FailureKind.FORM)}
    return bool(canary) and canary.partition(":")[0] not in answered


def _engine(observation: Observation) -> list[Reason]:
    """Return the reason if the server ended, or if its log has a line of a broken engine."""
    known, where = known_cause("\n".join(observation.log), running=True), describe(observation.cell)
    told = f"the log has {_short(known[1])}: {known[0].because}" if known else ""
    if observation.died is None:
        return [(Verdict.FAIL, f"in {where} {told}")] if told else []
    busy = in_flight(observation)
    cause = f"the server ended in {where}"
    cause += f" with {busy} request{'s' * (busy != 1)} in flight" if busy else ""
    cause += f": {diagnose('', observation.died).because}"
    if not told and observation.log:
        told = f"its log ends with {_short(observation.log[-1])}"
    return [(Verdict.FAIL, f"{cause}; {told}" if told else cause)]


def _failures(observation: Observation) -> list[Reason]:
    """Return failed requests by kind, the most frequent first."""
    failed = [(sample, sample.failure) for sample in observation.failed if sample.failure is not None]
    found = []
    for kind, count in Counter(failure.kind for _, failure in failed).most_common():
        sample, failure = next((sample, failure) for sample, failure in failed if failure.kind is kind)
        verdict = Verdict.INVALID if kind in _INVALIDATES else Verdict.FAIL
        if kind is FailureKind.LENGTH and sample.finish_reason == "abort":
            verdict = Verdict.FAIL
        did = _FAILS.get(kind) or _INVALIDATES[kind]
        did += f" with {in_flight(observation)} in flight" if kind in _BREAKS else ""
        cause = f"{count} of {len(observation.samples)} requests in {describe(observation.cell)} {did}"
        cause += f" (status {failure.status})" if failure.status not in {0, 200} else ""
        found.append((verdict, f"{cause}: {_short(failure.detail)}" if failure.detail else cause))
    return found


def _counters(observation: Observation) -> list[Reason]:
    where = describe(observation.cell)
    if observation.before is None or observation.after is None:
        when = "before" if observation.before is None else "after"
        why = f": {_short(observation.unread)}" if observation.unread else ""
        return [(Verdict.INVALID, f"the server's counters could not be read {when} {where}{why}")]
    moments = (observation.before, *observation.series, observation.after)
    for earlier, later in pairwise(moments):
        try:
            speculation(earlier, later)
        except SpeculationAbsentError:
            continue
        except CountersResetError as error:
            return [(Verdict.INVALID, f"the server started again unnoticed in {where}: {error}")]
        except ValueError as error:
            return [(Verdict.INVALID, f"the counters of {where} cannot be used: {error}")]
    return []


def _incomplete(observation: Observation) -> list[Reason]:
    """Return the reason if a cell was cut short."""
    load, where = observation.cell.load, describe(observation.cell)
    counted = len(observation.counted) + len(observation.refused)
    if not load.seconds and counted < load.requests:
        return [(Verdict.INVALID, f"only {counted} of {load.requests} requests of {where} were recorded")]
    if not counted:
        return [(Verdict.INVALID, f"no request of {where} was recorded")]
    return []


def _unstreamed(observation: Observation) -> list[Reason]:
    """Return the reason if answers came in one piece at their end: their times are not meaningful.

    All requests are taken together, since a busy machine may occasionally read a whole answer at once. Where
    this client itself was late by as much as half of the time to the first token, nothing is said: it may
    have read late what came in time.
    """
    samples = [sample for sample in observation.counted if len(sample.chunks) >= _FEWEST_CHUNKS]
    waited = sum(sample.first - sample.started for sample in samples) / 1e6
    streamed = sum(sample.last - sample.first for sample in samples) / 1e6
    if len(samples) < _FEWEST_ANSWERS or streamed > _STREAMED * waited:
        return []
    if observation.lag_ms[0] > _LATE * waited / len(samples):
        return []
    first, rest = (f"{total / len(samples):.1f} ms" for total in (waited, streamed))
    cause = f"not streamed: in {describe(observation.cell)} the tokens of an answer came within {rest} of"
    cause += f" each other, {first} after the request: a proxy on the way holds answers back until their end"
    return [(Verdict.INVALID, cause)]


def all_refused(observation: Observation) -> str:
    """Return the server's words if it refused every request of a cell that it may refuse, else ``""``."""
    failures = [sample.failure for sample in observation.refused if sample.failure is not None]
    if not failures or observation.died is not None or observation.canary:
        return ""
    return _short(failures[0].detail)


def in_flight(observation: Observation) -> int:
    """Return the number of requests in flight when the first of them failed; 0 if none failed.

    A server that ends breaks all of its requests at once: those that had not ended by then were its batch,
    or waited for a place in it.
    """
    failed = [one.ended for one in observation.samples if one.failure and one.failure.kind in _BREAKS]
    if not failed:
        return 0
    moment = min(failed)
    return sum(sample.started <= moment <= sample.ended for sample in observation.samples)


def _short(line: str) -> str:
    line = " ".join(line.split())
    return f"“{line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + '…'}”"
