"""Errors of load generators against the simulator's own record, and the CPU time that each takes.

    python scripts/bench/peers.py [--levels 1,8,64] [--only NAME,NAME] [--again] [--table]

aiperf, guidellm, llama-benchy and ``vllm bench serve`` send the same load as our client to a simulator that
records when each request's last byte arrived and when each answer's first and last token were written. Each
has an environment of its own, made on demand; ``vllm bench serve`` needs one that has vLLM and torch, and is
left out without. Results are kept in a file, and what it holds is not measured again without ``--again``:
run it once more on a quiet machine. ``--table`` prints the table of what was measured, and measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from peers_clients import PEERS, Peer, PeerJob, PeerTime, prepare, variables, version_of, write_tokenizer

from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.verify.simulator.main import read_truth, simulator
from sparkwright.verify.simulator.stream import RequestTrace

EVENTS_PER_S = 400.0
"""Chunks that this machine's fastest published server sends in a second, at any concurrency."""
LEAST_REQUESTS = 100  # fewer have no 99th percentile
LONGEST_S = 600
NICE = -5
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class PeerErrors:
    """The errors of one load generator at one concurrency.

    Attributes:
        peer: name of the program.
        concurrency: requests at a time.
        requests: number of requests compared.
        ttft_p50_ms: median absolute error of the time to the first token.
        ttft_p99_ms: 99th percentile of it.
        tpot_p50_percent: median absolute error of the time per token.
        tpot_p99_percent: 99th percentile of it.
        cpu_s: CPU time of the program and all that it started, start and end included.
        wall_s: duration of the same.
        paired: ``id`` where each request was compared with its own record, ``rank`` where the program reports
            no ids: the n-th shortest time of a batch with the n-th shortest, which gives the least error.
        load_before: load average of the machine when it began.
        niced: it ran with a higher priority.
    """

    peer: str
    version: str
    concurrency: int
    requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_percent: float
    tpot_p99_percent: float
    cpu_s: float
    wall_s: float
    paired: str
    load_before: float
    niced: bool


def main() -> int:
    """Measure what is missing, and print a table; 1 if nothing could be measured."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--levels", default="1,8,64")
    options.add_argument("--only", default=",".join(PEERS))
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--rate", type=float, default=EVENTS_PER_S)
    options.add_argument("--out", type=Path, default=Path("dist/bench/peers"))
    options.add_argument("--again", action="store_true")
    options.add_argument("--table", action="store_true")
    options.add_argument("--prepare", action="store_true", help="make the environments and measure nothing")
    chosen = options.parse_args()
    names = [name for name in PEERS if name in chosen.only.split(",")]
    if chosen.prepare:
        for name in names:
            print(f"{name}: {prepare(PEERS[name]) or 'no environment has it'}")
        return 0
    results = Results(chosen.out / "peers.json", again=chosen.again)
    if not chosen.table:
        niced = raise_priority()
        adopt_orphans()
        for level in map(int, chosen.levels.split(",")):
            for name in names:
                if results.lacks(name, level):
                    measure(PEERS[name], level, chosen, results, niced=niced)
    print(table(results.errors))
    for name, why in results.skipped.items():
        print(f"{name}: {why}")
    return 0 if results.errors else 1


class Results:
    """The file of results, written after each measurement."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self.path = path
        kept = json.loads(path.read_text()) if path.exists() else {}
        self.errors = [PeerErrors(**one) for one in kept.get("errors", [])]
        self.skipped: dict[str, str] = kept.get("skipped", {})
        self._old = {(one.peer, one.concurrency) for one in self.errors} if again else set()

    def lacks(self, peer: str, level: int) -> bool:
        """Tell if *peer* is still to be measured at *level*."""
        known = {(one.peer, one.concurrency) for one in self.errors}
        return (peer, level) not in known or (peer, level) in self._old

    def add(self, found: PeerErrors) -> None:
        """Keep *found* instead of an older result."""
        place = (found.peer, found.concurrency)
        self._old.discard(place)
        self.errors = [one for one in self.errors if (one.peer, one.concurrency) != place] + [found]
        self.skipped.pop(found.peer, None)
        self._write()

    def skip(self, peer: str, why: str) -> None:
        """Keep the reason for which *peer* could not be measured."""
        self.skipped[peer] = why
        self._write()

    def _write(self) -> None:
        machine = {
            "cpu": platform.machine(),
            "cores": os.cpu_count(),
            "system": platform.platform(terse=True),
        }
        content = {
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine,
            "errors": [asdict(one) for one in self.errors],
            "skipped": self.skipped,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(self.path)


def raise_priority() -> bool:
    """Take a higher priority for this program and all that it starts, where that is allowed."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
        return True
    return False


def adopt_orphans() -> None:
    """Become the parent of processes whose own one ended first, so that their CPU time is counted."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def measure(peer: Peer, level: int, chosen: argparse.Namespace, results: Results, *, niced: bool) -> None:
    """Measure *peer* at *level* against a simulator of its own, and keep the result."""
    python = prepare(peer)
    if python is None:
        results.skip(peer.name, "no environment here has it and torch; make one with 'sparkwright rehearse'")
        return
    folder = (chosen.out / f"{peer.name.replace(' ', '-')}-{level}-{os.getpid()}").absolute()
    folder.mkdir(parents=True)
    requests = max(LEAST_REQUESTS, 3 * level)
    requests = -(-requests // level) * level
    print(f"{peer.name} c={level}: {requests} requests", file=sys.stderr, flush=True)
    try:
        found = asyncio.run(_measured(peer, python, (level, requests, chosen), folder, niced=niced))
    except (OSError, LookupError, TypeError, ValueError, subprocess.SubprocessError) as error:
        results.skip(peer.name, f"c={level}: {type(error).__name__}: {str(error)[:300]}")
        return
    results.add(found)


async def _measured(
    peer: Peer, python: Path, sizes: tuple[int, int, argparse.Namespace], folder: Path, *, niced: bool
) -> PeerErrors:
    level, requests, chosen = sizes
    # A step that costs so much for each request gives the same rate of chunks at every concurrency, and
    # without drafts each chunk is one token, so that all programs mean the same by a time per token.
    steps = ("--step-ms", f"0,{1000 / chosen.rate:g},0,0.01", "--k", "0")
    async with simulator(folder, *steps, seqs=max(level, 8)) as endpoint:
        job = _job(endpoint, level, requests, chosen.tokens, folder)
        load, before, begin = os.getloadavg()[0], _children_cpu_s(), time.monotonic()
        await asyncio.to_thread(_run, peer, python, job)
        wall, cpu = time.monotonic() - begin, _children_cpu_s() - before
        times = peer.read(job)
        known = read_truth(folder / "truth.jsonl")
    pairs, paired = pair(times, list(known.values()), level)
    return errors_of(
        pairs,
        peer=peer.name,
        version=version_of(peer, python),
        concurrency=level,
        cpu_s=round(cpu, 2),
        wall_s=round(wall, 1),
        paired=paired,
        load_before=round(load, 2),
        niced=niced,
    )


def _job(endpoint: Endpoint, level: int, requests: int, tokens: int, folder: Path) -> PeerJob:
    return PeerJob(
        url=endpoint.url,
        model=endpoint.model,
        level=level,
        requests=requests,
        tokens=tokens,
        tokenizer=write_tokenizer(folder / "tokenizer"),
        folder=folder,
    )


def _run(peer: Peer, python: Path, job: PeerJob) -> None:
    """Run *peer* to its end, and take the CPU time of all that it started."""
    before = {child.pid for child in psutil.Process().children()}
    with (job.folder / "output.txt").open("wb") as output:
        subprocess.run(
            [python, *peer.command(job)],
            env=variables(peer, job),
            cwd=job.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=LONGEST_S,
        )
    for child in psutil.Process().children():
        if child.pid not in before:
            child.kill()  # its program has ended
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Comparison ---------------------------------------------------------------------------------------------

_Pair = tuple[PeerTime, RequestTrace]


def pair(times: Sequence[PeerTime], truths: Sequence[RequestTrace], level: int) -> tuple[list[_Pair], str]:
    """Return each request with its record, and how they were paired.

    Args:
        times: of a program, in the order of batches where there are no ids.
        truths: records of all requests that the server got, warm-ups included.
        level: requests in a batch.

    Raises:
        LookupError: a request has no record, or there are fewer records than requests.
    """
    if all(one.request for one in times):
        by_id = {truth.id.partition("-")[2]: truth for truth in truths} | {
            truth.id: truth for truth in truths
        }
        return [(one, _record(by_id, one.request)) for one in times], "id"
    long = [truth for truth in truths if truth.tokens > 1]
    last = sorted(long, key=lambda truth: truth.received_ns)[-len(times) :]
    if len(last) < len(times):
        raise LookupError(f"{len(times)} requests have {len(last)} records")
    pairs: list[_Pair] = []
    for begin in range(0, len(times), level):
        own, true = times[begin : begin + level], last[begin : begin + level]
        ttft = zip(sorted(one.ttft_ms for one in own), sorted(true, key=lambda one: one.ttft_ms), strict=True)
        tpot = zip(sorted(one.tpot_ms for one in own), sorted(true, key=lambda one: one.tpot_ms), strict=True)
        pairs += [
            (PeerTime(first, second), _mixed(by_first, by_second))
            for (first, by_first), (second, by_second) in zip(ttft, tpot, strict=True)
        ]
    return pairs, "rank"


def _record(by_id: dict[str, RequestTrace], request: str) -> RequestTrace:
    """Return the record of a request; vLLM adds the number of the prompt to the id that it sends."""
    for name in (request, f"{request}-0"):
        if name in by_id:
            return by_id[name]
    raise LookupError(f"request {request} has no record")


def _mixed(first: RequestTrace, second: RequestTrace) -> RequestTrace:
    """Return a record with the time to the first token of one and the time per token of another."""
    begin = first.first_token_written_ns
    span = second.last_token_written_ns - second.first_token_written_ns
    return RequestTrace(first.id, first.received_ns, begin, begin + span, second.tokens)


def errors_of(pairs: Sequence[_Pair], **of: Any) -> PeerErrors:
    """Return the errors of *pairs*; *of* are the other fields."""
    ttft = [abs(one.ttft_ms - truth.ttft_ms) for one, truth in pairs]
    tpot = [100 * abs(one.tpot_ms / truth.tpot_ms - 1) for one, truth in pairs]
    found = [float(np.percentile(values, q)) for values in (ttft, tpot) for q in (50, 99)]
    return PeerErrors(
        requests=len(pairs),
        ttft_p50_ms=_rounded(found[0]),
        ttft_p99_ms=_rounded(found[1]),
        tpot_p50_percent=_rounded(found[2]),
        tpot_p99_percent=_rounded(found[3]),
        **of,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def table(errors: Sequence[PeerErrors]) -> str:
    """Return the errors as a Markdown table, by concurrency and then in the order of `PEERS`."""
    lines = [
        "| c | client | TTFT error p50, ms | p99, ms | time per token p50, % | p99, % | CPU, s | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    order = list(PEERS)
    for one in sorted(errors, key=lambda one: (one.concurrency, order.index(one.peer))):
        figures = (one.ttft_p50_ms, one.ttft_p99_ms, one.tpot_p50_percent, one.tpot_p99_percent)
        mark = "" if one.paired == "id" else " ¹"
        shown = " | ".join(f"{value:.3g}" for value in figures)
        lines.append(
            f"| {one.concurrency} | {one.peer} {one.version}{mark} | {shown} | {one.cpu_s:.1f} |"
            f" {one.load_before:.1f} |"
        )
    if any(one.paired == "rank" for one in errors):
        lines += [
            "",
            "¹ reports no ids: paired by rank within a batch, which gives the least error possible.",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
