"""Runs of ``verify`` on other machines over real sshds: the journal comes back, and results are made here."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import Host, card, cluster
from http_index import RunningIndex
from ssh_kit import fault_file, served_release, torch_wheel, write_recipe
from wheelkit import sha256
from world import World

from sparkwright.base.errors import ClusterError, ConfigError, VerdictError

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow
QUICK = ("--demo", "--checks", "boot", "--categories", "code")


@pytest.fixture
def hosts(hosts: list[Host], url: str, world: World) -> Iterator[list[Host]]:
    """Two machines without a card, with an index of torch alone, which share a store with the world."""
    with RunningIndex() as index:
        index.json = True
        index.add(*torch_wheel())
        for host in hosts:
            card(host, "")
            host.install(extra=f"os.environ['UV_DEFAULT_INDEX'] = {index.url!r}")
        world.environment["SPARKWRIGHT_STORE_URL"] = url
        yield hosts


def machine_of(run: Path) -> str:
    (event,) = (
        line for text in (run / "events.jsonl").read_text().splitlines()
        if (line := json.loads(text))["kind"] == "verify.finished"
    )  # fmt: skip
    return event["machine"]


def concluded(run: Path) -> list[tuple[str, str]]:
    return [
        (one["check"], one["verdict"]) for one in json.loads((run / "verdict.json").read_text())["findings"]
    ]


def wheel(folder: Path, fault: str = "") -> Path:
    """A wheel whose server has *fault*."""
    files = served_release(changes=fault_file(fault)).files
    (name,) = (name for name in files if name.endswith(f"{platform.machine()}.whl"))
    path = folder / (fault or "healthy") / name
    path.parent.mkdir()
    path.write_bytes(files[name])
    return path


def test_a_run_of_another_machine_is_that_of_this_one(
    world: World, hosts: list[Host], tmp_path: Path
) -> None:
    here, there = tmp_path / "run here", tmp_path / "run there"
    world.good("verify", *QUICK, "--out", here)
    ran = world.good("verify", *QUICK, "--json", "--out", there, *cluster(hosts))
    assert concluded(there) == concluded(here)
    assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
    assert (there / "servers" / "main-0" / "server.log").stat().st_size > 0
    for entry in ran.json["files"]:
        assert sha256(Path(entry["path"])) == entry["sha256"]
    assert machine_of(there) in {host.shown for host in hosts}
    assert not [process for host in hosts for process in host.workers()]


def test_a_wheel_is_served_where_a_gb10_is(world: World, hosts: list[Host], tmp_path: Path) -> None:
    card(hosts[0], "9.0")
    card(hosts[1], "12.1")
    recipe = write_recipe(tmp_path / "recipe.toml")
    words = ("--recipe", recipe, "--profile", "demo", "--checks", "coherence", "--unlocked", *cluster(hosts))
    for fault, verdict in (("", "pass"), ("repeated-token", "fail")):
        built, run = wheel(tmp_path, fault), tmp_path / f"run{fault}"
        ran = world.call("verify", built, *words, "--out", run)
        assert ran.status == (VerdictError.exit_code if fault else 0), ran.said
        assert ("coherence", verdict) in concluded(run)
        assert machine_of(run) == hosts[1].shown
        stated = json.loads((run / "verdict.json").read_text())["run"]
        assert (stated["wheel"], stated["card"]) == ({"name": built.name, "sha256": sha256(built)}, "12.1")


def test_no_machine_with_a_gb10_is_refused_before_anything_starts(
    world: World, hosts: list[Host], tmp_path: Path
) -> None:
    card(hosts[0], "9.0")
    recipe = write_recipe(tmp_path / "recipe.toml")
    words = ("--recipe", recipe, "--unlocked", "--out", tmp_path / "run", *cluster(hosts))
    ran = world.call("verify", wheel(tmp_path), *words)
    assert ran.status == ClusterError.exit_code
    assert "it needs gpu, gb10, and they offer gpu" in ran.err
    assert not list((hosts[0].folder / "store").glob("files/*/*"))


@pytest.mark.parametrize("words", [("--url", "http://127.0.0.1:9"), ("--demo", "--offline")])
def test_what_another_machine_cannot_verify_is_refused(world: World, words: tuple[str, ...]) -> None:
    ran = world.call("verify", *words, "--cluster", "ssh://nowhere.invalid")
    assert ran.status == ConfigError.exit_code
    assert "cannot be used with --cluster" in ran.err
