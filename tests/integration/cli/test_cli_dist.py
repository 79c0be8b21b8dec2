"""The folder for wheels is one setting: ``--out``, ``SPARKWRIGHT_DIST``, or ``dist/`` in the checkout."""

import os
import subprocess
from pathlib import Path

import pytest
from world import World

from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.publish.index import dist_folder

pytestmark = pytest.mark.usefixtures("proved")

ROOT = Path(__file__).parents[3]


def test_every_command_follows_the_variable(world: World) -> None:
    channel = world.folder / "channel"
    world.environment["SPARKWRIGHT_DIST"] = str(channel)
    placed = Path(world.good("wheel", "--json").json["path"])
    assert placed.parent == channel
    assert (channel / "simple" / "vllm" / "index.html").is_file()
    assert [entry["path"] for entry in world.good("status", "--json").json["wheels"]] == [str(placed)]
    assert world.good("publish", "--json").json["index"] == (channel / "simple").as_uri()
    assert {step["state"] for step in world.good("wheel", "--plan", "--json").json["steps"]} == {"in store"}
    assert not world.dist.exists()


def test_an_option_is_stronger_than_the_variable_and_an_empty_one_is_none(world: World) -> None:
    world.environment["SPARKWRIGHT_DIST"] = str(world.folder / "channel")
    other = world.folder / "other"
    assert Path(world.good("wheel", "--out", other, "--json").json["path"]).parent == other
    assert world.good("publish", other, "--json").json["index"] == (other / "simple").as_uri()
    assert not (world.folder / "channel").exists()
    world.environment["SPARKWRIGHT_DIST"] = ""
    assert Path(world.good("wheel", "--json").json["path"]).parent == world.dist


def test_a_job_opened_by_a_script_has_the_same_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARKWRIGHT_DIST", raising=False)
    with open_job(world.root) as job:
        assert (job.out, job.version) == (world.dist, world.good("wheel", "--plan", "--json").json["version"])
    monkeypatch.setenv("SPARKWRIGHT_DIST", "/srv/wheels")
    with open_job(world.root / "carries") as job:
        assert job.out == Path("/srv/wheels")
    with open_job(world.root, BuildOptions(out=world.folder)) as job:
        assert job.out == world.folder


def of_make(*words: str, **environment: str) -> str:
    """Return the ``SPARKWRIGHT_DIST`` that a recipe of the Makefile gets."""
    done = subprocess.run(
        ["make", "--silent", "--eval", "show-dist: ; @echo $$SPARKWRIGHT_DIST", "show-dist", *words],
        cwd=ROOT, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_make_passes_it_on_and_has_no_default_of_its_own(tmp_path, monkeypatch):
    assert of_make("DIST=/srv/a") == of_make(SPARKWRIGHT_DIST="/srv/a") == of_make(DIST="/srv/a") == "/srv/a"
    assert of_make("DIST=/srv/a", SPARKWRIGHT_DIST="/srv/b") == "/srv/a"
    monkeypatch.setenv("SPARKWRIGHT_DIST", of_make())
    assert dist_folder(tmp_path) == tmp_path / "dist"
