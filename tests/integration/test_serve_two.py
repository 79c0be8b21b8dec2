"""``sparkwright serve --peer`` on two machines: network namespaces with a real sshd, served by the simulator."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Serving
from two_hosts_kit import FAST, NAME, SLOW, TwoHosts, two_hosts, worker_environment, write_recipe
from world import wait_until

from sparkwright.base.errors import ClusterError, ConfigError, ServerEndedError


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path) as made:
        yield made


@pytest.fixture
def serving(hosts: TwoHosts) -> Iterator[Any]:
    started: list[Serving] = []

    def start(*words: str | Path, **variables: str) -> Serving:
        started.append(hosts.serve(*words, **variables))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_both_start_answer_and_end(hosts: TwoHosts, serving: Any) -> None:
    this = serving()
    ready = this.wait_for("serve.ready")
    peer = next(line for line in this.lines() if line["kind"] == "serve.peer")
    assert (peer["interface"], peer["there"], peer["speed"]) == (FAST, FAST, "200 Gb/s")
    worker = worker_environment(Path(ready["log"]).with_name("worker.log"))
    assert worker["NCCL_SOCKET_IFNAME"] == f"={FAST}"
    assert worker["GLOO_SOCKET_IFNAME"] == FAST
    assert worker["NCCL_IB_HCA"] == "=rocep1s0f0"
    assert worker["VLLM_HOST_IP"] == "10.77.1.2"
    assert worker["python"] == str(hosts.copies / "environments" / "environment" / "bin" / "python")
    assert worker["argv"][-7:-1:2] == ["--nnodes", "--node-rank", "--master-addr"]
    stored = hosts.there / "hf" / "hub" / "models--org--tiny"
    own = hosts.folder / "here" / "hf" / "hub" / "models--org--tiny"
    for name in ("config.json", "model.safetensors"):
        path = Path("snapshots", "c" * 40, name)
        assert (stored / path).read_bytes() == (own / path).read_bytes()
        assert (stored / path).readlink() == (own / path).readlink()
    this.child.send_signal(signal.SIGINT)
    status, errors = this.end()
    assert status == 0, errors
    assert this.lines()[-1]["kind"] == "serve.stopped"
    hosts.wait_until_gone(5)
