"""Runs in forks: the verdicts of fresh interpreters, nothing shared between runs, and nothing left behind."""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from kit import Content, make_carry, make_tree, seed_environment
from msgspec.structs import replace as with_fields
from world import ended

from sparkwright.git.repository import Repository
from sparkwright.probe import environment as environment_module
from sparkwright.probe import runner
from sparkwright.probe.judge import Prover
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import ProbeVerdict, Proof
from sparkwright.store.paths import Store

CACHE = "vllm/cache.py"
PACKAGE: dict[str, Content] = {"vllm/__init__.py": "", CACHE: "def size(n):\n    return n\n"}
FIXED: dict[str, Content] = {CACHE: "def size(n):\n    return max(n, 1)\n"}
GOOD = "import os\nfrom probekit import expect\nfrom vllm.cache import size\n\n\ndef probe():\n"
CHECK = "    expect(size(0) == 1, f'size(0) is {size(0)}')\n"


@pytest.fixture
def pool(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProbePool]:
    monkeypatch.setattr(environment_module, "requirements", lambda: "nothing\n")
    seed_environment(store, "nothing\n")
    with ProbePool(store, most=2) as made:
        yield made


class Case:
    """Carries of one change, each with its own probe, on one pair of trees."""

    def __init__(self, store: Store, repository: Repository, root: Path, pool: ProbePool | None) -> None:
        trees = [make_tree(repository, files) for files in (PACKAGE, {**PACKAGE, **FIXED})]
        self.repository, self.root = repository, root
        self.prover = Prover(store, repository, *trees, version="1.0.0", pool=pool)

    def carry(self, body: str, **changes: object):
        return make_carry(self.root, self.repository, "fix", PACKAGE, FIXED, probe=GOOD + body, **changes)

    def prove(self, body: str) -> Proof:
        return self.prover.prove(self.carry(body), [CACHE])


@pytest.fixture
def case(store: Store, repository: Repository, tmp_path: Path, pool: ProbePool) -> Case:
    return Case(store, repository, tmp_path / "carries", pool)


def forbid_fresh_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a fresh interpreter was started")

    monkeypatch.setattr(runner, "run_limited", refuse)


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (CHECK, ProbeVerdict.PROVED),
        ("    expect(size(2) == 2, 'larger sizes change')\n", ProbeVerdict.NOT_NEEDED),
        ("    expect(size(0) == 7, f'size(0) is {size(0)}')\n", ProbeVerdict.REFUTED),
        ("    size('')['x']\n", ProbeVerdict.BROKEN),
        ("    os._exit(0)\n", ProbeVerdict.BROKEN),
        ("    os.kill(os.getpid(), 11)\n", ProbeVerdict.BROKEN),
    ],
)
def test_a_fork_gives_the_verdict_of_a_fresh_interpreter(case, body, verdict, monkeypatch):
    fresh = replace(case.prover, pool=None).prove(case.carry(body), [CACHE])
    forbid_fresh_interpreters(monkeypatch)
    forked = case.prove(body)
    assert forked.verdict is fresh.verdict is verdict
    if verdict is not ProbeVerdict.BROKEN:
        assert forked == fresh


def test_runs_share_no_modules_variables_or_folders(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_fresh_interpreters(monkeypatch)
    monkeypatch.setenv("VLLM_SECRET", "1")
    kept = (
        "    import json, sys, tempfile\n"
        "    assert not hasattr(json, 'marked') and 'MARKED' not in os.environ\n"
        "    assert 'VLLM_SECRET' not in os.environ and os.environ['CUDA_VISIBLE_DEVICES'] == ''\n"
        "    assert tempfile.gettempdir() == os.environ['TMPDIR'] == os.getcwd()\n"
        "    assert not os.path.exists('mark') and '' not in sys.path\n"
        "    json.marked, os.environ['MARKED'] = True, '1'\n"
        "    open('mark', 'w').close()\n"
    )
    for other in ("", "    # another run\n"):
        proof = case.prove(kept + other + CHECK)
        assert proof.verdict is ProbeVerdict.PROVED, proof.merged.message


def test_one_run_does_for_the_same_probe_on_the_same_tree(case: Case, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    body = f"    open({str(log)!r}, 'a').write('run ')\n{CHECK}"
    assert case.prove(body).verdict is ProbeVerdict.PROVED
    assert case.prove(body).verdict is ProbeVerdict.PROVED
    assert log.read_text().split() == ["run", "run"]
    case.prove(body + "    # changed\n")
    assert len(log.read_text().split()) == 4


@pytest.mark.parametrize(("name", "most"), [("seconds", 1), ("memory_mib", 150)])
def test_a_run_that_passes_its_limits_is_killed_with_all_that_it_started(case, tmp_path, name, most):
    note = tmp_path / "pid"
    body = (
        f"    import subprocess, time\n    hog = b'x' * (400 << 20)\n"
        f"    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(note)!r}, 'w').write(str(child.pid))\n    time.sleep(600)\n"
    )
    carry = case.carry(body)
    limits = {"seconds": 600, "memory_mib": 1 << 20, name: most}
    spec = with_fields(carry.spec, probe=with_fields(carry.spec.probe, **limits))
    proof = case.prover.prove(replace(carry, spec=spec), [CACHE])
    assert proof.verdict is ProbeVerdict.BROKEN
    assert str(most) in proof.merged.message
    if note.exists() and note.read_text():  # it may be killed before it writes
        assert ended(int(note.read_text()))


def test_without_a_process_to_fork_interpreters_are_started(case: Case, pool: ProbePool) -> None:
    assert case.prove(CHECK).verdict is ProbeVerdict.PROVED
    (server,) = pool._servers.values()
    for child in psutil.Process(server.running.pid).children():
        child.send_signal(signal.SIGKILL)
    server.running.kill()
    assert case.prove(CHECK + "    # again\n").verdict is ProbeVerdict.PROVED


def test_runs_and_servers_end_with_the_pool(store, repository, tmp_path, monkeypatch):
    monkeypatch.setattr(environment_module, "requirements", lambda: "nothing\n")
    seed_environment(store, "nothing\n")
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    with ProbePool(store, most=1) as pool:
        case = Case(store, repository, tmp_path / "carries", pool)
        body = f"    open({str(fifo)!r}, 'w').write(str(os.getpid()))\n    import time\n    time.sleep(600)\n"
        case.prover.begin(case.carry(body), [CACHE])
        pid = int(fifo.read_text())  # waits for the run
        assert not ended(pid)
        (server,) = pool._servers.values()
    assert ended(pid)
    assert ended(server.running.pid)
    assert not list(store.scratch_root.glob("*/socket"))


def test_limits_of_memory_decide_how_many_run(store: Store) -> None:
    together, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def call() -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        if not both.broken:
            both.wait(60)
        with lock:
            together -= 1

    with ProbePool(store, most=4, memory_mib=2000, preload=False) as pool:
        for future in [pool.submit(str(number), 1000, call) for number in range(4)]:
            future.result()
    assert most == 2
    with ProbePool(store, most=4, memory_mib=100, preload=False) as pool:
        both.abort()
        most = 0
        for future in [pool.submit(str(number), 1000, call) for number in range(4)]:
            future.result()
    assert most == 1
