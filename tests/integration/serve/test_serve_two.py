"""``sparkwright serve --peer`` on two machines: network namespaces with a real sshd, and the simulator."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Serving
from two_hosts_kit import FAST, NAME, SLOW, TwoHosts, two_hosts, worker_environment, write_recipe

from sparkwright.base.errors import ClusterError, ConfigError, ServerEndedError

pytestmark = pytest.mark.slow


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


def events(ready: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    folder = next(one for one in Path(ready["log"]).parents if (one / "events.jsonl").exists())
    found = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [one for one in found if one["kind"] == kind]


def warnings(this: Serving) -> str:
    return "\n".join(line["message"] for line in this.lines() if line["kind"] == "warning")


def test_both_start_answer_and_end_and_the_second_start_copies_nothing(hosts: TwoHosts, serving: Any) -> None:
    this = serving()
    ready = this.wait_for("serve.ready")
    peer = this.wait_for("serve.peer")
    assert (peer["interface"], peer["there"], peer["speed"]) == (FAST, FAST, "200 Gb/s")
    assert "link" not in warnings(this)
    worker = worker_environment(Path(ready["log"]).with_name("worker.log"))
    assert worker["NCCL_SOCKET_IFNAME"] == f"={FAST}"
    assert worker["GLOO_SOCKET_IFNAME"] == FAST
    assert worker["NCCL_IB_HCA"] == "=rocep1s0f0"
    assert worker["VLLM_HOST_IP"] == "10.77.1.2"
    assert worker["python"] == str(hosts.copies / "environments" / "environment" / "bin" / "python")
    stored = hosts.there / "hf" / "hub" / "models--org--tiny"
    own = hosts.folder / "here" / "hf" / "hub" / "models--org--tiny"
    for name in ("config.json", "model.safetensors"):
        path = Path("snapshots", "c" * 40, name)
        assert (stored / path).read_bytes() == (own / path).read_bytes()
        assert (stored / path).readlink() == (own / path).readlink()
    copied = {one["name"]: one["total"] for one in events(ready, "task.started") if one["unit"] == "B"}
    assert copied[f"copy org/tiny to {NAME}"] > 3 << 20
    assert copied[f"copy the environment to {NAME}"] > 1 << 20
    assert f"{NAME}: load the weights" in {one["name"] for one in events(ready, "task.started")}
    status, errors = this.stop(signal.SIGINT)
    assert status == 0, errors
    assert this.lines()[-1]["kind"] == "serve.stopped"
    hosts.wait_until_gone(5)

    again = serving()
    ready = again.wait_for("serve.ready")
    copied = {one["name"]: one["total"] for one in events(ready, "task.started") if one["unit"] == "B"}
    assert set(copied.values()) == {0}
    assert again.stop(signal.SIGTERM)[0] == 0
    hosts.wait_until_gone(5)


def test_a_lost_connection_ends_both(hosts: TwoHosts, serving: Any) -> None:
    this = serving()
    this.wait_for("serve.ready")
    hosts.kill_sshd()
    status, errors = this.end()
    assert status == ServerEndedError.exit_code
    assert f"the connection to the worker on {NAME} was lost" in errors
    hosts.wait_until_gone()


def test_a_dry_run_shows_both_commands_and_copies_nothing(hosts: TwoHosts) -> None:
    told = hosts.call("--dry-run", "--set", "master-port=29777")
    assert told.returncode == 0, told.stderr
    head, worker = told.stdout.split(f"\non {NAME}:\n")
    assert f"NCCL_SOCKET_IFNAME={'='}{FAST}" in head
    assert "--node-rank 0 --master-addr 10.77.1.1" in head
    assert "--node-rank 1 --master-addr 10.77.1.1 --headless" in worker
    assert "--master-port 29777" in worker
    assert f"{hosts.copies}/environments/environment/bin/python" in worker
    assert not hosts.copies.exists()
    told = hosts.call("--dry-run", "--json")
    assert json.loads(told.stdout)["worker"][0] == NAME
    assert not hosts.processes()


def refused(hosts: TwoHosts, *words: str) -> tuple[int, str]:
    told = hosts.call("--dry-run", *words)
    return told.returncode, told.stderr


def test_what_stands_in_the_way_is_told(hosts: TwoHosts) -> None:
    status, errors = refused(hosts, "--peer", "10.77.2.99")
    assert (status, "10.77.2.99 cannot be reached" in errors) == (20, True), errors
    status, errors = refused(hosts, "--peer", "a:b@c")
    assert (status, "holds a password" in errors) == (ConfigError.exit_code, True)

    key = hosts.folder / "ssh" / "client"
    key.rename(key.with_name("away"))
    status, errors = refused(hosts)
    assert (status, "ssh-copy-id spark-b" in errors) == (20, True), errors
    key.with_name("away").rename(key)

    write_recipe(hosts, nodes=1)
    status, errors = refused(hosts)
    assert (status, "the recipe tiny-2x is for 1 machine" in errors) == (ConfigError.exit_code, True), errors
    write_recipe(hosts)

    a = hosts.namespaces[0]
    for words in (
        ("address", "del", "10.77.1.1/24", "dev", FAST),
        ("address", "del", "10.77.2.1/24", "dev", SLOW),
        ("address", "add", "10.77.2.1/32", "dev", SLOW),
        ("route", "add", "10.77.2.2", "dev", SLOW),
    ):
        subprocess.run(["ip", "-n", a, *words], check=True)
    status, errors = refused(hosts)
    assert (status, "share no link" in errors) == (20, True), errors
    assert f"{FAST} 10.77.1.2/24" in errors


def test_a_full_disk_there_is_told_before_bytes_are_sent(hosts: TwoHosts) -> None:
    (hosts.there / "cache").mkdir()
    assert hosts.sshd is not None
    inside = ["nsenter", "-t", str(hosts.sshd.pid), "-m"]
    disk = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(hosts.there / "cache")]
    subprocess.run([*inside, *disk], check=True, timeout=30)
    told = hosts.call()
    assert told.returncode == ClusterError.exit_code
    assert f"{NAME} has no room for the environment" in told.stderr
    hosts.wait_until_gone(5)
