"""Steps of a bisection on other machines over real sshds: the same verdicts and answer as here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kit
import pytest
from bisect_kit import JUDGE, harmless, judge, patch_twice
from bisect_kit import commit as commit_work
from cluster_kit import Host, two_hosts
from rehearsal_kit import seed_environment, stage
from store_servers import nginx_store
from world import World

from sparkwright.base.errors import ClusterError, ConfigError
from sparkwright.probe.environment import requirements
from sparkwright.store import open_store

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow
PROBE = """\
from probekit import expect


def probe():
    from vllm.clamp import clamp

    expect(clamp(4) == 4, "clamp(4) is not 4")
"""
KILL = """
worker.TaskRunner.run = lambda *_: os.kill(os.getpid(), 9)
"""


@pytest.fixture
def patched(world: World) -> World:
    return patch_twice(world)


@pytest.fixture
def hosts(sshds, tmp_path, world, monkeypatch) -> Iterator[list[Host]]:
    """Two machines with an environment for probes, which share a store with the world."""
    with nginx_store(tmp_path / "nginx") as url, two_hosts(sshds, tmp_path, url, monkeypatch) as both:
        for host in both:
            kit.seed_environment(open_store(host.folder / "store"), requirements())
        world.environment["SPARKWRIGHT_STORE_URL"] = url
        yield both


def cluster(hosts: list[Host]) -> tuple[str, str]:
    return "--cluster", "ssh://" + ",".join(host.sshd.host for host in hosts)


def search(judged: str) -> tuple[str, ...]:
    return "bisect", "--good", "HEAD~1", "--bad", "HEAD", "--judge", judged, "--json"


def stable(result: dict[str, Any]) -> dict[str, Any]:
    """An answer without times and places of logs."""
    steps = [
        {**step, "evaluation": {**step["evaluation"], "seconds": 0, "evidence": ""}}
        for step in result["steps"]
    ]
    return {key: value for key, value in result.items() if key != "machines"} | {"steps": steps}


def here(world: World, judged: str) -> dict[str, Any]:
    """The answer of the steps that run here, whose journal is then forgotten."""
    found = world.good(*search(judged)).json
    journal = Path(found["folder"]) / "journal.jsonl"
    journal.rename(world.folder / "journal.jsonl")
    return stable(found)


def probe_file(world: World) -> str:
    path = world.folder / "probe.py"
    path.write_text(PROBE)
    return f"probe {path}"


def shown(host: Host) -> str:
    return f"127.0.0.1:{host.sshd.port}"


@pytest.mark.parametrize("kind", ["probe", "run"])
def test_two_machines_give_the_answer_of_one(patched: World, hosts: list[Host], kind: str) -> None:
    judged = probe_file(patched) if kind == "probe" else judge(patched)
    expected = here(patched, judged)
    ran = patched.good(*search(judged), *cluster(hosts))
    assert stable(ran.json) == expected
    assert ran.json["changes"] == ["doubled:added"]
    steps = [event for event in patched.events() if event["kind"] == "step.finished"]
    used = {event["machine"] for event in steps}
    assert used <= {shown(host) for host in hosts}
    assert set(ran.json["machines"]) == used
    assert sum(did["steps"] for did in ran.json["machines"].values()) == len(steps)
    for step in ran.json["steps"]:
        assert Path(step["evaluation"]["evidence"]).is_file()
    assert not [process for host in hosts for process in host.workers()]


_TOGETHER = """
import time
places = Path({folder!r})
places.joinpath(str(os.getpid())).touch()
for _ in range(600):
    if len(list(places.iterdir())) > 1:
        break
    time.sleep(0.1)
else:
    sys.exit(125)
"""


def test_the_next_steps_run_ahead(patched: World, hosts: list[Host]) -> None:
    """The first step waits for a second one, which only a step ahead can be."""
    together = patched.folder / "together"
    together.mkdir()
    head, _, judging = JUDGE.partition("text = ")
    text = head + _TOGETHER.format(folder=str(together)) + "text = " + judging
    ran = patched.good(*search(judge(patched, text)), *cluster(hosts))
    assert ran.json["changes"] == ["doubled:added"]
    assert {step["verdict"] for step in ran.json["steps"]} == {"good", "bad"}


def test_one_step_at_a_time_takes_as_many_as_here(patched: World, hosts: list[Host]) -> None:
    judged = judge(patched)
    expected = here(patched, judged)
    ran = patched.good(*search(judged), *cluster(hosts), "--jobs", "1")
    assert stable(ran.json) == expected
    evaluated = [event for event in patched.events() if event["kind"] == "bisect.evaluated"]
    assert len(evaluated) == len(ran.json["steps"])


def test_a_machine_that_is_killed_costs_its_step(patched: World, hosts: list[Host]) -> None:
    judged = probe_file(patched)
    expected = here(patched, judged)
    hosts[0].install(extra=KILL)
    assert stable(patched.good(*search(judged), *cluster(hosts)).json) == expected


def test_a_machine_without_the_environment_runs_no_probe(patched: World, hosts: list[Host]) -> None:
    judged = probe_file(patched)
    expected = here(patched, judged)
    other = "import sparkwright.pipeline.remote_proofs as p; p.environment_key = lambda: 'another'"
    hosts[0].install(extra=other)
    ran = patched.good(*search(judged), *cluster(hosts))
    assert f"{shown(hosts[0])} is left out: its environment for probes is another one" in ran.err
    assert stable(ran.json) == expected
    (Path(ran.json["folder"]) / "journal.jsonl").unlink()
    hosts[1].install(extra=other)
    alone = patched.call(*search(judged), *cluster(hosts[1:]))
    assert alone.status == ClusterError.exit_code
    assert "install the Python" in alone.err


def test_a_script_goes_along_and_its_output_comes_back(patched: World, hosts: list[Host]) -> None:
    script = patched.folder / "judge.sh"
    script.write_text(f'#!/bin/sh\npwd\necho "signature: doubled"\nexec {sys.executable} "$1"\n')
    script.chmod(0o755)
    (patched.folder / "judge.py").write_text(JUDGE)
    ran = patched.good(*search(f"run {script} {patched.folder / 'judge.py'}"), *cluster(hosts[:1]))
    assert ran.json["changes"] == ["doubled:added"]
    logs = [Path(step["evaluation"]["evidence"]).read_text() for step in ran.json["steps"]]
    assert all("host " in log for log in logs), "it ran in a folder of a worker's store"
    assert all("signature: doubled" in log for log in logs)


def test_a_command_that_takes_too_long_is_a_timeout_there_too(patched: World, hosts: list[Host]) -> None:
    # A shell, so that what is good has ended by then on a busy machine too.
    path = patched.folder / "judge.sh"
    path.write_text('! grep -q "value \\* 2" "$SPARKWRIGHT_TREE/vllm/clamp.py" || exec sleep 60\n')
    found = patched.good(*search(f"run /bin/sh {path}"), *cluster(hosts[:1]), "--timeout", "3")
    assert found.json["changes"] == ["doubled:added"]
    assert found.json["calibration"]["signature"] == "timeout"


def test_judges_that_stay_here_are_refused_on_a_cluster(patched: World, hosts: list[Host]) -> None:
    ran = patched.call(*search("merge"), *cluster(hosts))
    assert ran.status == ConfigError.exit_code
    assert "on a cluster run probes, commands and the checks of a rehearsal only" in ran.said
    assert not [process for host in hosts for process in host.workers()]


def test_nothing_is_started_for_a_list(patched: World, hosts: list[Host]) -> None:
    for host in hosts:
        host.install(extra="raise SystemExit('started')")
    patched.good(*search("run true"), *cluster(hosts), "--list")


def test_a_check_of_a_rehearsal_is_judged_elsewhere(world: World, hosts: list[Host]) -> None:
    world.list_carries([])
    stage(world)
    for host in hosts:
        seed_environment(open_store(host.folder / "store"))
    harmless(world, 0)
    commit_work(world, "good")
    world.carry("spoil", {"vllm/fault.py": "FAULT = 'stale-cache'\n"})
    commit_work(world, "bad")
    ran = world.good(*search("verify prefix"), "--deterministic", *cluster(hosts))
    assert ran.json["changes"] == ["spoil:added"]
    finished = [event for event in world.events() if event["kind"] == "rehearsal.finished"]
    assert {event["machine"] for event in finished} <= {shown(host) for host in hosts}
    assert len(finished) >= len(ran.json["steps"])
    found = json.loads(Path(ran.json["steps"][0]["evaluation"]["evidence"]).with_suffix(".json").read_text())
    assert found["checks"][0]["name"] == "prefix"
