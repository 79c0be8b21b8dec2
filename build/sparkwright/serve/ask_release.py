"""Ask the parser of a release, with its carries, which options it has and if it takes command lines.

A child process imports the merged tree in the environment for probes. Answers depend on nothing but the tree,
the environment and the child's own source, and are recorded under the digest of these: a second question is
answered from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.trees import Merge, PristineTree
from sparkwright.probe.environment import environment_key, prepare_environment
from sparkwright.probe.pool import interpreter
from sparkwright.probe.trees import tree_folder
from sparkwright.serve.release_child import AskedRelease, ReleaseAnswer, child

_PACKAGE = "vllm"


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
