"""Upstream's own tests on the pristine and on the merged tree: what passes on one, and fails on the other.

A probe judges what its author thought of. Upstream's tests know the rest: those that touch what the patchset
changes run on both trees, each file in a fork of a process that has imported vLLM, off the network, with
limits. A test is a *regression* if it passes on the pristine tree and fails on the merged one, and does both
again in a process of its own. What does not pass on the pristine tree says nothing, and is counted by reason.

The results of a file are kept in the store for each tree. What is found on a pair of trees is recorded in the
checkout, under a key of both trees' code and tests; nothing of it is in a wheel.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError, EnvironmentSetupError, NotInStoreError, ProcessError
from sparkwright.base.events import task
from sparkwright.base.process.run import install_packages
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits
from sparkwright.git.repository import Repository
from sparkwright.probe.environment import (
    environment_key,
    part_of,
    prepare_environment,
    requirements,
    share_bytecode,
    tree_folder,
)
from sparkwright.probe.pool import ProbePool, environment
from sparkwright.probe.runner import metadata_folder
from sparkwright.probe.upstream_choice import choose_tests
from sparkwright.store.disk import remove_tree, storing, write_atomically
from sparkwright.store.paths import Store

_FORMAT = 1
_KIND = "upstream-tests"
_FOLDER = "upstream-tests"
_SERVER, _RUN = "serve_tests.py", "run_tests.py"
_PACKAGE = "vllm"
_PARTS = (
    _PACKAGE, "tests", "pyproject.toml", "setup.py", "CMakeLists.txt", "benchmarks", "examples", "tools",
)  # fmt: skip
_TEST_S = 30.0
_FILE = ProcessLimits(seconds=120.0, memory_mib=6144)
_STARTS = 4  # of a file whose tests end their process
_SAID = 300
_NOT_RUN = "not run"
_NETWORK = (
    r"[Oo]ffline|outgoing traffic|LocalEntryNotFound|huggingface|Can't load|Invalid repository ID|getaddrinfo"
    r"|resol\w+ host|name resolution|Name or service|unreachable|Max retries|Connect(?:ion)?Error"
    r"|ClientConnector"
)
_REASONS = (
    (r"No module named '(?!vllm|tests)([\w.]+)'", "needs a package that is not here"),
    (r"ran for more than|was interrupted|time is up", "takes longer than the limit"),
    (r"MiB of memory|MemoryError", "takes more memory than the limit"),
    (_NETWORK, "needs a model or the network"),
    (r"\b_C\w*\b|torch\.ops|flash_attn", "needs vLLM's compiled extensions"),
    (r"(?i)cuda|nvidia|gpu|rocm|xpu|tpu|nvml|capability|accelerator|device", "needs a GPU"),
)


class UpstreamTest(Model, frozen=True):
    """The outcome of a test, and the end of its output."""

    outcome: str
    said: str = ""


class _Results(Model, frozen=True):
    tests: dict[str, UpstreamTest]


@dataclass(frozen=True)
class _File:
    """The tests of a file: outcomes on the pristine tree, and those that differ on the merged one."""

    before: dict[str, UpstreamTest]
    regressions: dict[str, str]
    flaky: list[str]


class UpstreamTests(Model, frozen=True):
    """The result of upstream's tests on a merged tree.

    Attributes:
        files: how many files of tests touch what the patchset changes.
        regressions: what fails on the merged tree alone, each with the end of what it said.
        flaky: tests that differed, and did not differ again.
        unjudged: how many tests of each file do not pass on the pristine tree here, by the reason.
    """

    format: int
    key: str
    version: str
    files: int
    passed: int
    regressions: dict[str, str]
    flaky: tuple[str, ...]
    unjudged: dict[str, dict[str, int]]


def record_path(patchsets: Path, patchset: str) -> Path:
    """Return where the checkout records what upstream's tests show of *patchset*."""
    return patchsets / _FOLDER / f"{patchset}.json"


def read_record(path: Path) -> UpstreamTests | None:
    """Return what is recorded in *path*, if anything is."""
    try:
        return decode_json(path.read_bytes(), UpstreamTests)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is not a record of upstream's tests",
            because=str(error),
            next_step="remove it and run 'sparkwright carry prove --upstream-tests'",
        ) from error


def write_record(path: Path, found: UpstreamTests) -> None:
    """Write *found* into *path*; equal results give equal bytes."""
    with storing("recording what upstream's tests show"):
        write_atomically(path, json.dumps(to_builtins(found), indent=1, ensure_ascii=False).encode() + b"\n")


def test_requirements() -> str:
    """Return the pinned packages that upstream's tests want beside the environment of probes."""
    return resources.files("sparkwright.probe").joinpath("upstream_requirements.txt").read_text("utf-8")


def choice_source() -> str:
    """Return the code that chooses which of upstream's tests run."""
    return resources.files("sparkwright.probe").joinpath("upstream_choice.py").read_text("utf-8")


def _child_folder() -> Path:
    return Path(str(resources.files("sparkwright.probe").joinpath("upstream_child")))


def packages_folder(store: Store) -> Path:
    """Return where *store* keeps what tests import beside the environment of probes."""
    return store.environments / f"{environment_key()}-{digest_of(test_requirements())[:16]}"


def prepare_packages(store: Store, python: Path, *, offline: bool) -> Path:
    """Return the folder of what tests import beside *python*'s environment; made when it is not there."""
    folder = packages_folder(store)
    if folder.is_dir() and store.claim(folder):
        return folder
    if offline:
        raise NotInStoreError(
            "the packages for upstream's tests are not there",
            because="the network is off",
            next_step="run 'sparkwright carry prove --upstream-tests' once without --offline",
        )
    with (
        store.lock(f"environment-{folder.name}", "the packages for upstream's tests"),
        store.scratch() as scratch,
    ):
        if not folder.is_dir():
            listed, fresh = scratch / "requirements.txt", scratch / "packages"
            listed.write_text(test_requirements(), encoding="utf-8")
            words: list[str | Path] = [
                "--target", fresh, "--no-deps", "--require-hashes", "--requirement", listed,
            ]  # fmt: skip
            try:
                with task("install the packages for upstream's tests"):
                    install_packages(python, words)
            except ProcessError as error:
                raise EnvironmentSetupError(
                    "the packages for upstream's tests could not be installed",
                    because=error.because,
                    next_step="check the package index and the disk, then run again",
                ) from error
            store.publish_folder(fresh, folder)
    return folder


@dataclass
class UpstreamGate:
    """Runs upstream's tests on a pair of trees.

    Attributes:
        isolate: start of a command that keeps a process off the network.
    """

    store: Store
    repository: Repository
    pristine: str
    merged: str
    version: str
    pool: ProbePool
    isolate: Sequence[str] = ()
    offline: bool = False
    _folders: dict[str, Path] = field(default_factory=dict)

    def key(self) -> str:
        """Return digest of all that the result hangs on: both trees' code and tests, which run, and how."""
        nodes = [self.repository.objects.node(tree) for tree in (self.pristine, self.merged)]
        trees = [
            [node[name].blob if name in node else None for name in (_PACKAGE, "tests")] for node in nodes
        ]
        return digest_of([self._how, choice_source(), trees])

    @property
    def _how(self) -> list[Any]:
        sources = [path.read_text(encoding="utf-8") for path in sorted(_child_folder().glob("*.py"))]
        limits = [_TEST_S, _FILE.seconds, _FILE.memory_mib]
        return [_FORMAT, requirements(), test_requirements(), sources, limits]

    def run(self, only: Sequence[str] = ()) -> UpstreamTests:
        """Run the tests that touch what differs between the trees, or of *only* those files."""
        trees = [part_of(self.repository, tree, _PARTS) for tree in (self.pristine, self.merged)]
        one, other = trees
        self._folders = {tree: tree_folder(self.store, self.repository, tree, under="") for tree in trees}
        share_bytecode(self.store, self.repository, (one, other), under="")
        if missing := [file for file in only if not (self._folders[one] / file).is_file()]:
            raise ConfigError(
                f"{missing[0]} is not in upstream's tree", next_step="name it as tests/…/test_….py"
            )
        changed = [path for path in self.repository.changed(one, other) if path.startswith(f"{_PACKAGE}/")]
        files = list(only) or choose_tests(self._folders[one], changed)
        if files:
            self._start(trees)
        with task("run upstream's tests on both trees", total=len(files), unit="files") as progress:
            begun = {
                file: self.pool.submit(
                    digest_of([one, other, file]), _FILE.memory_mib, partial(self._file, one, other, file)
                )
                for file in files
            }
            found = {}
            for file, run in begun.items():
                found[file] = run.result()
                progress.advance()
        judged = self._judged(found)
        if files and not only and not (judged.passed or judged.regressions or judged.flaky):
            raise EnvironmentSetupError(
                "upstream's tests cannot be run",
                because=f"not one in {len(files)} files passes on the pristine tree",
                next_step="run one of the files by its name, and see why its tests are not judged",
            )
        return judged

    def _start(self, trees: Sequence[str]) -> None:
        """Start the process of each tree that runs are forked from."""
        self._python = prepare_environment(self.store, offline=self.offline)
        packages = prepare_packages(self.store, self._python, offline=self.offline)
        script = _child_folder() / _SERVER
        for tree in dict.fromkeys(trees):
            metadata = metadata_folder(self.pool.folder(), self.version)
            self.pool.start_server(
                self._python,
                tree,
                script=script,
                arguments=(self._folders[tree], packages, metadata),
                prefix=self.isolate,
            )

    def _file(self, pristine: str, merged: str, file: str) -> _File:
        """Return what *file* shows: its tests on the pristine tree, and which of those that pass differ."""
        before = self._results(pristine, file)
        # Sorted, as a result from the store is: the order is in the key of what runs on the merged tree.
        passing = sorted(test for test, found in before.items() if found.outcome == "passed")
        after = self._results(merged, file, passing) if passing else {}
        differing = [test for test in passing if after[test].outcome != "passed"]
        if not differing:
            return _File(before, {}, [])
        # Not from the store: a test of timing may have differed because the machine was busy.
        with_it = self._run(merged, file, differing, alone=True)
        without = self._run(pristine, file, differing, alone=True)
        worse = {
            test: with_it[test].said
            for test in differing
            if without[test].outcome == "passed" and with_it[test].outcome not in {"passed", _NOT_RUN}
        }
        return _File(before, worse, [test for test in differing if test not in worse])

    def _results(self, tree: str, file: str, only: Sequence[str] | None = None) -> dict[str, UpstreamTest]:
        """Return what becomes of the tests of *file*, or of *only* those, on *tree*: recorded, or run."""
        key = digest_of([self._how, environment_key(), tree, file, only])
        known = self.store.find_record_as(_Results, _KIND, key)
        if known is None:
            known = _Results(tests=self._run(tree, file, only, alone=False))
            self.store.put_record(_KIND, key, to_builtins(known), share=False)
        return known.tests

    def _run(
        self, tree: str, file: str, only: Sequence[str] | None, *, alone: bool
    ) -> dict[str, UpstreamTest]:
        """Run tests until each is reported, one has ended the process too often, or their time is up."""
        found: dict[str, UpstreamTest] = {}
        left, end = only, ""
        for _ in range(_STARTS):
            collected, fresh, end = self._once(tree, file, left, alone=alone)
            found |= fresh
            left = [test for test in (collected if left is None else left) if test not in found]
            if not end or not left or not fresh:
                break
        missing = left or ([] if found else [file])
        said = f"not run: {end}" if end else found[file].said if file in found else "there is no such test"
        return found | {
            test: UpstreamTest(outcome=_NOT_RUN if end else "error", said=said) for test in missing
        }

    def _once(
        self, tree: str, file: str, only: Sequence[str] | None, *, alone: bool
    ) -> tuple[list[str], dict[str, UpstreamTest], str]:
        """Run *file* once; return the tests in it, what became of those that ran, and why it ended early."""
        end = "its process ended"
        with self.store.scratch() as scratch:
            report = scratch / "report"
            words: list[str | Path] = ["--tree", self._folders[tree], "--file", file, "--report", report]
            words += ["--seconds", str(_TEST_S)]
            if only is not None:
                (scratch / "tests.json").write_text(json.dumps(list(only)), encoding="utf-8")
                words += ["--alone" if alone else "--only", scratch / "tests.json"]
            try:
                ran = self.pool.run(
                    self._python,
                    tree,
                    _child_folder() / _RUN,
                    words,
                    limits=_FILE,
                    folder=scratch,
                    # For programs that a test starts: nothing may be written to the tree.
                    variables={**environment(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
                    log=scratch / "log",
                )
                if not ran:
                    raise EnvironmentSetupError(
                        "upstream's tests cannot be run",
                        because=f"the process that imports vLLM ended: {self.pool.said(self._python, tree)}",
                        next_step="run again; where it stays so, run 'sparkwright doctor'",
                    )
            except LimitsExceeded as error:
                end = str(error)
            lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
            if not lines and (scratch / "log").is_file():
                end += f": {(scratch / 'log').read_bytes()[-_SAID:].decode(errors='replace').strip()}"
            remove_tree(self.store.bytecode_of(scratch))
        return _read_lines(lines, end)

    def _judged(self, found: dict[str, _File]) -> UpstreamTests:
        unjudged: dict[str, Counter[str]] = {}
        regressions: dict[str, str] = {}
        flaky: list[str] = []
        passed = 0
        for file, shown in found.items():
            for outcome in shown.before.values():
                if outcome.outcome == "passed":
                    passed += 1
                else:
                    unjudged.setdefault(reason_of(outcome), Counter())[file] += 1
            regressions |= {test: self._shortened(said) for test, said in shown.regressions.items()}
            flaky += shown.flaky
        return UpstreamTests(
            format=_FORMAT,
            key=self.key(),
            version=self.version,
            files=len(found),
            passed=passed - len(regressions) - len(flaky),
            regressions=regressions,
            flaky=tuple(flaky),
            unjudged={reason: dict(unjudged[reason]) for reason in sorted(unjudged)},
        )

    def _shortened(self, said: str) -> str:
        """Return the first line of *said* without this machine's folders."""
        for folder in self._folders.values():
            said = said.replace(str(folder), "<tree>")
        return (said.strip().splitlines() or [""])[0][:_SAID]


def _read_lines(lines: Sequence[str], end: str) -> tuple[list[str], dict[str, UpstreamTest], str]:
    """Read a run's report; the test that ran when it ended early, for the reason *end*, gets that."""
    collected: list[str] = []
    found: dict[str, UpstreamTest] = {}
    started: list[str] = []
    for line in lines:
        event = json.loads(line)
        collected = event.get("collected", collected)
        if "started" in event:
            started.append(event["started"])
        if "test" in event:
            found[event["test"]] = UpstreamTest(outcome=event["outcome"], said=event["said"])
        if "finished" in event:
            end = ""
    for test in started:
        found.setdefault(test, UpstreamTest(outcome="error", said=end or "its process ended"))
    return collected, found, end


def reason_of(found: UpstreamTest) -> str:
    """Return why a test does not pass on the pristine tree here."""
    for pattern, reason in _REASONS:
        if match := re.search(pattern, found.said):
            return f"needs the package {match[1].split('.')[0]}" if match.groups() else reason
    return "skips itself" if found.outcome == "skipped" else "fails here"
