"""Merging the whole patchset: sparkwright's engine against ``git am -3`` in a work tree.

Both sides get the same carries on the same pristine tree, in one run and in turn. ``git am`` is
timed with and without making its work tree: a script over a clone makes one anew whenever the
base moves, and the engine needs none. The engine's time includes what ``git am`` does not do:
finding absorbed carries, and compiling and examining every merged file.

    python scripts/bench/merge.py [--runs 7] [--source index]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.git import check_out, open_repository
from sparkwright.git.repository import git_environment
from sparkwright.merge import MergeRequest, merge_patchset
from sparkwright.merge.prepare import prepare
from sparkwright.plan import Job, Options, open_checkout
from sparkwright.store import open_store
from sparkwright.upstream import Access, open_source, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable


def make_job(source: str) -> Job:
    """The job of the checkout that this script is in."""
    checkout = open_checkout(Path(__file__).parent)
    store = open_store()
    repository = open_repository(store.git)
    opened = open_source(source, Access(store, repository, read_settings()))
    options = Options(platform="aarch64", source=source, out=checkout.root / "dist")
    return Job(checkout, checkout.point("spark"), options, store, repository, opened, opened)


def timed(action: Callable[[], object]) -> float:
    """Seconds that *action* takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git in *folder* under the same neutral configuration that the engine uses."""
    env = git_environment() | {"GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@localhost"}
    env |= {"GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@localhost"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, input=stdin, capture_output=True, check=True
    )
    return done.stdout


def mailbox(job: Job, request: MergeRequest, folder: Path) -> bytes:
    """The carries as ``git format-patch`` would write them, with context."""
    ready = prepare(
        job.repository, request.carries, version=request.version, find_base=request.find_base, offline=True
    )
    texts = []
    for entry in ready:
        if entry.change is None:
            raise SystemExit(f"{entry.carry.name}: {entry.refusal}")
        diff = job.repository.diff(entry.change.base, entry.change.theirs, context=3)
        head = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: b <b@localhost>\n"
        head += "Date: Sat, 1 Jan 2000 00:00:00 +0000\n"
        texts.append(
            f"{head}Subject: [PATCH] {entry.carry.name}\n\n---\n\n".encode() + diff + b"-- \n2.0\n\n"
        )
    box = folder / "carries.mbox"
    box.write_bytes(b"".join(texts))
    return box.read_bytes()


def main() -> None:
    """Time both sides in turn and print the medians and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--source", default="index")
    args = parser.parse_args()
    job = make_job(args.source)
    lock = job.point.lock
    request = job.merge_request(job.source.pristine(lock), lock.release.version)
    merge_patchset(job.repository, request)  # imports and caches, as in any second use

    engine, checkout, am = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        box = mailbox(job, request, root)
        for number in range(args.runs):
            engine.append(timed(lambda: merge_patchset(job.repository, request)))
            tree = root / f"tree-{number}"

            def make_tree(tree: Path = tree) -> None:
                check_out(job.repository, request.pristine, tree)
                git(tree, "init", "--quiet")
                git(tree, "add", "--all", "--force")
                git(tree, "commit", "--quiet", "--message", "pristine")

            checkout.append(timed(make_tree))
            am.append(timed(lambda tree=tree: git(tree, "am", "--3way", "--quiet", stdin=box)))  # type: ignore[misc]
    job.repository.close()
    ours, alone = statistics.median(engine), statistics.median(am)
    whole = statistics.median(a + b for a, b in zip(am, checkout, strict=True))
    print(f"carries                        {len(request.carries)}")
    print(f"engine                         {ours:.3f} s   (min {min(engine):.3f}, max {max(engine):.3f})")
    print(f"git am -3, work tree at hand   {alone:.3f} s   {alone / ours:.1f}x the engine")
    print(f"git am -3 with its work tree   {whole:.3f} s   {whole / ours:.1f}x the engine")


if __name__ == "__main__":
    main()
