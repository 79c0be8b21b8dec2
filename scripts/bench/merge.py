"""Merging the whole patchset: sparkwright's engine against ``git am -3`` in a work tree.

Both sides get the same carries on the same pristine tree, in one run and in turn. ``git am`` is
timed with and without making its work tree (``git worktree add`` from an existing clone): scripts make
one whenever the base moves, and the engine needs none. The engine also does what ``git am``
does not: it looks for absorbed carries, and compiles and examines every merged file.

The engine is timed as a new process finds it: before each merge, facts that this process holds of files
are dropped. *Warm*, the store has the findings of an earlier merge; *cold*, it has none.

    python scripts/bench/merge.py [--runs 7] [--source index]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from sparkwright.git.repository import git_environment
from sparkwright.git.trees import check_out
from sparkwright.merge import landing, resolved, sides
from sparkwright.merge.engine import MergeRequest, merge_patchset
from sparkwright.merge.hazards import Examined
from sparkwright.merge.prepare import prepare
from sparkwright.pipeline.job import Job, open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.store.paths import Store


class Taken(NamedTuple):
    """Seconds of an action: on the clock, and of CPU time with that of the processes it started."""

    wall: float
    cpu: float


def timed(action: Callable[..., object], *arguments: object, **named: object) -> Taken:
    """Return the seconds that *action* takes."""
    started, before = time.perf_counter(), os.times()
    action(*arguments, **named)
    after = os.times()
    return Taken(time.perf_counter() - started, sum(after[:4]) - sum(before[:4]))


def merge_as_new_process(job: Job, request: MergeRequest) -> Taken:
    """Return the seconds of a merge that holds nothing of files read before."""
    # What a new process lacks.
    for kept in (sides._module, sides._fault, sides._words, resolved._read):  # noqa: SLF001
        kept.cache_clear()
    return timed(merge_patchset, job.repository, request)


def report(what: str, taken: list[Taken], engine: list[Taken]) -> None:
    """Print one line: medians, the range on the clock, and how the median compares with the engine's."""
    walls = [one.wall for one in taken]
    median = statistics.median(walls)
    cpu = statistics.median(one.cpu for one in taken)
    ratio = median / statistics.median(one.wall for one in engine)
    spread = f"({min(walls):.3f} to {max(walls):.3f})"
    print(f"{what:38} {median:.3f} s  {spread:18} CPU {cpu:.2f} s  {ratio:5.1f} x the engine")


@contextmanager
def unexamined() -> Iterator[None]:
    """Merge without compiling and examining the merged files, to see the cost of that."""
    with mock.patch.object(landing, "examine", return_value=Examined()):
        yield


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git in *folder* under the same neutral configuration that the engine uses."""
    env = git_environment() | {"GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@localhost"}
    env |= {"GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@localhost"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, input=stdin, capture_output=True, check=True
    )
    return done.stdout


def mailbox(job: Job, request: MergeRequest) -> bytes:
    """Return the carries as ``git format-patch`` would write them, with context."""
    texts = []
    for carry in request.carries:
        change = prepare(
            job.repository, carry, version=request.version, find_base=request.find_base, offline=True
        )
        if isinstance(change, str):
            raise SystemExit(f"{carry.name}: {change}")
        diff = job.repository.diff(change.base, change.theirs, context=3)
        head = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: b <b@localhost>\n"
        head += "Date: Sat, 1 Jan 2000 00:00:00 +0000\n"
        texts.append(f"{head}Subject: [PATCH] {carry.name}\n\n---\n\n".encode() + diff + b"-- \n2.0\n\n")
    return b"".join(texts)


def main() -> None:
    """Time both sides in turn and print the medians and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--source", default="index")
    args = parser.parse_args()
    with open_job(Path(__file__).parent, BuildOptions(source=args.source)) as job:
        compare(job, args.runs)


def compare(job: Job, runs: int) -> None:
    """Time both sides *runs* times, in turn, and print the medians and their ratio."""
    lock = job.spec.lock
    whole = job.merge_request(job.source.pristine(lock), lock.release.version)
    # Those left out with upstream's kernels may change another source, which `git am` cannot merge.
    request = replace(whole, carries=tuple(one for one in whole.carries if one.name not in whole.left_out))
    merge_patchset(job.repository, request)  # imports, and the findings in the store

    engine, cold, bare, work_tree, am = [], [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        clone, box = Path(scratch, "clone"), mailbox(job, request)
        check_out(job.repository, request.pristine, clone)
        git(clone, "init", "--quiet")
        git(clone, "add", "--all", "--force")
        git(clone, "commit", "--quiet", "--message", "pristine")
        for number in range(runs):
            tree = Path(scratch, f"tree-{number}")
            empty = Store(Path(scratch, f"store-{number}"))
            engine.append(merge_as_new_process(job, request))
            cold.append(merge_as_new_process(job, replace(request, store=empty)))
            with unexamined():
                bare.append(merge_as_new_process(job, request))
            work_tree.append(timed(git, clone, "worktree", "add", "--quiet", "--detach", str(tree)))
            am.append(timed(git, tree, "am", "--3way", "--quiet", stdin=box))
    both = [Taken(one.wall + two.wall, one.cpu + two.cpu) for one, two in zip(am, work_tree, strict=True)]
    print(f"carries                                {len(request.carries)}")
    report("engine, warm", engine, engine)
    report("engine, cold", cold, engine)
    report("engine, merged files not examined", bare, engine)
    report("git am -3, in an existing work tree", am, engine)
    report("git am -3, and making its work tree", both, engine)


if __name__ == "__main__":
    main()
