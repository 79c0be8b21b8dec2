"""Adapters: the only module that knows the product's modules, and those of its tests.

When a module moves, its adapter here is what changes. Everything else goes by the command line.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START = "cf1764a9e70e61313cc1b119fbf0c102549b76e8"
"""The commit whose carries, patchsets and locks every item works on: what differs is the code."""
_INPUTS = ("carries", "patchsets", "upstream.lock")
_MADE = {"merge", "binaries", "wheel", "audit"}
# From the form of journals at `START` to today's: patterns, and what stands there now.
_JOURNALS = {
    # Times of requests for the list of models: only the protocol of llama-benchy read them.
    re.compile(r',"listing-ms":\[[^]]*\]'): "",
    # The one release that the simulator imitates, in the title and the identity of a run.
    re.compile(r'"server":"simulated vLLM 0\.24'): '"server":"simulated vLLM 0.33.0',
    re.compile(r'"simulator":"0\.24 '): '"simulator":"0.33.0 ',
    # A soak is as long as its profile says: that of the recorded decay was shorter.
    re.compile(r',"soak-s":420\.0'): "",
    re.compile(r'"seconds":105\.0'): '"seconds":300.0',
    # Whether a log could be read: what it holds tells.
    re.compile(r',"log-seen":(true|false)'): "",
    # How long the soak takes is the profile's alone.
    re.compile(r',"soak-s":[0-9.]+(?=[,}])'): "",
}
SUPPORT = ROOT / "tests" / "support"
RECIPES = ROOT / "build" / "sparkwright" / "recipes" / "shipped"


# The command line ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return its output as JSON; what it said where it printed none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return {"status": self.status, "said": self.out + self.err}

    def require(self) -> Ran:
        """Return it if it succeeded."""
        if self.status:
            raise RuntimeError(f"exit status {self.status}: {self.out[-500:]}{self.err[-3000:]}")
        return self


def call(*words: str | Path, folder: Path, **variables: str) -> Ran:
    """Run a command of sparkwright in this process, in *folder*; with ``SPARKWRIGHT_HOME`` and such."""
    from sparkwright.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
            status = main([str(word) for word in words])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Ran(status, out.getvalue(), err.getvalue())


def commands() -> dict[str, set[str]]:
    """Return every command's long options, by its words."""
    import click

    from sparkwright.cli.command import Command, Parent
    from sparkwright.cli.main import group

    found: dict[str, set[str]] = {}

    def walk(words: str, command: click.Command, context: click.Context) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if (one := command.get_command(context, name)) is not None:
                    walk(f"{words} {name}", one, context)
            return
        taken = command.taken() if isinstance(command, Command) else []
        options = {
            one for parameter in [*command.params, *taken] for one in parameter.opts if one[:2] == "--"
        }
        found[words.strip()] = options
        if isinstance(command, Parent):
            for name in command.subcommands:
                walk(f"{words} {name}", command.subcommand(name), context)

    walk("", group, click.Context(group))
    return found


def inputs(scratch: Path) -> Path:
    """Lay out carries, patchsets and locks of the commit `START`; return the folder, for ``--root``."""
    folder = scratch / "checkout"
    if not folder.exists():
        packed = subprocess.run(
            ["git", "-C", ROOT, "archive", START, *_INPUTS], stdout=subprocess.PIPE, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def warm(scratch: Path) -> dict[str, str]:
    """Return the variables for a command with the user's store but for the wheels and merges in it.

    Those would be what other code once made, and no difference would show.
    """
    store, home = Path(os.environ["SAFETY_NET_STORE"]), scratch / "warm"
    if not home.exists():
        (home / "records").mkdir(parents=True)
        for kept in [*store.iterdir(), *(store / "records").iterdir()]:
            if kept.name not in {"records", *_MADE}:
                (home / kept.relative_to(store)).symlink_to(kept)
    return {"SPARKWRIGHT_HOME": str(home)}


def plain(value: Any, scratch: Path) -> Any:
    """Return *value* without what this run or machine is recognised by."""
    if isinstance(value, dict):
        return {plain(key, scratch): plain(one, scratch) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, scratch) for one in value]
    if not isinstance(value, str):
        return value
    places = {
        str(scratch): "SCRATCH", str(scratch)[1:]: "SCRATCH", sys.executable: "PYTHON",
        os.environ["SAFETY_NET_STORE"]: "STORE",
        sys.prefix: "PREFIX", str(ROOT): "ROOT",
    }  # fmt: skip
    for place, name in places.items():
        value = value.replace(place, name)
    return re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:PORT", value)


def _of_tests(module: str) -> Any:
    """Return a module of the tests' support, or of the unit tests."""
    sys.path[:] = dict.fromkeys([str(SUPPORT), *map(str, (ROOT / "tests" / "unit").iterdir()), *sys.path])
    return importlib.import_module(module)


# The builder -----------------------------------------------------------------------------------------------


def merge_into_store(
    root: Path, series: str, platform: str, extensions: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Run the steps of a native build up to the merge; return the keys of the units of *extensions*."""
    from sparkwright.native.build import configured
    from sparkwright.native.units import unit_key
    from sparkwright.pipeline.build import make, merge
    from sparkwright.pipeline.job import open_job
    from sparkwright.pipeline.kernels import builder_of, inputs_of, prepare
    from sparkwright.pipeline.options import BuildOptions
    from sparkwright.pipeline.state import find_only

    os.environ.update(warm(root.parent))
    options = BuildOptions(series=series, platform=platform, kernels="native", offline=True)
    found: dict[str, dict[str, str]] = {}
    with open_job(root, options) as job:
        state = merge(job, make)
        state.toolchain = find_only(prepare(job)) if extensions else None
        if extensions and state.toolchain is None:
            raise RuntimeError(
                f"the store has no toolchain of series {series}: compile one unit with it first"
            )
        for extension in extensions:
            given = inputs_of(job, state)
            known = configured(builder_of(job), given)
            found[extension] = {
                unit.name: unit_key(unit, known.files, given.toolchain.key)
                for unit in known.configuration.units_of(extension)
            }
    return found


def audited(scratch: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what was done to a small wheel, with the verdict of every check that was not passed."""
    audit_case, native_case, wheelkit = map(_of_tests, ("audit_case", "native_case", "wheelkit"))
    ordinary, hostile = _of_tests("test_wheel_audit"), _of_tests("test_wheel_hostile")
    native = _of_tests("test_wheel_native")

    def spoken(case: Any, wheel: Path, expectation: Any = None) -> dict[str, str]:
        found = audit_case.verdicts(wheel, expectation or case.expectation)
        return {name: verdict for name, verdict in found.items() if verdict != "pass"}

    count = iter(range(1000))

    def place() -> Path:
        folder = scratch / f"spoilt-{next(count)}"
        folder.mkdir()
        return folder

    case = audit_case.make_case(scratch / "case")
    yield "healthy", spoken(case, case.wheel)
    for name, (change, _) in ordinary.FAULTS.items():
        yield name, spoken(case, wheelkit.spoil(case.wheel, place(), change))
    for name, change in ordinary.RECORD_FAULTS.items():
        yield f"RECORD: {name}", spoken(case, wheelkit.spoil(case.wheel, place(), change, record=False))
    for name in hostile.OTHER_NAMES:
        change = audit_case.put(f"{audit_case.INFO}/{name}", b"{}")
        yield f"a file {name}", spoken(case, wheelkit.spoil(case.wheel, place(), change))
    for name, (change, _) in hostile.STATEMENTS.items():
        yield f"statement: {name}", spoken(case, wheelkit.spoil(case.wheel, place(), change))
    compiled = native_case.make_case(scratch / "native")
    known = native.known(compiled)
    yield "healthy native", spoken(compiled, compiled.wheel, known)
    for name, (change, _) in native.WHEEL_FAULTS.items():
        yield f"native: {name}", spoken(compiled, wheelkit.spoil(compiled.wheel, place(), change), known)
    for name, (flags, _, _) in native.FLAGS.items():
        folder = place()
        binary = native_case.extension(folder / "x.so", *flags)
        yield f"library: {name}", spoken(compiled, native.rebuilt(compiled, folder, binary))
    for name, (images, _) in native.COUNTS.items():
        folder = place()
        binary = native_case.extension(folder / "x.so", images=images)
        yield f"device code: {name}", spoken(compiled, native.rebuilt(compiled, folder, binary))


# Errors ----------------------------------------------------------------------------------------------------


def exit_codes() -> dict[str, int]:
    """Return the exit code of every class of error, by name."""
    import pkgutil

    import sparkwright
    from sparkwright.base.errors import SparkwrightError

    for module in pkgutil.walk_packages(sparkwright.__path__, "sparkwright."):
        if ".child" not in module.name and not module.name.endswith(("__main__", "_child")):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    found: dict[str, int] = {}
    waiting = [SparkwrightError]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind.exit_code
        waiting += kind.__subclasses__()
    return found


# Bisection -------------------------------------------------------------------------------------------------


def searched(
    names: Sequence[str],
    axis: Any,
    evaluate: Any,
    *,
    weights: Mapping[str, float],
    requires: Mapping[str, Sequence[str]],
    **fields: Any,
) -> tuple[list[str], dict[str, Any]]:
    """Return the evaluations of one search in order, and its result.

    Args:
        names: the changes, in order.
        axis: of them all.
        evaluate: returns verdict and signature of a set of applied changes at an attempt.
        weights: as for `SearchProblem`.
        requires: names that a change requires.
        fields: more of `SearchProblem`.
    """
    from sparkwright.base.errors import SparkwrightError
    from sparkwright.search.model import Change, Evaluation, SearchProblem, StepVerdict
    from sparkwright.search.strategy import search

    changes = tuple(
        Change(id=name, axis=axis, title=name, requires=tuple(requires.get(name, ()))) for name in names
    )
    problem = SearchProblem(
        start="old", end="new", judge="planted", changes=changes, weights=dict(weights), **fields
    )
    asked: list[str] = []
    searching = search(problem)
    try:
        question = next(searching)
        while True:
            mask = sum(1 << number for number, name in enumerate(names) if name in question.applied)
            verdict, signature = evaluate(question.applied, question.attempt)
            asked.append(f"{mask:x}.{question.attempt}{verdict[0]}")
            question = searching.send(Evaluation(verdict=StepVerdict(verdict), signature=signature))
    except StopIteration as done:
        result = done.value
        return asked, {"kind": str(result.kind), "changes": list(result.changes)}
    except SparkwrightError as error:
        return asked, {"error": type(error).__name__, "what": str(error)}


# The judge of servers --------------------------------------------------------------------------------------


def recorded_runs(folder: Path) -> Path:
    """Unpack the recorded runs to *folder*, their journals in today's form; return it."""
    with tarfile.open(ROOT / "tests" / "safety-net" / "runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    shutil.rmtree(folder / "arrivals")  # of a check that went: `--slo` sends open loops
    for journal in folder.glob("*/journal.jsonl"):
        text = journal.read_text(encoding="utf-8")
        for pattern, instead in _JOURNALS.items():
            text = pattern.sub(instead, text)
        journal.write_text(text, encoding="utf-8")
        _rename_cells(journal)
    return folder


def _rename_cells(journal: Path) -> None:
    """Write the digest of today's profile into *journal*, and the ids of cells that follow from it."""
    from sparkwright.base.config import to_builtins
    from sparkwright.base.digests import digest_of
    from sparkwright.verify.journal import cell_id, read_journal
    from sparkwright.verify.options import VerifyOptions
    from sparkwright.verify.plan import profile_of

    contents = read_journal(journal.parent)
    profile = profile_of(VerifyOptions.from_options(contents.manifest.options))
    identity = {**contents.manifest.identity, "profile": digest_of(to_builtins(profile))[:16]}
    text = journal.read_text(encoding="utf-8")
    text = text.replace(
        f'"profile":"{contents.manifest.identity["profile"]}"', f'"profile":"{identity["profile"]}"'
    )
    for name, seen in contents.measured.items():
        text = text.replace(f'"id":"{name}"', f'"id":"{cell_id(seen.cell, identity)}"')
    journal.write_text(text, encoding="utf-8")


def figures(run: Path) -> list[dict[str, Any]]:
    """Return the figures of every cell of the run in the folder *run*, not rounded, by the recorded names."""
    from sparkwright.verify.checks.machine import disturbances
    from sparkwright.verify.report.figures import cells
    from sparkwright.verify.results import load_run

    found = []
    for cell in cells(load_run(run)):
        seen, counted = cell.observation, cell.observation.counted
        kinds = {one.category for one in counted}
        values: dict[str, Any] = {
            "check": seen.cell.check,
            "cell": seen.cell.name,
            "server": seen.cell.arm,
            "start": seen.cell.boot,
            "category": seen.cell.tags.get("category") or (kinds.pop() if len(kinds) == 1 else ""),
            "concurrency": cell.concurrency,
            "requests": cell.requests,
            "failed": len(seen.failed),
            "seconds": seen.seconds,
            "prompt_tokens_mean": sum(one.prompt_tokens for one in counted) / len(counted)
            if counted
            else None,
            "output_tokens": sum(one.output_tokens for one in counted),
            "throughput_tok_s": cell.whole_tok_s,
            "throughput_steady_tok_s": cell.steady_tok_s,
            "decode_tok_s": cell.decode_tok_s,
            "ttft_p50_ms": cell.ttft_ms.p50,
            "ttft_p95_ms": cell.ttft_ms.p95,
            "ttft_p99_ms": cell.ttft_ms.p99,
            "tpot_p50_ms": cell.tpot_ms.p50,
            "tpot_p95_ms": cell.tpot_ms.p95,
            "tpot_p99_ms": cell.tpot_ms.p99,
            "mean_acceptance_length": cell.mal,
            "acceptance_rate": cell.acceptance.rate if cell.acceptance else None,
            "step_ms": cell.step_ms,
            "prefix_cache_hit_rate": cell.hit_rate,
            "disturbance": "; ".join(disturbances(seen)),
            "trouble": "; ".join(cell.trouble),
            "rate_req_s": seen.cell.load.rate or None,
        }
        found.append({name: None if value != value else value for name, value in values.items()})  # noqa: PLR0124 - NaN
    return found


def fault_table(names: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Return the outcome of each case of the fault matrix, or of those about the faults *names*.

    One that gives another verdict than it should, as some do on a busy machine, is run alone, twice at most.
    """
    matrix = _of_tests("fault_matrix")
    cases = [case for case in (*matrix.CASES, *matrix.seeds(1)) if not names or case.fault in names]
    outcomes = matrix.run_cases(cases, scratch)
    for attempt, case in itertools.product(("second", "third"), cases):
        found = outcomes[case.name]
        if found.verdict is not case.verdict or (case.warns and not found.warnings):
            outcomes[case.name] = matrix.run_case(case, scratch / attempt / case.name)
    return {
        case.name: {
            "check": case.check,
            "verdict": str(outcomes[case.name].verdict),
            "verdicts": {name: str(verdict) for name, verdict in outcomes[case.name].verdicts.items()},
            "warned": bool(outcomes[case.name].warnings) if case.warns else None,
        }
        for case in cases
    }
