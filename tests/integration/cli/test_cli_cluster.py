"""Carries proved on other machines over real sshds: the same proofs as here, whatever happens to them."""

import pytest
from cluster_kit import Host, cluster
from world import PROBE, World

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow


@pytest.fixture
def hosts(probing_hosts: list[Host]) -> list[Host]:
    return probing_hosts


def proofs(world: World) -> dict[str, bytes]:
    """The recorded proofs, by carry."""
    return {path.parents[1].name: path.read_bytes() for path in world.root.glob("carries/*/proofs/*.json")}


def forget(world: World, name: str) -> None:
    """Work with an empty store, without recorded proofs, and without an environment for probes here."""
    for path in world.root.glob("carries/*/proofs/*.json"):
        path.unlink()
    world.new_store(name, probes=False)


def prove_here(world: World) -> dict[str, bytes]:
    """The proofs that this machine makes by itself, which are then forgotten."""
    world.good("carry", "prove", "--store", "none")
    made = proofs(world)
    forget(world, "other store")
    return made


def test_proofs_of_two_machines_are_those_of_one(world, hosts):
    expected = prove_here(world)
    done = world.good("carry", "prove", *cluster(hosts))
    assert proofs(world) == expected
    assert f"{hosts[0].shown}: 1 proof" in done.out
    assert sorted(expected) == ["align", "clamp"]
    assert not [process for host in hosts for process in host.workers()]


def test_a_wheel_takes_proofs_of_other_machines(world, hosts):
    wheel = world.good("wheel", "--json", *cluster(hosts)).json
    assert {carry["proof"] for carry in wheel["carries"]} == {"proved"}
    assert set(wheel["machines"]) <= {host.shown for host in hosts}
    assert sum(did["proofs"] for did in wheel["machines"].values()) == 2
    probe = world.root / "carries" / "clamp" / "probe.py"
    probe.write_text(PROBE.format(module="clamp", name="clamp", argument=99, result=11))
    refuted = world.call("wheel", *cluster(hosts[:1]))
    assert "clamp is refuted" in refuted.err


def test_a_machine_without_the_environment_proves_nothing(world, hosts):
    expected = prove_here(world)
    other = "import sparkwright.pipeline.remote_proofs as p; p.environment_key = lambda: 'another'"
    hosts[0].install(extra=other)
    done = world.good("carry", "prove", *cluster(hosts))
    assert f"{hosts[0].shown} is left out: its environment for probes is another one" in done.err
    assert proofs(world) == expected
    forget(world, "third store")
    hosts[1].install(extra=other)
    alone = world.call("carry", "prove", *cluster(hosts[1:]))
    assert (alone.status, proofs(world)) == (20, {})
    assert "install the Python" in alone.err


def test_a_proof_for_other_inputs_is_refused(world, hosts):
    """The machine sends a proof that holds elsewhere."""
    lying = """
from msgspec.structs import replace as other
import sparkwright.pipeline.remote_proofs as proofs
honest = proofs.prove
proofs.prove = lambda *given: other(honest(*given), key="0" * 64)
"""
    hosts[0].install(extra=lying)
    forget(world, "other store")
    done = world.call("carry", "prove", *cluster(hosts[:1]))
    assert done.status == 20, done.err
    assert "did not arrive" in done.err
    assert proofs(world) == {}
    assert not list(world.store.records.glob("proof/*/*.json"))
