"""Break every carry on purpose, and see that its probe notices.

Reads carries/NAME/mutations.toml. Each entry replaces one text in the merged tree of a series, and the
carry's probe runs on the result: it must fail or break, unless the entry says in ``equal`` why nothing
observable changes. A probe that is stopped at its limit of time or memory has not noticed anything, nor has
one whose tree changed while it ran. A carry without mutations of the series is an error, but for those that
change how kernels are compiled. One run at a time uses a store.

    python scripts/mutations.py [--carry NAME …] [--series 0.24 …]
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError, SparkwrightError
from sparkwright.base.events import Event, subscribe
from sparkwright.carries.model import Carry
from sparkwright.git.repository import TreeEntry
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.checkout import series_names
from sparkwright.pipeline.job import Job, open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.judge import Prover
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import Proof
from sparkwright.store.disk import remove_tree

ROOT = Path(__file__).parents[1]
FILE = "mutations.toml"
_SHOWN = 160  # characters of what a probe found
_PASSED = frozenset({"noticed", "equal", "skipped"})
_COMPILED = "it changes how kernels are compiled: its probe configures a build and imports no module"
_BEGUN = 3  # runs that are laid out at a time: two run, and the next one waits for them


class Mutation(Model, frozen=True):
    """A change of the merged tree that a probe has to notice.

    Attributes:
        old: text that occurs in it once.
        new: text in its place.
        series: the series that has it; empty for each one that has the carry.
        equal: why nothing observable changes; empty for a change that must be noticed.
    """

    name: str
    file: str
    old: str
    new: str
    series: str = ""
    equal: str = ""


class _Mutations(Model, frozen=True):
    mutation: tuple[Mutation, ...]


@dataclass(frozen=True)
class Result:
    """A mutation of a carry in one series, and what its probe found.

    Attributes:
        carry: the carry's name.
        proof: the runs on the merged tree without the mutation and with it.
    """

    series: str
    carry: str
    mutation: Mutation
    proof: Proof

    @property
    def noticed(self) -> bool:
        """Return True if the probe passes on the merged tree, and fails or breaks on the mutated one."""
        without, mutated = self.proof.pristine, self.proof.merged
        judged = not (mutated.stopped or mutated.disturbed)
        return without.verdict == "passes" and mutated.verdict != "passes" and judged

    @property
    def word(self) -> str:
        """Return what became of it.

        *unjudged*: the probe does not pass on the merged tree itself. *limit*: it was stopped on the mutated
        one, which may as well be the machine's load. *disturbed*: the mutated tree changed while it ran.
        """
        if self.proof.pristine.verdict != "passes":
            return "unjudged"
        if self.proof.merged.stopped:
            return "limit"
        if self.proof.merged.disturbed:
            return "disturbed"
        if self.mutation.equal:
            return "noticed, not equal" if self.noticed else "equal"
        return "noticed" if self.noticed else "survived"

    @property
    def line(self) -> str:
        """Return one line about it."""
        found = self.noticed or self.word in {"limit", "disturbed"}
        message = self.proof.merged.message if found else self.mutation.equal
        said = (message.strip().splitlines() or [""])[-1 if self.proof.merged.verdict == "error" else 0]
        told = f" ({shorten(said, _SHOWN)})" if said else ""
        return f"{self.series} {self.carry}: {self.word}: {self.mutation.name}{told}"


@dataclass(frozen=True)
class Unbroken:
    """A carry of a series that has no mutation there.

    Attributes:
        carry: the carry's name.
        reason: why it needs none; empty where its mutations are missing.
    """

    series: str
    carry: str
    reason: str

    @property
    def word(self) -> str:
        """Return what it means."""
        return "skipped" if self.reason else "no mutations"

    @property
    def line(self) -> str:
        """Return one line about it."""
        told = self.reason or f"carries/{self.carry}/{FILE} has none that applies to {self.series}"
        return f"{self.series} {self.carry}: {self.word} ({told})"


def main() -> int:
    """Run what the arguments ask for, and print a line per mutation and a count per carry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carry", nargs="+", metavar="NAME", default=())
    parser.add_argument("--series", nargs="+", default=sorted(series_names(ROOT)))
    args = parser.parse_args()
    results: list[Result | Unbroken] = []
    try:
        for series in args.series:
            with open_job(ROOT, BuildOptions(series=series)) as job, subscribe(_say_waiting):
                for result in mutate(job, series, args.carry):
                    if isinstance(result, Result):
                        print(result.line, flush=True)
                    results.append(result)
    except SparkwrightError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(["", *counts(results)]))
    return 0 if results and all(result.word in _PASSED for result in results) else 1


def _say_waiting(event: Event) -> None:
    if event.kind == "lock.waiting":
        print(f"waiting for another run, which uses {event.data['what']}", file=sys.stderr)


def mutate(job: Job, series: str, names: Sequence[str] = ()) -> Iterator[Result | Unbroken]:
    """Yield the carries in *job*, or of *names*, without mutations, and what probes find of each mutation.

    A second run on the same store waits: each removes the mutated trees that it has judged.

    Raises:
        BusyError: another run holds the store for longer than an hour.
        CarryConflictError: a carry does not merge.
        ConfigError: a file of mutations is damaged, or its text does not occur once in the merged tree.
    """
    report = merge_patchset(job.repository, job.merge_request(job.pristine, job.spec.lock.release.version))
    report.require_merged()
    trees: list[tuple[Carry, Mutation, str]] = []
    for carry in job.spec.carries:
        if names and carry.name not in names:
            continue
        kind = report.outcome(carry.name).kind
        mutations = [one for one in mutations_of(carry) if one.series in {"", series}]
        if not mutations and carry.spec.scope == "build":
            yield Unbroken(series, carry.name, _COMPILED)
        elif not mutations or not kind.in_tree:
            yield Unbroken(series, carry.name, "" if kind.in_tree else f"its outcome is {kind}")
        else:
            trees += [(carry, one, mutated_tree(job, report, carry, one)) for one in mutations]
    begun: deque[tuple[Carry, Mutation, str, Callable[[], Proof]]] = deque()
    left: set[str] = set()

    def end() -> Result:
        carry, mutation, tree, finish = begun.popleft()
        proof = finish()
        forget_tree(job, tree)
        left.discard(tree)
        return Result(series, carry.name, mutation, proof)

    with job.store.lock("mutations", f"mutated trees in {job.store.home}"):
        try:
            with ProbePool(job.store, most=2) as pool:
                prover = replace(job.prover(report), pristine=report.tree, pool=pool)
                for carry, mutation, tree in trees:
                    left.add(tree)
                    begun.append((carry, mutation, tree, begin(prover, tree, report, carry)))
                    if len(begun) == _BEGUN:
                        yield end()
                while begun:
                    yield end()
        finally:  # when the pool's runs are over, which import from them
            for tree in left:
                forget_tree(job, tree)


def begin(prover: Prover, tree: str, report: MergeReport, carry: Carry) -> Callable[[], Proof]:
    """Start the probe of *carry* on the mutated *tree*; returns a function that waits and gives the proof.

    Raises:
        ConfigError: the proof does not hang on what was mutated, or the carry has no probe.
    """
    paths = report.outcome(carry.name).proof_paths
    mutated = replace(prover, merged=tree)
    if mutated.key(carry, paths) == prover.key(carry, paths):
        raise ConfigError(
            f"a mutation of {carry.name} cannot be judged",
            because="it is in a file that neither the carry changes nor its probe imports",
            next_step=f"import that file in the probe, or correct carries/{carry.name}/{FILE}",
        )
    known = mutated.find(carry, paths)
    return mutated.begin(carry, paths) if known is None else lambda: known


def mutations_of(carry: Carry) -> tuple[Mutation, ...]:
    """Return the mutations in the folder of *carry*."""
    path = carry.folder / FILE
    return load_toml(path, _Mutations, newest_format=1).mutation if path.is_file() else ()


def mutated_tree(job: Job, report: MergeReport, carry: Carry, mutation: Mutation) -> str:
    """Return id of the merged tree with *mutation*.

    Raises:
        ConfigError: its text does not occur in the file once.
    """
    entry = job.repository.files(report.tree, [mutation.file]).get(mutation.file)
    text = "" if entry is None else job.repository.blob(entry.blob).decode()
    if entry is None or (count := text.count(mutation.old)) != 1:
        raise ConfigError(
            f"the mutation {mutation.name!r} of {carry.name} cannot be made on {report.version}",
            because=f"{mutation.file} is not in the merged tree"
            if entry is None
            else f"its text occurs {count} times in {mutation.file}",
            next_step=f"correct carries/{carry.name}/{FILE}",
        )
    changed = job.repository.objects.write("blob", text.replace(mutation.old, mutation.new).encode())
    tree = job.repository.objects.edit(report.tree, {mutation.file: TreeEntry(entry.mode, changed)})
    return tree or ""  # a tree with a file in it is never empty


def forget_tree(job: Job, tree: str) -> None:
    """Remove the checked-out *tree* and its bytecode: hundreds of them would fill a disk."""
    folder = job.store.trees / f"{tree}-vllm"
    remove_tree(job.store.bytecode_of(folder))
    remove_tree(folder)


def counts(results: Sequence[Result | Unbroken]) -> list[str]:
    """Return a line per series and carry: how many mutations and what became of them, or why none."""
    lines = [result.line for result in results if isinstance(result, Unbroken)]
    judged = [result for result in results if isinstance(result, Result)]
    for series, name in dict.fromkeys((result.series, result.carry) for result in judged):
        words = [result.word for result in judged if (result.series, result.carry) == (series, name)]
        tally = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
        lines.append(f"{series} {name}: {len(words)} mutations: {', '.join(tally)}")
    return lines


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end at which mutated trees are removed too
    sys.exit(main())
