"""Two machines that share a store over nginx, through the command line, and what can go wrong."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed import goes_on, stopped
from store_servers import HostileStore, Misbehaviour, hostile_store, nginx_store
from world import World, finish

from sparkwright.base.machine import free_port

PASSWORD = "planted-pass-word"  # noqa: S105


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[str]:
    with nginx_store(tmp_path / "nginx") as url:
        yield url


@pytest.fixture
def server() -> Iterator[HostileStore]:
    with hostile_store() as running:
        yield running


@pytest.fixture
def shared(world: World, nginx: str) -> World:
    """A world whose wheel another machine has built and shared; the present store is empty."""
    world.environment["SPARKWRIGHT_STORE_URL"] = nginx
    world.good("wheel")
    world.new_store("second", probes=False)
    return world


def downloads(world: World) -> int:
    return len(world.index.downloads)


class TestTwoMachines:
    def test_the_second_fetches_proves_and_audits_nothing(self, shared: World) -> None:
        (first,) = shared.wheels
        before = first.read_bytes()
        first.unlink()
        asked = downloads(shared)
        built = shared.good("wheel", "--json").json
        assert shared.wheels[0].read_bytes() == before
        assert downloads(shared) == asked, "the package index is not asked"
        steps = shared.steps()
        assert {name: steps[name] for name in ("prove clamp", "prove align", "audit")} == {
            "prove clamp": "found", "prove align": "found", "audit": "found",
        }  # fmt: skip
        assert not [event for event in shared.events() if event["kind"] == "probe.judged"]
        remote = built["remote"]
        assert remote["hits"] >= 5
        assert remote["bytes-read"] > len(before) / 2
        assert (remote["refused"], remote["stopped"]) == (0, "")

    def test_no_record_of_it_names_a_folder_of_a_machine(self, shared: World) -> None:
        objects = shared.folder / "nginx" / "objects" / "ac"
        entries = [path.read_bytes() for path in objects.iterdir()]
        assert entries
        assert [entry for entry in entries if str(shared.folder).encode() in entry] == []

    def test_proofs_of_carry_prove_are_shared_too(self, world: World, nginx: str) -> None:
        report = world.good("carry", "prove", "--json", "--store", nginx).json["remote"]
        assert report["written"] == 3, "the sdist and two proofs"
        world.new_store("second", probes=False)
        world.good("wheel", "--store", nginx)
        assert world.steps()["prove clamp"] == "found"

    def test_plan_and_offline_ask_nobody(self, world: World, server: HostileStore) -> None:
        world.good("wheel", "--plan", "--store", server.url)
        world.good("carry", "prove")
        world.call("wheel", "--offline", "--store", server.url)
        assert server.requests == []


@pytest.mark.usefixtures("proved")
class TestWithoutAServer:
    def test_a_build_goes_on(self, world: World) -> None:
        ran = world.good("wheel", "--json", "--store", f"http://127.0.0.1:{free_port()}")
        assert "cannot be reached" in ran.json["remote"]["stopped"]
        assert 1 <= ran.err.count("warning:") <= 2

    def test_killed_while_it_writes(self, world: World, server: HostileStore) -> None:
        """The wheel is the same, and what was not written is made once more by those who lack it."""
        server.hold.clear()
        child = world.start("wheel", "--store", server.url)
        stopped(child, signal.SIGKILL, lambda: server.asked("PUT"))
        server.hold.set()
        goes_on(world, "wheel", "--store", server.url)
        world.new_store("second")
        world.good("wheel", "--store", server.url)


class TestCommands:
    def test_status(self, world: World, nginx: str) -> None:
        found = world.good("store", "status", "--json", "--store", nginx).json["remote"]
        assert (found["remote"], found["read"], found["write"]) == (nginx, "yes", "yes")
        assert found["writers"][0].startswith("this machine ")
        assert "yes" in world.good("store", "status", "--store", nginx).out
        assert world.good("store", "status", "--json").json["remote"] is None

    def test_status_of_a_server_that_cannot_be_used(self, world: World, server: HostileStore) -> None:
        server.faults["PUT"] = Misbehaviour(status=403)
        ran = world.call("store", "status", "--store", server.url)
        assert ran.status == 20
        assert "403" in ran.said
        server.faults = {"GET": Misbehaviour(body=b"something else")}
        assert world.call("store", "status", "--store", server.url).status == 20

    @pytest.mark.parametrize(
        "url", ["ftp://host/x", "http://", "https://host/?x=1", "nonsense", "file:///tmp", "https://h:99999/"]
    )
    def test_an_address_that_cannot_be_used(self, world: World, url: str) -> None:
        assert world.call("wheel", "--store", url).status == 10


@pytest.mark.usefixtures("proved")
class TestCredentials:
    @pytest.fixture
    def guarded(self, tmp_path: Path) -> Iterator[str]:
        with nginx_store(tmp_path / "guarded", user="builder", password=PASSWORD) as url:
            yield url

    def everything(self, world: World) -> bytes:
        """What all runs wrote into the checkout, the store and the home."""
        files = [path for path in world.folder.rglob("*") if path.is_file() and "guarded" not in path.parts]
        return b"".join(path.read_bytes() for path in files if path.name != ".netrc")

    @pytest.mark.parametrize("given", ["", "not-"])
    def test_they_are_used_and_never_shown(self, world: World, guarded: str, given: str) -> None:
        netrc = world.folder / "home" / ".netrc"
        netrc.write_text(f"machine 127.0.0.1 login builder password {given}{PASSWORD}\n")
        netrc.chmod(0o600)
        world.environment["SPARKWRIGHT_STORE_URL"] = guarded
        runs = [world.good("wheel", "--json"), world.call("store", "status")]
        if given:
            assert "401" in runs[0].json["remote"]["stopped"]
            assert runs[1].status == 20
        else:
            assert runs[0].json["remote"]["written"] > 0
            assert runs[1].status == 0
        shown = [ran.said for ran in runs]
        assert PASSWORD not in "".join(shown)
        assert PASSWORD.encode() not in self.everything(world)


def test_help_needs_none_of_it(world: World) -> None:
    script = "import sys; import sparkwright.cli.session as _; sys.exit('obstore' in sys.modules)"
    child = world.start(script=script)
    assert finish(child).status == 0, sys.version
