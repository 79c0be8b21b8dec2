"""A command as a judge of candidates, or as a source of a metric; and the options of all judges."""

from __future__ import annotations

import re
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.base.errors import ProcessError
from sparkwright.base.process import LimitsExceeded
from sparkwright.engine.verifier import Verifier
from sparkwright.search.candidates import Realiser
from sparkwright.search.changes import Candidate
from sparkwright.search.metric import UntestableError, timed
from sparkwright.search.model import Evaluation, StepVerdict
from sparkwright.search.remote import Machines
from sparkwright.search.run_command import OUTPUT, run_words
from sparkwright.search.served import Serving
from sparkwright.store import storing

_UNTESTABLE = 125
_NOT_STARTED = 126  # from here on the shell or a signal is what ended the command
_SIGNATURE = re.compile(r"^signature:\s*(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class JudgeOptions:
    """Options of judges.

    Attributes:
        timeout_s: the most seconds of one run of a command.
        build_wheel: build the wheel of each candidate for a command that does not mention ``{wheel}``.
        inverted: the start is the bad end, so that a metric's baseline is the end.
        stop: set when the search ends, by an answer or an interrupt.
        serving: how wheels are served, instead of a rehearsal.
        machines: other machines, which run probes, commands and rehearsals.
        verifier: runs the checks; `None` where none is judged by.
    """

    timeout_s: float = 3600.0
    build_wheel: bool = False
    inverted: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    serving: Serving | None = None
    machines: Machines | None = None
    verifier: Verifier | None = None


@dataclass(frozen=True)
class Command:
    """A command that is run on candidates, in a process group of its own and without a shell.

    ``{wheel}`` and ``{tree}`` in its words stand for the candidate's wheel and for a folder with its merged
    package; each is made only if it is mentioned. ``SPARKWRIGHT_WHEEL``, ``SPARKWRIGHT_TREE`` and
    ``SPARKWRIGHT_SPEC``, a JSON file, say the same in its environment; the tree is always there.
    """

    words: tuple[str, ...]
    realiser: Realiser
    options: JudgeOptions

    def run(self, candidate: Candidate, folder: Path) -> tuple[int, str, Path]:
        """Return the exit status, the end of the output, and the log.

        Raises:
            UntestableError: the candidate cannot be made.
            LimitsExceeded: it took too long.
        """
        wheel: Path | None = None
        if self.options.build_wheel or any("{wheel}" in word for word in self.words):
            wheel = self.realiser.wheel(candidate)
        with storing(f"writing to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        described = describe_candidate(candidate)
        if (machines := self.options.machines) is not None:
            report = self.realiser.merged(candidate)
            status, output = machines.command(
                self.realiser.access, report, self.words, described, folder, wheel=wheel,
                timeout_s=self.options.timeout_s,
            )  # fmt: skip
            return status, output, folder / OUTPUT
        done = run_words(
            self.words, self.realiser.tree(candidate), described, folder, wheel=wheel, cwd=Path.cwd(),
            timeout_s=self.options.timeout_s, stop=self.options.stop,
        )  # fmt: skip
        return done.status, done.stderr, folder / OUTPUT


@dataclass(frozen=True)
class CommandJudge:
    """Good if a command exits with 0, untestable with 125, bad with another status below 126.

    Its signature is what it prints behind ``signature:`` at the start of a line, or its exit status.
    """

    command: Command
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Run the command on the candidate.

        Raises:
            ProcessError: it could not be started, or was killed; that says nothing of the candidate.
        """
        del attempt
        return timed(lambda: self._judge(self.command.realiser.candidate(applied), folder))

    def _judge(self, candidate: Candidate, folder: Path) -> Evaluation:
        try:
            status, output, log = self.command.run(candidate, folder)
        except LimitsExceeded as error:
            if self.command.options.stop.is_set():
                raise KeyboardInterrupt from error
            return Evaluation(verdict=StepVerdict.BAD, signature="timeout", detail=str(error))
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        if status == 0:
            return Evaluation(verdict=StepVerdict.GOOD, detail=last, evidence=str(log))
        if status == _UNTESTABLE:
            return Evaluation(verdict=StepVerdict.UNTESTABLE, detail=last, evidence=str(log))
        if not 0 < status < _NOT_STARTED:
            raise ProcessError(
                f"the judge {self.name!r} gave no verdict",
                because=f"it ended with status {status}; its output is in {log}",
                next_step="let it exit with 0 for good, 1 for bad and 125 for untestable",
            )
        stated = _SIGNATURE.findall(output)
        signature = stated[-1].strip() if stated else f"exit{status}"
        return Evaluation(verdict=StepVerdict.BAD, signature=signature, detail=last, evidence=str(log))


@dataclass(frozen=True)
class CommandSampler:
    """A metric that a command prints: the number behind its name, or else the last line that is a number."""

    command: Command
    metric: str

    @property
    def name(self) -> str:
        """The metric, and the command that prints it."""
        return f"{self.metric} of {shlex.join(self.command.words)!r}"

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Run the command on the candidate once.

        Raises:
            UntestableError: the candidate cannot be made, or the command exits with 125.
            ProcessError: the command failed, or printed no number.
        """
        del number
        try:
            status, output, log = self.command.run(self.command.realiser.candidate(applied), folder)
        except LimitsExceeded as error:
            if self.command.options.stop.is_set():
                raise KeyboardInterrupt from error
            raise UntestableError(str(error)) from error
        if status == _UNTESTABLE:
            raise UntestableError(output.strip().rpartition("\n")[2] or "the command exited with 125")
        value = _number(output, self.metric)
        if status or value is None:
            raise ProcessError(
                f"the metric {self.metric} could not be measured",
                because=f"the command ended with status {status}"
                + ("" if value is not None else f" and printed no number; its output is in {log}"),
            )
        return value


def _number(output: str, name: str) -> float | None:
    """Return the number behind *name* at the start of a line, else the last line that is a number."""
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    named = re.findall(rf"(?m)^{re.escape(name)}\s*[:=\s]\s*({number})\b", output)
    alone = re.findall(rf"(?m)^\s*({number})\s*$", output)
    found = named or alone
    return float(found[-1]) if found else None


def describe_candidate(candidate: Candidate) -> dict[str, object]:
    """Return *candidate* as a command reads it."""
    version = candidate.point.version
    return {
        "digest": candidate.digest,
        "version": version,
        "commit": candidate.point.commit,
        "patchset": candidate.patchset,
        "carries": [
            {"name": carry.name, "content": carry.content_id(version)} for carry in candidate.carries
        ],
        "arch": candidate.arch,
        "requirements": list(candidate.requirements) if candidate.requirements is not None else None,
    }
