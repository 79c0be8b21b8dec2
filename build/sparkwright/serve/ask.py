"""Ask a release for its options, and if its own parser takes command lines; answers are recorded.

`ask_release` asks the merged tree, in the environment for probes, and `ask_installed` the vLLM that will
serve, in its own. A child process imports vLLM and builds its parser: six seconds with bytecode and files in
the page cache, a minute without, of which the engine's own start is then spared most. Answers depend on
nothing but the content, the environment and the child's own source, and are recorded under their digest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ToolError
from sparkwright.base.events import task
from sparkwright.base.process import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.engine.installed import EngineFacts
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.trees import Merge, PristineTree
from sparkwright.probe.environment import environment_key, prepare_environment
from sparkwright.probe.pool import environment, interpreter
from sparkwright.probe.trees import tree_folder
from sparkwright.recipes.release_options import ParsedCommand, ReleaseOptions
from sparkwright.store import Store

_INSTALLED, _PACKAGE = "installed", "vllm"
_OPTIONS = "release-options"
_COMMAND = "parsed-command"
# A minute where nothing is in the page cache, and minutes on a machine that compiles.
_LIMITS = ProcessLimits(900.0, 6144)
_SAID = 2000
_MOST_READ = 16 << 20


@dataclass(frozen=True)
class ReleaseAnswer:
    """The answer of one release.

    Attributes:
        parsed: outcome of each command line, in the order of the question.
    """

    version: str
    options: ReleaseOptions
    parsed: tuple[ParsedCommand, ...]


class _Report(Model, frozen=True):
    """The report that the child writes; `options` only if they were asked for."""

    parsed: tuple[ParsedCommand, ...]
    options: ReleaseOptions | None = None


@dataclass(frozen=True)
class AskedRelease:
    """One release to ask.

    Attributes:
        identity: digests that determine its answers; empty records nothing.
        start: returns the command that starts the child without its request, from a folder for scratch files.
    """

    store: Store
    version: str
    identity: tuple[str, ...]
    start: Callable[[Path], list[str | Path]]

    def recorded(self, lines: Sequence[tuple[str, ...]]) -> ReleaseAnswer | None:
        """Return the answer by records alone; `None` if any of it is not recorded."""
        options, known = self._recorded(lines)
        if options is None or any(line not in known for line in lines):
            return None
        return ReleaseAnswer(self.version, options, tuple(known[line] for line in lines))

    def ask(self, lines: Sequence[tuple[str, ...]]) -> ReleaseAnswer:
        """Return the answer; the child is started only for what is not recorded, once for all *lines*.

        Raises:
            ToolError: the release could not be asked.
        """
        options, known = self._recorded(lines)
        missing = [line for line in dict.fromkeys(lines) if line not in known]
        if options is None or missing:
            report = self._child(missing, describe=options is None)
            options = report.options or options
            for line, parsed in zip(missing, report.parsed, strict=True):
                known[line] = parsed
                self._record(_COMMAND, line, parsed)
            if report.options is not None:
                self._record(_OPTIONS, (), report.options)
        return ReleaseAnswer(self.version, require(options), tuple(known[line] for line in lines))

    def _recorded(
        self, lines: Sequence[tuple[str, ...]]
    ) -> tuple[ReleaseOptions | None, dict[tuple[str, ...], ParsedCommand]]:
        if not self.identity:
            return None, {}
        found = {line: self.store.find_record_as(ParsedCommand, _COMMAND, self._key(line)) for line in lines}
        known = {line: parsed for line, parsed in found.items() if parsed is not None}
        return self.store.find_record_as(ReleaseOptions, _OPTIONS, self._key()), known

    def _record(self, kind: str, line: tuple[str, ...], answer: ParsedCommand | ReleaseOptions) -> None:
        if self.identity:
            self.store.put_record(kind, self._key(line), to_builtins(answer))

    def _key(self, line: tuple[str, ...] = ()) -> str:
        first, *rest = self.identity
        # The parser reads the files that are named, such as templates; a relative name finds none there.
        files = {word: sha256 for word in line if word.startswith("/") and (sha256 := _digest(Path(word)))}
        read = [files] if files else []
        return digest_of([first, sha256_bytes(child().read_bytes()), *rest, list(line), *read])

    def _child(self, lines: Sequence[tuple[str, ...]], *, describe: bool) -> _Report:
        with task(f"ask vllm {self.version} for its options"), self.store.scratch() as scratch:
            request, report, log = (scratch / name for name in ("request.json", "report.json", "log"))
            request.write_text(json.dumps({"commands": lines, "describe": describe}), encoding="utf-8")
            argv = [*self.start(scratch), "--request", request, "--report", report]
            # Without a network, vLLM looks for the model's files while it reads the arguments.
            variables = {
                name: value for name, value in environment(scratch).items() if name != "HF_HUB_OFFLINE"
            }
            try:
                run_limited(argv, limits=_LIMITS, cwd=scratch, env=variables, log=log)
                return decode_json(report.read_bytes(), _Report)
            except (LimitsExceeded, FileNotFoundError, msgspec.MsgspecError) as error:
                said = log.read_bytes()[-_SAID:].decode(errors="replace").strip() if log.exists() else ""
                raise ToolError(
                    f"vllm {self.version} could not be asked for its options",
                    because=said or str(error),
                    next_step="sparkwright store verify, then run again",
                ) from error


def _digest(path: Path) -> str:
    """Return the digest of the file at *path*; empty where there is none that a parser reads."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size <= _MOST_READ:
            return sha256_bytes(path.read_bytes())
    return ""


def child() -> Path:
    """Return the program that runs inside the environment that is asked."""
    return Path(str(resources.files("sparkwright.serve").joinpath("child", "describe_release.py")))


def ask_release(job: Job, commands: Sequence[Sequence[str]]) -> ReleaseAnswer:
    """Return the options of the job's merged tree, and the outcome of parsing each of *commands* by it.

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
    report, store = require(state.report), job.store

    def start(scratch: Path) -> list[str | Path]:
        python = prepare_environment(store, offline=job.options.offline)
        tree = tree_folder(store, job.repository, report.tree, under=_PACKAGE)
        places = {"--tree": tree, "--metadata": _metadata(scratch, report.version)}
        named = [word for pair in places.items() for word in pair]
        return [*interpreter(store, python), child(), *named]

    asked = AskedRelease(store, report.version, (report.tree, environment_key()), start)
    return asked.ask([tuple(command[1:]) for command in commands])


def _metadata(scratch: Path, version: str) -> Path:
    """Return a folder with the least that makes ``importlib.metadata`` find the package."""
    folder = scratch / "metadata"
    info = folder / f"{_PACKAGE}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    return folder


def ask_installed(
    store: Store,
    python: Path | None,
    engine: EngineFacts,
    commands: Sequence[Sequence[str]],
    *,
    identity: str = "",
) -> ReleaseAnswer | None:
    """Return the options of an installed vLLM, and the outcome of parsing each of *commands* by it.

    Answers are recorded under the digest of its files, which a wheel has as well before it is installed.

    Args:
        store: where answers are recorded.
        python: its interpreter; `None` for a wheel that is not installed, which only records answer for.
        engine: facts about it.
        commands: arguments of ``vllm``, from ``serve`` on.
        identity: digest of its content, for one that has no list of its files; without either, nothing is
            recorded.

    Raises:
        ToolError: it could not be asked.
    """
    content = engine.files or identity
    lines = [tuple(command[1:]) for command in commands]
    key = (content, _INSTALLED, engine.version) if content else ()
    if python is None:
        return AskedRelease(store, engine.version, key, lambda _: []).recorded(lines)
    # Bytecode stays beside the modules, where the engine looks for it next.
    start: list[str | Path] = [python, "-I", child()]
    return AskedRelease(store, engine.version, key, lambda _: start).ask(lines)
