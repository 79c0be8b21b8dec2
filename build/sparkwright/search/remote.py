"""Steps of a bisection on other machines: a probe, a command, a rehearsal or a served wheel, as a task.

The candidate is merged here, and its tree goes to a worker through the store. What comes back is what the
judge reads of a run here: the probe's verdict, or a command's status and output.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.digests import digest_of, to_json
from sparkwright.base.events import emit
from sparkwright.base.process import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.carries import ProbeSpec
from sparkwright.distributed import Done, StoredFile, Task, TaskLostError, bring_files, share_file, share_json
from sparkwright.distributed.cluster import Cluster, ThisMachine, Workers
from sparkwright.distributed.tasks import OUT
from sparkwright.merge import MergeReport
from sparkwright.pipeline import Job
from sparkwright.pipeline.packs import packed
from sparkwright.pipeline.remote_proofs import require_environment
from sparkwright.probe import tree_folder
from sparkwright.probe.environment import environment_key
from sparkwright.probe.proof import ProbeRun
from sparkwright.probe.runner import run_probe
from sparkwright.rehearsal import RehearsalOptions, RehearsalResult
from sparkwright.search.model import UntestableError
from sparkwright.store import write_atomically
from sparkwright.upstream import Access

ResultT = TypeVar("ResultT")
OUTPUT, _SPEC = "output.log", "spec.json"
_PACKAGE = "vllm"
_NO_LIMIT_MIB = 1 << 40
_COMMAND_S, _COMMAND_MIB = 60.0, 2048
_PROBE_S = 10.0


class StepRequest(Model, frozen=True):
    """A probe or a command to run on one candidate.

    Attributes:
        tree, pristine: git ids of the merged tree and of upstream's.
        version: the release, for a probe.
        spec: limits and settings of the probe, whose file stands first of `files`; `None` for a command.
        environment: key of the environment for probes.
        words: the command, with `files` among its words.
        files: paths below the task's working folder.
        described: what the command reads of the candidate.
        wheel: path of the candidate's wheel, where it is asked for.
    """

    tree: str
    pristine: str
    files: tuple[str, ...]
    version: str = ""
    spec: ProbeSpec | None = None
    environment: str = ""
    words: tuple[str, ...] = ()
    described: dict[str, Any] = {}  # noqa: RUF012 - a frozen model's
    wheel: str = ""
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a request of neither a probe nor a command."""
        if not (self.files if self.spec is not None else self.words):
            raise ValueError("it names neither the file of a probe nor a command")


class CommandRan(Model, frozen=True):
    """The exit status of a command and the end of its output, or the limit that it passed."""

    status: int = -1
    output: str = ""
    limit: str = ""


def run_words(
    words: Sequence[str],
    tree: Path,
    described: Mapping[str, object],
    folder: Path,
    *,
    wheel: Path | None,
    cwd: Path,
    timeout_s: float,
    stop: threading.Event | None = None,
) -> tuple[int, str]:
    """Run a command on a candidate that is made; return its exit status and the end of its output.

    Args:
        words: the command; see `sparkwright.search.judges.Command`.
        tree: the folder with the merged package.
        described: what the command reads of the candidate.
        folder: for the output and the description.
        wheel: the wheel, where it is asked for.
        cwd: where it runs.
        timeout_s: longest run, in seconds.
        stop: ends it.

    Raises:
        LimitsExceeded: it took too long, or was stopped.
    """
    place = "" if wheel is None else str(wheel)
    write_atomically(folder / _SPEC, to_json(described))
    variables = {
        "SPARKWRIGHT_TREE": str(tree),
        "SPARKWRIGHT_SPEC": str(folder / _SPEC),
        **({"SPARKWRIGHT_WHEEL": place} if place else {}),
    }
    done = run_limited(
        [word.replace("{wheel}", place).replace("{tree}", str(tree)) for word in words],
        limits=ProcessLimits(timeout_s, _NO_LIMIT_MIB),
        cwd=cwd,
        env={**os.environ, **variables},
        log=folder / OUTPUT,
        stop=stop,
    )
    return done.status, done.stderr


@dataclass
class Machines:
    """The machines for the steps of one bisection, as a context: workers run for the length of its block.

    Attributes:
        stop: set when the search ends: steps that still run are given up.
    """

    cluster: Cluster | ThisMachine
    stop: threading.Event
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _workers: Workers | None = None

    def __enter__(self) -> Self:
        self._workers = self._stack.enter_context(self.cluster.open())
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.stop.set()
        self._workers = None
        self._stack.close()

    def __str__(self) -> str:
        """Return the address of the machines."""
        return self.cluster.address.name if isinstance(self.cluster, Cluster) else "this machine"

    def probe(
        self, access: Access, report: MergeReport, file: Path, spec: ProbeSpec, version: str
    ) -> ProbeRun:
        """Return what the probe *file* finds on the merged tree of *report*."""
        names = [file, *(file.with_name(name) for name in spec.helpers)]
        sent = [share_file(access.store, path, f"given/{path.name}") for path in names]
        request = StepRequest(
            tree=report.tree,
            pristine=report.pristine,
            files=tuple(one.path for one in sent),
            version=version,
            spec=spec,
            environment=environment_key(),
        )
        asked = self._task(access, request, sent, seconds=_PROBE_S, mib=spec.memory_mib)
        return self.do(asked, lambda done: convert(done.value, ProbeRun))

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
        given = {
            place: share_file(access.store, Path(word), f"given/{place}/{Path(word).name}")
            for place, word in enumerate(words)
            if _goes_along(word, first=not place)
        }
        sent = [*given.values()]
        if wheel is not None:
            sent.append(share_file(access.store, wheel, f"wheel/{wheel.name}"))
        request = StepRequest(
            tree=report.tree,
            pristine=report.pristine,
            files=tuple(one.path for one in given.values()),
            words=tuple(given[at].path if at in given else word for at, word in enumerate(words)),
            described=dict(described),
            wheel="" if wheel is None else sent[-1].path,
            timeout_s=timeout_s,
        )

        def take(done: Done) -> CommandRan | None:
            brought = bring_files(access.store, done.files, folder)
            return convert(done.value, CommandRan) if brought else None

        asked = self._task(access, request, sent, seconds=_COMMAND_S, mib=_COMMAND_MIB)
        ran = self.do(asked, take)
        if ran.limit:
            raise LimitsExceeded(ran.limit)
        return ran.status, ran.output

    def rehearse(self, job: Job, report: MergeReport, options: RehearsalOptions) -> RehearsalResult:
        """Rehearse a candidate."""
        from sparkwright.rehearsal.remote import rehearse_remotely

        if not isinstance(self.cluster, Cluster):
            raise TypeError("this machine rehearses by itself")
        return rehearse_remotely(self.cluster, job, report, options, self._workers)

    def _task(
        self, access: Access, request: StepRequest, sent: Sequence[StoredFile], *, seconds: float, mib: int
    ) -> Task:
        return Task(
            name=f"step-{digest_of(to_builtins(request))[:12]}",
            words=("task", "step"),
            files=(
                share_json(access.store, request),
                *packed(access.store, access.repository, [request.pristine, request.tree]),
                *sent,
            ),
            seconds=seconds,
            mib=mib,
        )

    def do(self, asked: Task, take: Callable[[Done], ResultT | None]) -> ResultT:
        """Run one task; return its result, which *take* reads; `None` is one that is not what was asked for.

        Raises:
            UntestableError: the task ended without a result wherever it was tried.
        """
        found: list[ResultT] = []

        def taken(done: Done) -> bool:
            if (result := take(done)) is None:
                return False
            found.append(result)
            emit("step.finished", machine=done.machine, seconds=round(done.seconds, 3))
            return True

        try:
            self.cluster.run([asked], taken, stop=self.stop, workers=self._workers)
        except TaskLostError as error:
            raise UntestableError(str(error)) from error
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


def step_here(request: StepRequest, access: Access) -> ProbeRun | CommandRan:
    """Run a probe or a command on one candidate, on this machine.

    Raises:
        ClusterError: a probe's environment is another one here.
    """
    store = access.store
    tree = tree_folder(store, access.repository, request.tree, under=_PACKAGE, like=request.pristine)
    if request.spec is not None:
        python, file = require_environment(store, request.environment), Path(request.files[0]).absolute()
        return run_probe(store, python, file, request.spec, tree, version=request.version).run
    words = [str(Path(word).absolute()) if word in request.files else word for word in request.words]
    if request.words[0] in request.files:  # a file of the store, which no program may change
        program = Path("program").absolute()
        program.write_bytes(Path(words[0]).read_bytes())
        program.chmod(0o755)
        words[0] = str(program)
    cwd = Path("cwd").absolute()
    cwd.mkdir()
    try:
        status, output = run_words(
            words,
            tree,
            request.described,
            Path(OUT).absolute(),
            wheel=Path(request.wheel).absolute() if request.wheel else None,
            cwd=cwd,
            timeout_s=request.timeout_s,
        )
    except LimitsExceeded as error:
        return CommandRan(limit=str(error))
    return CommandRan(status=status, output=output)
