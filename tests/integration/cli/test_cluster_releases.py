"""Patchsets merged onto releases by other machines over real sshds: the same outcomes as here."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from kit import Recorder
from tiny_release import ALIGN, CLAMP, make_tiny

from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import subscribe
from sparkwright.cluster import parse_cluster
from sparkwright.git import open_repository
from sparkwright.pipeline import BuildOptions, make_job, open_checkout
from sparkwright.pipeline.releases import ReleaseOutcomes, cells, outcomes_elsewhere, outcomes_on
from sparkwright.store import open_store
from sparkwright.store.remote import RemoteSettings, open_remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster_kit import Host
    from world import World

    from sparkwright.pipeline import Job

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow
RELEASES = ("1.2.0", "1.3.0", "1.4.0", "1.5.0")
# The first releases are merged once both machines have one: a fast machine could take all of them.
TOGETHER = """
import time
import sparkwright.pipeline.releases as releases
merging = releases.outcomes_on
def together(*given):
    places = Path({folder!r})
    places.joinpath(Path(os.environ["SPARKWRIGHT_TEST_HOST"]).name).touch()
    end = time.monotonic() + 60
    while len(list(places.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    return merging(*given)
releases.outcomes_on = together
"""
KILL = "serving.Serving.serve = lambda *_: os.kill(os.getpid(), 9)"


@pytest.fixture
def job(world: World, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """The carries `clamp` and `align`: one release conflicts with the first, one has the second."""
    for changes in (
        make_tiny("1.3.0", changes=(("vllm/clamp.py", CLAMP.replace("return value", "return value + 1")),)),
        make_tiny(
            "1.4.0", changes=(("vllm/align.py", ALIGN.replace("return count + 1", "return count + 2")),)
        ),
        make_tiny("1.5.0"),
    ):
        world.offer(changes)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(
        tmp_path / "asking", open_remote(RemoteSettings(url=url, key_file=tmp_path / "key.pem"))
    )
    with contextlib.closing(open_repository(store.git)) as repository:
        yield make_job(open_checkout(world.root), store, repository, BuildOptions())


def elsewhere(job: Job, hosts: list[Host]) -> dict[str, ReleaseOutcomes]:
    address = parse_cluster("ssh://" + ",".join(host.sshd.host for host in hosts))
    return outcomes_elsewhere(address, [job], RELEASES)[job.checkout.series]


def here(job: Job) -> dict[str, ReleaseOutcomes]:
    return {release: outcomes_on(job, release) for release in RELEASES}


def shown(host: Host) -> str:
    return f"127.0.0.1:{host.sshd.port}"


def test_two_machines_find_what_one_does(world, job, hosts, tmp_path):
    (tmp_path / "together").mkdir()
    for host in hosts:
        host.install(extra=TOGETHER.format(folder=str(tmp_path / "together")))
    heard = Recorder()
    with subscribe(heard):
        found = elsewhere(job, hosts)
    assert found == here(job)
    assert list(found) == list(RELEASES)
    assert found["1.3.0"].kinds == {"clamp": "conflict", "align": "applied"}
    assert {event["machine"] for event in heard.of("release.finished")} == {shown(host) for host in hosts}
    assert not [process for host in hosts for process in host.workers()]


def test_workers_ask_no_index(world, job, hosts):
    """Trees come from the machine that asks: a worker's index is one that does not answer."""
    hosts[0].install(extra="os.environ['PIP_INDEX_URL'] = 'http://127.0.0.1:9/simple'")
    assert elsewhere(job, hosts[:1]) == here(job)


def test_a_machine_that_is_killed_costs_the_release_that_it_merged(job, hosts):
    hosts[0].install(extra=KILL)
    assert elsewhere(job, hosts) == here(job)


def test_a_machine_with_another_program_merges_nothing(job, hosts):
    hosts[0].install(extra="import sparkwright.cluster.worker as w; w.own_code = lambda: 'f' * 64")
    with pytest.raises(ToolError, match="another state of the same version"):
        elsewhere(job, hosts[:1])


def test_outcomes_of_other_carries_are_not_taken(job, hosts):
    lying = """
import sparkwright.pipeline.releases as releases
from msgspec.structs import replace as other
honest = releases.outcomes_on
releases.outcomes_on = lambda *given: other(honest(*given), kinds={"other": "applied"})
"""
    hosts[0].install(extra=lying)
    with pytest.raises(ClusterError, match="did not arrive"):
        elsewhere(job, hosts[:1])


def test_cells_have_marks_and_keep_what_a_lacking_source_hides(job):
    found = outcomes_on(job, "1.3.0")
    assert cells(found, {}, {}) == {"clamp": "conflict", "align": "applied"}
    assert cells(found, {"unproved": " ?"}, {"clamp": "known"}) == {"clamp": "conflict", "align": "applied ?"}
    lacking = type(found)(kinds=found.kinds, evidence=found.evidence, lacking=("clamp",))
    assert cells(lacking, {}, {"clamp": "known"})["clamp"] == "known"


def test_a_cell_names_the_carry_for_what_upstream_leaves_out():
    found = ReleaseOutcomes(
        kinds={"clamp": "superseded", "align": "superseded"},
        evidence={"clamp": "declared", "align": "proved"},
        rests={"clamp": "other"},
    )
    assert cells(found, {"proved": " !"}, {}) == {
        "clamp": "superseded in part: `other`",
        "align": "superseded !",
    }
