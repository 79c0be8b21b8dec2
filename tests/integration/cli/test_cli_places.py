"""Places that cannot take or give what is wanted: said before the work, and with a next step that helps."""

import os
import subprocess
from pathlib import Path

import pytest
from world import World, files_below

from sparkwright.publish.index import dist_folder
from sparkwright.store.disk import remove_tree

pytestmark = pytest.mark.usefixtures("proved")


@pytest.mark.parametrize(
    "kind", ["file", "below-a-file", "device", "dangling", "folder-as-a-wheel", "pipe-as-a-wheel"]
)
def test_a_place_that_cannot_take_a_wheel_is_refused_before_the_work(world, tmp_path, kind):
    out = tmp_path / "out"
    code = 10
    match kind:
        case "file":
            out.touch()
        case "below-a-file":
            out.touch()
            out /= "dist"
        case "device":
            out = type(out)(os.devnull)
        case "dangling":
            out.symlink_to("nowhere")
        case _:
            (out / "simple").mkdir(parents=True)
            odd = out / "vllm-1.2.0+spark.1-cp38-abi3-manylinux_2_28_aarch64.whl"
            odd.mkdir() if kind.startswith("folder") else os.mkfifo(odd)
            code = 50
    before = files_below(tmp_path) if out.is_dir() else {}
    ran = world.call("wheel", "--out", out)
    assert ran.status == code, ran.said
    assert str(out) in ran.err
    assert world.index.requests == []
    assert not before or {path: before[path] for path in before if path.startswith("out")} == {
        path: moment for path, moment in files_below(tmp_path).items() if path.startswith("out")
    }


@pytest.mark.parametrize("kind", ["deep", "link"])
def test_a_place_that_can_is_taken(world: World, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "link":
        (tmp_path / "real").mkdir()
        out.symlink_to("real")
    else:
        out = out / "a" / "b"
    world.good("wheel", "--out", out)
    assert len(list(out.glob("*.whl"))) == 1


def test_without_a_network_a_folder_is_suggested_only_where_it_helps(world: World, tmp_path: Path) -> None:
    ran = world.call("wheel", "--offline")
    assert ran.status == 20
    assert "--source" in ran.err
    folder = tmp_path / "mirror"
    folder.mkdir()
    name = world.release.lock.sdist.filename
    (folder / name).write_bytes(world.release.files[name])
    ran = world.call("wheel", "--offline", "--source", folder)
    assert ran.status == 20
    assert str(folder) in ran.err
    assert "--source" not in ran.err
    name = world.release.lock.wheel("aarch64").filename
    (folder / name).write_bytes(world.release.files[name])
    world.good("wheel", "--offline", "--source", folder)


def test_what_killed_writes_of_git_left_is_pruned(world: World) -> None:
    world.good("wheel")
    objects = world.store.git / "objects"
    left = [objects / "pack" / name for name in ("tmp_pack_a", "tmp_idx_a", ".tmp-1-pack-b.pack")]
    left += [objects / "aa" / "tmp_obj_x", objects / "objx1"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
    sizes = {kind["kind"]: kind["size"] for kind in world.good("store", "status", "--json").json["kinds"]}
    assert sizes["git-left-overs"] == 5000
    objects_before = {path for path in objects.rglob("*") if path.is_file()} - set(left)
    (world.store.runs / "1-dead").touch()
    removed = world.good("store", "prune", "--older-than", "0", "--json").json["removed"]
    assert "git-left-overs" in {kind["kind"] for kind in removed}
    assert not any(path.exists() for path in left)
    assert {path for path in objects.rglob("*") if path.is_file()} == objects_before
    assert not (world.store.runs / "1-dead").exists()


def test_what_a_run_under_way_writes_through_git_stays(world: World) -> None:
    world.good("wheel")
    writing = world.store.git / "objects" / "pack" / "tmp_pack_now"
    with world.store.running():
        writing.write_bytes(b"x")
        world.good("store", "prune", "--older-than", "0")
        assert writing.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_repository_of_another_user_is_a_source(world: World, tmp_path: Path) -> None:
    repository = tmp_path / "theirs"
    repository.mkdir()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-C", str(repository)]
    for path, data in world.release.tree.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_bytes(data)
    for words in (["init", "--quiet"], ["add", "--all", "--force"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    asked = [*git, "rev-parse", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    lock = world.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(world.release.lock.release.commit, commit))
    healthy = world.good("merge", "--source", repository, "--json").json["tree"]
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    remove_tree(world.store.home / "git")
    assert world.good("merge", "--source", repository, "--json").json["tree"] == healthy


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
