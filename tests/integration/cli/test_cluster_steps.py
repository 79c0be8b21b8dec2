"""Steps of a bisection on other machines over real sshds: the same verdicts and answer as here."""

import json
from pathlib import Path
from typing import Any

import pytest
from bisect_kit import JUDGE, PROBE, harmless, judge, patch_twice
from bisect_kit import commit as commit_work
from cluster_kit import Host, cluster
from rehearsal_kit import seed_environment, stage
from world import World

from sparkwright.base.errors import ConfigError
from sparkwright.store import open_store

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow


@pytest.fixture
def patched(world: World) -> World:
    return patch_twice(world)


@pytest.fixture
def hosts(probing_hosts: list[Host]) -> list[Host]:
    return probing_hosts


def search(judged: str) -> tuple[str, ...]:
    limit = ("--timeout", "3") if "judge.sh" in judged else ()
    return "bisect", "HEAD~1", "HEAD", *limit, "--judge", judged, "--json"


def stable(result: dict[str, Any]) -> dict[str, Any]:
    """An answer without times and places of logs."""
    steps = [
        {**step, "evaluation": {**step["evaluation"], "seconds": 0, "evidence": ""}}
        for step in result["steps"]
    ]
    return {key: value for key, value in result.items() if key not in {"machines", "remote"}} | {
        "steps": steps
    }


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


def script_file(world: World) -> str:
    """A script that goes along to another machine, and so does the file that it reads; what is bad hangs.

    A shell, so that what is good ends before the time-out on a busy machine too.
    """
    script = world.folder / "judge.sh"
    bad = 'grep -q -f "$1" "$SPARKWRIGHT_TREE/vllm/clamp.py"'
    script.write_text(f"#!/bin/sh\npwd\necho judged\n! {bad} || exec sleep 60\n")
    script.chmod(0o755)
    (world.folder / "pattern").write_text("value \\* 2\n")
    return f"run {script} {world.folder / 'pattern'}"


@pytest.mark.parametrize("kind", ["probe", "run"])
def test_two_machines_give_the_answer_of_one(patched: World, hosts: list[Host], kind: str) -> None:
    judged = probe_file(patched) if kind == "probe" else script_file(patched)
    expected = here(patched, judged)
    ran = patched.good(*search(judged), *cluster(hosts))
    assert stable(ran.json) == expected
    assert ran.json["changes"] == ["doubled:added"]
    steps = [event for event in patched.events() if event["kind"] == "step.finished"]
    used = {event["machine"] for event in steps}
    assert used <= {host.shown for host in hosts}
    assert set(ran.json["machines"]) == used
    assert sum(did["steps"] for did in ran.json["machines"].values()) == len(steps)
    evidence = [step["evaluation"]["evidence"] for step in ran.json["steps"]]
    logs = [Path(path).read_text() for path in evidence if path]
    assert logs
    if kind == "run":
        assert ran.json["calibration"]["signature"] == "timeout"
        assert all("host " in log for log in logs), "it ran in a folder of a worker's store"
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
    assert {event["machine"] for event in finished} <= {host.shown for host in hosts}
    assert len(finished) >= len(ran.json["steps"])
    found = json.loads(Path(ran.json["steps"][0]["evaluation"]["evidence"]).with_suffix(".json").read_text())
    assert found["checks"][0]["name"] == "prefix"
