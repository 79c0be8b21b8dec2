"""Ask the parser of a release, with its carries, which options it has and if it takes command lines.

A child process imports the merged tree in the environment for probes. Answers depend on nothing but the tree,
the environment and the child's own source, and are recorded under the digest of these: a second question is
answered from the store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ToolError
from sparkwright.base.events import task
from sparkwright.base.process import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.trees import Merge, PristineTree
from sparkwright.probe.environment import environment_key, prepare_environment
from sparkwright.probe.runner import environment, interpreter
from sparkwright.probe.trees import tree_folder
from sparkwright.recipes.release_options import ParsedCommand, ReleaseOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.git import Repository
    from sparkwright.pipeline.job import Job
    from sparkwright.store import Store

_PACKAGE = "vllm"
_OPTIONS = "release-options"
_COMMAND = "parsed-command"
# Importing vLLM takes ten seconds of CPU time, and minutes on a machine that compiles.
_LIMITS = ProcessLimits(900.0, 6144)
_SAID = 2000


@dataclass(frozen=True)
class ReleaseAnswer:
    """The answer of one release.

    Attributes:
        version: the release.
        options: its options.
        parsed: outcome of each command line, in the order of the question.
    """

    version: str
    options: ReleaseOptions
    parsed: tuple[ParsedCommand, ...]


class _Report(Model, frozen=True):
    """The report that the child writes; `options` only if they were asked for."""

    parsed: tuple[ParsedCommand, ...]
    options: ReleaseOptions | None = None


def ask_release(job: Job, commands: Sequence[Sequence[str]]) -> ReleaseAnswer:
    """Return the options of the job's merged tree, and the outcome of parsing each of *commands* by it.

    Args:
        job: the release with its carries.
        commands: arguments of ``vllm``, from ``serve`` on.

    Raises:
        CarryConflictError: the patchset does not merge.
        EnvironmentSetupError: the environment for probes could not be made.
        NotInStoreError: the tree or the environment is not in the store, and the network is off.
        ToolError: the release could not be asked.
    """
    state = BuildState()
    for step in (PristineTree(), Merge()):
        if not step.find(job, state):
            step.make(job, state)
    report, lines = require(state.report), [tuple(command[1:]) for command in commands]
    asking = _Asking(job.store, job.repository, report.tree, report.version, offline=job.options.offline)
    return asking.ask(lines)


@dataclass(frozen=True)
class _Asking:
    """One tree to ask.

    Attributes:
        store: where answers are recorded.
        repository: where the tree is.
        tree: its id.
        version: the release that it calls itself.
        offline: make no environment.
    """

    store: Store
    repository: Repository
    tree: str
    version: str
    offline: bool

    def ask(self, lines: Sequence[tuple[str, ...]]) -> ReleaseAnswer:
        """Return the answer; the child is started only for what is not recorded."""
        options = self.store.find_record_as(ReleaseOptions, _OPTIONS, self._key())
        known = {
            line: found
            for line in lines
            if (found := self.store.find_record_as(ParsedCommand, _COMMAND, self._key(line))) is not None
        }
        missing = [line for line in dict.fromkeys(lines) if line not in known]
        if options is None or missing:
            report = self._child(missing, describe=options is None)
            options = report.options or options
            for line, parsed in zip(missing, report.parsed, strict=True):
                known[line] = parsed
                self.store.put_record(_COMMAND, self._key(line), to_builtins(parsed))
            if report.options is not None:
                self.store.put_record(_OPTIONS, self._key(), to_builtins(report.options))
        return ReleaseAnswer(self.version, require(options), tuple(known[line] for line in lines))

    def _key(self, line: tuple[str, ...] = ()) -> str:
        return digest_of([self.tree, sha256_bytes(child().read_bytes()), environment_key(), list(line)])

    def _child(self, lines: Sequence[tuple[str, ...]], *, describe: bool) -> _Report:
        python = prepare_environment(self.store, offline=self.offline)
        tree = tree_folder(self.store, self.repository, self.tree, under=_PACKAGE)
        with task(f"ask vllm {self.version} for its options"), self.store.scratch() as scratch:
            request, report, log = (scratch / name for name in ("request.json", "report.json", "log"))
            request.write_text(json.dumps({"commands": lines, "describe": describe}), encoding="utf-8")
            places = {"--tree": tree, "--metadata": self._metadata(scratch), "--request": request}
            argv: list[str | Path] = [*interpreter(self.store, python), child()]
            for name, path in {**places, "--report": report}.items():
                argv += [name, path]
            variables = {
                name: value for name, value in environment(scratch).items() if name != "HF_HUB_OFFLINE"
            }
            try:
                run_limited(argv, limits=_LIMITS, cwd=scratch, env=variables, log=log)
                return msgspec.json.decode(report.read_bytes(), type=_Report)
            except (LimitsExceeded, FileNotFoundError, msgspec.MsgspecError) as error:
                said = log.read_bytes()[-_SAID:].decode(errors="replace").strip() if log.exists() else ""
                raise ToolError(
                    f"vllm {self.version} could not be asked for its options",
                    because=said or str(error),
                    next_step="sparkwright store verify, then run again",
                ) from error

    def _metadata(self, scratch: Path) -> Path:
        """Return a folder with the least that makes ``importlib.metadata`` find the package."""
        folder = scratch / "metadata"
        info = folder / f"{_PACKAGE}-{self.version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: {self.version}\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
        return folder


def child() -> Path:
    """Return the program that runs inside the environment for probes."""
    return Path(str(resources.files("sparkwright.serve").joinpath("child", "describe_release.py")))
