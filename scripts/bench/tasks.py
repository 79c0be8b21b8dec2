"""The overhead of Dask a task, over ssh on this machine, beside a pool of processes; and what that comes to.

A task is as small as it can be: it takes one file by its digest from the store, and puts another one there.
Two sshds stand for two machines, each with a worker of one task at a time and a store of its own; nginx is
the store that they share. The pool has two processes, and a store without a server.

    python scripts/bench/tasks.py [--tasks 200] [--times 3] [--release SECONDS] [--proof SECONDS]

The table at the end is computed: a night merges every patchset onto a release and proves each carry there.
``--release`` is the measured time of one merge, and ``--proof`` that of one probe on both trees.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sparkwright.cluster import parse_cluster
from sparkwright.cluster.kinds import Nothing, TaskKind
from sparkwright.cluster.messages import StoredFile, TaskDone
from sparkwright.cluster.running import Batch, Cluster, TaskRequest
from sparkwright.cluster.sharing import keep_files

from sparkwright.base.config import Model
from sparkwright.native.model import Cost
from sparkwright.store import open_store
from sparkwright.store.remote import RemoteSettings, open_remote

if TYPE_CHECKING:
    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.serving import Serving

    from sparkwright.store import Store

ROOT = Path(__file__).parents[2]
NIGHTS, CARRIES, RELEASES = 1_000, 19, 10
MACHINES = (1, 2, 4, 8, 16, 32)
_DAY = 86_400.0
_COST = Cost(seconds=1.0, mib=1)


class CopyTask(Model, frozen=True):
    """A file to read, and the number of the copy to write."""

    file: StoredFile
    number: int


class LaidCopies:
    """The worker's end: one file in, one file out, both by digest."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def run(self, asked: CopyTask, place: Place) -> Nothing:
        """Write the copy."""
        (place.out / "copy").write_bytes(self.serving.file(asked.file).read_bytes() + b"%d" % asked.number)
        return Nothing()


def copy_kind() -> TaskKind:
    """Return the kind of task that is measured."""
    return TaskKind(Nothing, CopyTask, lambda serving, *_: LaidCopies(serving))


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--release", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--proof", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        start, remote, cpu = on_machines(Path(folder), monkeypatch, args.tasks, args.times)
        local = [in_processes(Path(folder) / f"local {number}", args.tasks) for number in range(args.times)]
    print(f"{args.tasks} tasks, {args.times} times; medians")
    print(f"start of two workers over ssh  {start:8.2f} s")
    overhead = statistics.median(remote) / args.tasks
    print(f"a task through Dask            {1000 * overhead:8.1f} ms   {_spread(remote, args.tasks)}")
    print(f"  processor time here          {1000 * cpu[0]:8.1f} ms   scheduler and client")
    print(f"  processor time of workers    {1000 * cpu[1]:8.1f} ms")
    print(f"a task in a pool of processes  {1000 * statistics.median(local) / args.tasks:8.1f} ms   "
          f"{_spread(local, args.tasks)}")  # fmt: skip
    if args.release and args.proof:
        print(on_paper(args.release, args.proof, overhead))
    return 0


def _spread(times: list[float], tasks: int) -> str:
    return f"({1000 * min(times) / tasks:.1f} to {1000 * max(times) / tasks:.1f})"


def on_machines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, times: int
) -> tuple[float, list[float], tuple[float, float]]:
    """Return the seconds until two workers are connected, those of each batch, and processor time a task.

    The last is that of this process, which holds scheduler and client, and that of both workers.
    """
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    kit, servers = import_module("cluster_kit"), import_module("store_servers")
    with contextlib.ExitStack() as stack:
        sshds = stack.enter_context(kit.two_sshds(folder))
        url = stack.enter_context(servers.nginx_store(folder / "nginx"))
        hosts = stack.enter_context(kit.two_hosts(sshds, folder, url, monkeypatch))
        for host in hosts:
            host.install(extra=_WITH_COPIES.format(folder=str(Path(__file__).parent)), slots=1)
        store = open_store(
            folder / "asking", open_remote(RemoteSettings(url=url, key_file=folder / "key.pem"))
        )
        address = parse_cluster("ssh://" + ",".join(host.sshd.host for host in hosts))
        cluster, (given,) = Cluster(address=address, store=store), source(store, folder)
        began = time.monotonic()
        with cluster.open() as pool:
            start = time.monotonic() - began
            found = []
            before = time.process_time(), worked(hosts)
            for _ in range(times):
                asked = [
                    TaskRequest(
                        f"copy-{number}", CopyTask(file=given, number=number), Cost(seconds=1.0, mib=1)
                    )
                    for number in range(tasks)
                ]
                seen: set[str] = set()
                began = time.monotonic()
                cluster.run(Batch("copy", asked, Nothing, _Taker(store, seen), files=[given]), pool)
                found.append(time.monotonic() - began)
                require_all(seen, tasks)
            after, done = (time.process_time(), worked(hosts)), tasks * times
        return start, found, ((after[0] - before[0]) / done, (after[1] - before[1]) / done)


def worked(hosts: list[Any]) -> float:
    """Return the processor time that the workers of *hosts* have taken so far, in seconds."""
    return math.fsum(sum(process.cpu_times()[:2]) for host in hosts for process in host.workers())


class _Taker:
    """Takes a result: its file has to be in the store that is shared."""

    def __init__(self, store: Store, seen: set[str]) -> None:
        self.store, self.seen = store, seen

    def __call__(self, _: TaskRequest, __: Nothing, reply: TaskDone) -> bool:
        (one,) = reply.files
        self.seen.add(one.sha256)
        return self.store.find_file(one.sha256, size=one.size) is not None


_WITH_COPIES = """
sys.path.insert(0, {folder!r})
import sparkwright.cli.worker as command
import tasks
honest = command.kinds
command.kinds = lambda: {{**honest(), "copy": tasks.copy_kind}}
"""


def source(store: Store, folder: Path) -> tuple[StoredFile, ...]:
    """Put the file that all tasks read into *store*."""
    path = folder / "source"
    path.write_bytes(b"x" * 4096)
    return keep_files(store, folder, [path])


def in_processes(folder: Path, tasks: int) -> float:
    """Return the seconds of *tasks* in a pool of two processes."""
    folder.mkdir()
    store = open_store(folder / "store")
    (given,) = source(store, folder)
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_copy, [(store.home, given, -1)] * 2))  # the processes are started, as workers are
        began = time.monotonic()
        made = list(pool.map(_copy, [(store.home, given, number) for number in range(tasks)]))
        seconds = time.monotonic() - began
    require_all(set(made), tasks)
    return seconds


def require_all(made: set[str], tasks: int) -> None:
    """Refuse to report times of tasks that made the same file, or none."""
    if len(made) != tasks:
        raise SystemExit(f"{len(made)} files were made, and not {tasks}")


def _copy(asked: tuple[Path, StoredFile, int]) -> str:
    home, given, number = asked
    store = open_store(home)
    path = store.require_intact(given.sha256)
    with store.scratch() as scratch:
        (scratch / "copy").write_bytes(path.read_bytes() + b"%d" % number)
        return keep_files(store, scratch, [scratch / "copy"])[0].sha256


def on_paper(release_s: float, proof_s: float, overhead_s: float) -> str:
    """Return the table of 1,000 nights, 19 carries and 10 releases on several machines, in Markdown."""
    merges, proofs = NIGHTS * RELEASES, NIGHTS * RELEASES * CARRIES
    work, sending = merges * release_s + proofs * proof_s, (merges + proofs) * overhead_s
    rows = [
        f"| {count} | {(work / count + sending) / _DAY:.1f} d | {sending / (work / count + sending):.0%} |"
        for count in MACHINES
    ]
    head = (
        f"{merges:,} merges of {release_s:g} s and {proofs:,} proofs of {proof_s:g} s: "
        f"{work / 3600:,.0f} hours of one core; {overhead_s * 1000:.1f} ms a task for Dask: "
        f"{sending / 3600:,.1f} hours"
    )
    return "\n".join([head, "| slots | wall-clock time | of it Dask |", "|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
