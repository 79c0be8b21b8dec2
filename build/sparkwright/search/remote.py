"""Steps of a bisection on other machines: a probe, a command or a rehearsal of one candidate, as a task.

The candidate is merged here, and its tree goes to a worker through the store. What comes back is what the
judge reads of a run here: the probe's verdict, or a command's status and output.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.events import emit
from sparkwright.base.process import LimitsExceeded
from sparkwright.carries import ProbeSpec
from sparkwright.cluster.kinds import Nothing, TaskKind
from sparkwright.cluster.messages import StoredFile
from sparkwright.cluster.proving import require_environment
from sparkwright.cluster.sharing import bring_files, keep_files, packed_trees
from sparkwright.git import Repository
from sparkwright.native.model import Cost
from sparkwright.probe import tree_folder
from sparkwright.probe.environment import environment_key
from sparkwright.probe.proof import ProbeRun
from sparkwright.probe.runner import run_probe
from sparkwright.search.command import run_words

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskDone, TaskInputs
    from sparkwright.cluster.pool import Pool
    from sparkwright.cluster.running import Cluster, TaskRequest
    from sparkwright.cluster.serving import Serving
    from sparkwright.merge import MergeReport
    from sparkwright.pipeline import Job
    from sparkwright.rehearsal import RehearsalOptions, RehearsalResult
    from sparkwright.upstream import Access

MadeT = TypeVar("MadeT", bound=Model)
KIND = "step"
_PACKAGE = "vllm"
_COMMAND = Cost(seconds=60.0, mib=2048)
_PROBE_S = 10.0


class ProbeStep(Model, frozen=True, tag="probe"):
    """A probe to run on one tree.

    Attributes:
        tree, pristine: git ids of the merged tree and of upstream's.
        version: the release.
        spec: limits and settings of the probe.
        files: the probe and its helpers, by name.
        environment: key of the environment for probes.
    """

    tree: str
    pristine: str
    version: str
    spec: ProbeSpec
    files: tuple[StoredFile, ...]
    environment: str


class CommandStep(Model, frozen=True, tag="command"):
    """A command to run on one candidate.

    Attributes:
        tree, pristine: git ids of the merged tree and of upstream's.
        words: the command; a number in braces stands for one of `files`.
        files: files that the command line names.
        described: what the command reads of the candidate.
        wheel: the candidate's wheel, where it is asked for.
        timeout_s: longest run, in seconds.
    """

    tree: str
    pristine: str
    words: tuple[str, ...]
    files: tuple[StoredFile, ...]
    described: dict[str, Any]
    timeout_s: float
    wheel: StoredFile | None = None


class ProbeRan(Model, frozen=True):
    """The result of a probe."""

    run: ProbeRun


class CommandRan(Model, frozen=True):
    """The exit status of a command and the end of its output, or the limit that it passed."""

    status: int
    output: str
    limit: str = ""


@dataclass
class Elsewhere:
    """Other machines for the steps of one bisection, as a context: workers run for the length of its block.

    Attributes:
        cluster: the machines.
        stop: set when the search ends: steps that still run are given up.
    """

    cluster: Cluster
    stop: threading.Event
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _pool: Pool | None = None

    def __enter__(self) -> Self:
        self._pool = self._stack.enter_context(self.cluster.open())
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.stop.set()
        self._pool = None
        self._stack.close()

    def probe(
        self, access: Access, report: MergeReport, file: Path, spec: ProbeSpec, version: str
    ) -> ProbeRun:
        """Return what the probe *file* finds on the merged tree of *report*."""
        names = [file, *(file.with_name(name) for name in spec.helpers)]
        asked = ProbeStep(
            tree=report.tree,
            pristine=report.pristine,
            version=version,
            spec=spec,
            files=keep_files(access.store, file.parent, names),
            environment=environment_key(),
        )
        cost = Cost(seconds=_PROBE_S, mib=spec.memory_mib)
        return self._step(access, asked, cost, ProbeRan, files=asked.files).run

    def command(
        self,
        access: Access,
        report: MergeReport,
        words: Sequence[str],
        described: Mapping[str, object],
        folder: Path,
        *,
        wheel: Path | None,
        timeout_s: float,
    ) -> tuple[int, str]:
        """Return exit status and end of the output of a command; its log is written to *folder*.

        Files that are words of their own go with it: all but the program, and that too if it is a script.

        Raises:
            LimitsExceeded: it took too long.
        """
        given = {word: Path(word) for place, word in enumerate(words) if _goes_along(word, first=not place)}
        files = {word: keep_files(access.store, path.parent, [path])[0] for word, path in given.items()}
        order = list(files)
        kept = None if wheel is None else keep_files(access.store, wheel.parent, [wheel])[0]
        asked = CommandStep(
            tree=report.tree,
            pristine=report.pristine,
            words=tuple(f"{{{order.index(word)}}}" if word in files else word for word in words),
            files=tuple(files.values()),
            described=dict(described),
            timeout_s=timeout_s,
            wheel=kept,
        )
        sent = [*asked.files, *([] if kept is None else [kept])]

        def bring(reply: TaskDone) -> bool:
            return bring_files(access.store, reply.files, folder)

        ran = self._step(access, asked, _COMMAND, CommandRan, files=sent, bring=bring)
        if ran.limit:
            raise LimitsExceeded(ran.limit)
        return ran.status, ran.output

    def rehearse(self, job: Job, report: MergeReport, options: RehearsalOptions) -> RehearsalResult:
        """Rehearse a candidate."""
        from sparkwright.rehearsal.elsewhere import rehearse_elsewhere

        return rehearse_elsewhere(self.cluster, job, report, options, self._pool)

    def _step(
        self,
        access: Access,
        asked: ProbeStep | CommandStep,
        cost: Cost,
        made: type[MadeT],
        *,
        files: Sequence[StoredFile],
        bring: Callable[[TaskDone], bool] = lambda _: True,
    ) -> MadeT:
        """Run one step on a worker; return its result, whose files *bring* takes."""
        from sparkwright.cluster.running import Batch, TaskRequest

        found: list[MadeT] = []

        def take(request: TaskRequest, result: MadeT, reply: TaskDone) -> bool:
            del request
            if not bring(reply):
                return False
            found.append(result)
            emit("step.elsewhere", machine=reply.machine, seconds=round(reply.seconds, 3))
            return True

        trees = packed_trees(access.store, access.repository, [asked.pristine, asked.tree])
        name = f"step-{digest_of(to_builtins(asked))[:12]}"
        batch = Batch(
            KIND, [TaskRequest(name, asked, cost)], made, take, trees=trees, files=files, stop=self.stop
        )
        self.cluster.run(batch, self._pool)
        return found[0]


def _goes_along(word: str, *, first: bool) -> bool:
    """Tell if a word of a command names a file that the worker needs: a program only if it is a script."""
    path = Path(word)
    with contextlib.suppress(OSError):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return not first or file.read(2) == b"#!"
    return False


@dataclass(frozen=True)
class LaidSteps:
    """The store of a worker that runs steps."""

    serving: Serving

    def run(self, asked: ProbeStep | CommandStep, place: Place) -> ProbeRan | CommandRan:
        """Run a probe or a command on one candidate.

        Raises:
            UnfitError: a probe's environment is another one here.
        """
        store = self.serving.access.store
        repository = Repository(self.serving.access.repository.path)  # its readers serve one thread each
        with contextlib.closing(repository), store.scratch() as scratch:
            tree = tree_folder(store, repository, asked.tree, under=_PACKAGE, like=asked.pristine)
            given = scratch / "given"
            for number, one in enumerate(asked.files):
                self.serving.file(one)
                store.copy_out(one.sha256, self._path(given, asked, number))
            if isinstance(asked, ProbeStep):
                python = require_environment(self.serving, asked.environment)
                probe = given / asked.files[0].path
                done = run_probe(store, python, probe, asked.spec, tree, version=asked.version)
                return ProbeRan(run=done.run)
            return self._command(asked, tree, given, place)

    @staticmethod
    def _path(given: Path, asked: ProbeStep | CommandStep, number: int) -> Path:
        """Return the place of a file: probes import theirs by name, commands may name two alike."""
        folder = given if isinstance(asked, ProbeStep) else given / str(number)
        return folder / asked.files[number].path

    def _command(self, asked: CommandStep, tree: Path, given: Path, place: Place) -> CommandRan:
        names = {f"{{{number}}}": str(self._path(given, asked, number)) for number in range(len(asked.files))}
        words = [names.get(word, word) for word in asked.words]
        wheel = None
        if asked.wheel is not None:
            self.serving.file(asked.wheel)
            wheel = self.serving.access.store.named_file(asked.wheel.sha256, asked.wheel.path)
        if words[0] in names.values():
            Path(words[0]).chmod(0o755)
        cwd = given.parent / "cwd"
        cwd.mkdir()
        try:
            done = run_words(
                words, tree, asked.described, place.out, wheel=wheel, cwd=cwd, timeout_s=asked.timeout_s
            )
        except LimitsExceeded as error:
            return CommandRan(status=-1, output="", limit=str(error))
        return CommandRan(status=done.status, output=done.stderr)


def _lay_out(serving: Serving, inputs: Nothing, given: TaskInputs, stack: contextlib.ExitStack) -> LaidSteps:
    del inputs, given, stack
    return LaidSteps(serving)


def step_kind() -> TaskKind:
    """Return the kind of task that runs a probe or a command on one candidate of a bisection."""
    return TaskKind(Nothing, ProbeStep | CommandStep, _lay_out)
