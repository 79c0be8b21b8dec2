"""Releases on a stand-in for a forge: what is sent, what an interruption leaves, and what readers find."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wheelkit
from channel_kit import POLICY, SETTINGS, ChannelWorld, mirror_of, now, small_wheel
from forge import TOKEN, Forge

from sparkwright.base.errors import (
    ConfigError,
    LostRaceError,
    PublishError,
    SignatureError,
    TamperedError,
    UploadError,
)
from sparkwright.publish import release as subject
from sparkwright.publish.reader import requirements

pytest_plugins = "release_fixtures"

V1, V2 = "1.0+spark.1", "1.1+spark.1"


def send(world: ChannelWorld, hub: Forge, tag: str = "v1", *files: Path) -> subject.ReleasePlan:
    scratch = world.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    client = subject.read_forge({**hub.environment, "PIP_CONFIG_FILE": "/dev/null"})
    client = subject.Forge(client.repository, client.api, client.web, client.token, SETTINGS)
    plan = subject.plan_release(world.published, tag, client, files, scratch)
    if plan.assets:
        client.send(tag, "main", plan.assets)
    subject.record_release(world.published, plan)
    return plan


def tool(folder: Path) -> Path:
    return wheelkit.plain_wheel(folder, "sparkwright", "0.1.0", modules={"sparkwright.py": b""})


def kinds(hub: Forge) -> set[str]:
    return {method for method, _ in hub.asked}


def test_readers_find_a_wheel_that_is_an_asset(world: ChannelWorld, hub: Forge) -> None:
    world.promote_file(world.wheel(V1), "stable", requires="")
    plan = send(world, hub, "v1", tool(world.folder / "tools"))
    assert [one.name.endswith((".whl", ".metadata")) for one in plan.assets] == [True] * 4
    assert not list(world.published.rglob("*.whl"))
    verified = world.verify("stable", mirror=mirror_of(hub.pages), wheels="newest")
    (file,) = verified.wheels
    line = requirements(mirror_of(hub.pages), file).decode().splitlines()[0]
    assert line.startswith(f"vllm @ {hub.url}/owner/wheels/releases/download/v1/vllm-1.0%2Bspark.1-py3")
    page = (world.published / "simple/vllm/index.html").read_text()
    assert f"{hub.url}/owner/wheels/releases/download/v1/vllm-1.0%2Bspark.1" in page
    assert (world.published / "simple/sparkwright/index.html").exists()
    # Sent already: nothing is asked of the forge.
    hub.asked.clear()
    world.promote_file(world.wheel(V1), "candidate", requires="")
    assert send(world, hub, "v2").assets == ()
    assert hub.asked == []


def test_a_wheel_that_was_taken_back_leaves_the_index(world: ChannelWorld, hub: Forge) -> None:
    for version in (V1, V2):
        world.promote(version, "stable")
    send(world, hub)
    assert V2.replace("+", "%2B") in (world.published / "simple/vllm/index.html").read_text()
    world.publisher().rollback("stable", POLICY, now(), to=None, reason="crashes")
    send(world, hub)
    page = (world.published / "simple/vllm/index.html").read_text()
    assert V2.replace("+", "%2B") not in page
    assert V1.replace("+", "%2B") in page


def test_a_project_that_no_channel_offers_any_more_loses_its_page(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    other = wheelkit.plain_wheel(world.dist, "flashinfer_jit_cache_sm121a", "1.0", modules={"x.py": b""})
    world.promote_file(world.audited(other), "stable")
    send(world, hub)
    page = world.published / "simple/flashinfer-jit-cache-sm121a/index.html"
    assert page.exists()
    world.publisher().rollback("stable", POLICY, now(), to=None, reason="crashes")
    send(world, hub)
    assert not page.exists()
    assert (world.published / "simple/vllm/index.html").exists()


@pytest.mark.parametrize("fault", ["cut", 500, 403])
def test_an_upload_that_fails_publishes_nothing_and_is_gone_on_with(
    world: ChannelWorld, hub: Forge, fault: str | int
) -> None:
    world.promote(V1, "stable")
    send(world, hub, "v1")
    before = hub.published()
    world.promote(V2, "stable")
    hub.faults = [None, fault]
    with pytest.raises(UploadError):
        send(world, hub, "v2")
    assert hub.published() == before
    assert not list(world.published.glob(f"wheels/*/*/*{V2}*.json")), "nothing says that it is an asset"
    hub.asked.clear()
    hub.faults = []
    send(world, hub, "v2")
    posted = [path for method, path in hub.asked if method == "POST"]
    assert len(posted) == 1, "the wheel, which was whole, is not sent again"
    assert len(hub.published()) == 4
    assert world.verify("stable", mirror=mirror_of(hub.pages), wheels="newest").wheels


@pytest.mark.parametrize(
    ("status", "headers", "step"),
    [
        (403, {"Retry-After": "60"}, "wait"),
        (403, {"X-RateLimit-Remaining": "0"}, "wait"),
        (429, {}, "wait"),
        (403, {"X-RateLimit-Remaining": "9"}, "may write contents"),
        (422, {}, "--commit"),
        (307, {"Location": "http://127.0.0.2:9/x"}, "GITHUB_REPOSITORY"),
    ],
)
def test_a_forge_that_limits_requests_is_told_from_a_token_or_a_request_that_it_does_not_take(
    world: ChannelWorld, hub: Forge, status: int, headers: dict[str, str], step: str
) -> None:
    world.promote(V1, "stable")
    hub.faults, hub.headers = [status], headers
    with pytest.raises(UploadError) as raised:
        send(world, hub)
    assert step in raised.value.next_step
    assert ("planted" in raised.value.because) == (status == 422)
    assert hub.published() == {}


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("GET", b"<html>"),
        ("GET", b"null"),
        ("GET", b'[{"id": 1, "tag_name": "v0", "draft": false}]'),
        ("POST", b"[]"),
        ("POST", b'{"id": 1, "tag_name": "v1", "draft": true, "upload_url": "uploads"}'),
    ],
)
def test_answers_of_another_shape_are_one_error(
    world: ChannelWorld, hub: Forge, method: str, answer: bytes
) -> None:
    world.promote(V1, "stable")
    hub.planted[method] = answer
    with pytest.raises(UploadError, match="its answer is not as GitHub's"):
        send(world, hub)
    assert hub.published() == {}


@pytest.mark.parametrize("most", [1, 2])
def test_pages_without_an_end_are_given_up(
    world: ChannelWorld, hub: Forge, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    world.promote(V1, "stable")
    older = {"tag_name": "v0", "draft": False, "files": {}, "upload_url": hub.url}
    hub.releases = {id_: {"id": id_, **older} for id_ in range(1, 101)}  # a whole page, and an empty one
    monkeypatch.setattr(subject, "_MOST_PAGES", most)
    if most == 1:
        with pytest.raises(UploadError, match="its answer is not as GitHub's: it has 1 pages and more"):
            send(world, hub)
    else:
        send(world, hub)
    assert bool(hub.published()) is (most == 2)


def test_a_published_release_never_changes(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    older = {"draft": False, "files": {}, "upload_url": hub.url}
    hub.releases = {
        id_: {"id": id_, "tag_name": f"v0.{id_}", **older} for id_ in range(1, 101)
    }  # a whole page
    send(world, hub, "v1")
    before = hub.published()
    world.promote(V2, "stable")
    with pytest.raises(PublishError, match="is published, without vllm-1"):
        send(world, hub, "v1")
    assert hub.published() == before


def test_other_bytes_under_a_released_name_are_refused_before_anything_is_sent(
    world: ChannelWorld, hub: Forge
) -> None:
    world.promote(V1, "stable")
    send(world, hub, "v1")
    other = small_wheel(world.folder / "other", V1, record={"carries.json": {}})
    world.promote_file(world.audited(other), "candidate")
    hub.asked.clear()
    with pytest.raises(PublishError, match="was released with SHA-256"):
        send(world, hub, "v2")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("names", "size", "because"),
    [
        (["a/x.json"], 2 << 30, "2 GiB"),
        (["a/x.json", "b/x.json"], 1, "one name"),
        (["x y.json"], 1, "may be named"),
        (["x."], 1, "may be named"),
        ([".x"], 1, "may be named"),
        (["x\n"], 1, "may be named"),
    ],
)
def test_files_that_cannot_be_assets_are_refused_before_anything_is_sent(
    world: ChannelWorld, hub: Forge, names: list[str], size: int, because: str
) -> None:
    world.promote(V1, "stable")
    files = [world.folder / name for name in names]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.truncate(path, size)
    with pytest.raises(PublishError) as raised:
        send(world, hub, "v1", *files)
    assert because in raised.value.because
    assert hub.asked == []


def test_a_question_that_is_cut_off_is_asked_again(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    cut: list[str] = []

    def once(method: str, path: str) -> None:
        if method not in cut and method != "POST":
            cut.append(method)
            raise ConnectionResetError

    hub.before_answer = once
    send(world, hub)
    assert cut == ["GET", "PATCH"]
    assert len(hub.published()) == 2


def test_a_removal_whose_answer_is_lost_is_done(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    hub.faults = ["cut"]
    with pytest.raises(UploadError):
        send(world, hub)

    def lost(method: str, path: str) -> None:
        if method == "DELETE" and hub.releases[1]["files"].pop(path.rpartition("/")[2], None):
            raise ConnectionResetError

    hub.before_answer = lost
    send(world, hub)
    assert [method for method, _ in hub.asked].count("DELETE") == 2
    assert len(hub.published()) == 2


def test_of_two_publishers_of_one_tag_one_is_told(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    first: list[bool] = []

    def another(method: str, path: str) -> None:
        """Make the same draft, before the first publisher's."""
        if method == "POST" and path.endswith("/releases") and not first:
            first.append(True)
            upload = f"{hub.url}/uploads/repos/owner/wheels/releases/1/assets{{?name,label}}"
            hub.releases[1] = {
                "id": 1, "tag_name": "v1", "draft": True, "files": {}, "upload_url": upload, "assets": [],
            }  # fmt: skip

    hub.before_answer = another
    with pytest.raises(LostRaceError):
        send(world, hub, "v1")
    assert list(hub.releases) == [1], "its own draft is gone"
    assert hub.published() == {}
    send(world, hub, "v1")
    assert len(hub.published()) == 2


def test_two_that_send_the_same_asset_at_once(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    hub.faults = ["cut"]
    with pytest.raises(UploadError):
        send(world, hub)
    sent: list[str] = []

    def another(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/assets") and not sent:
            sent.append(path)
            name = next(world.published.rglob("*.whl")).name
            hub.releases[1]["files"]["9"] = {"name": name, "state": "starter", "size": 0}

    hub.before_answer = another
    with pytest.raises(LostRaceError, match="another publisher made it"):
        send(world, hub)
    assert hub.published() == {}
    send(world, hub)
    assert len(hub.published()) == 2


def test_a_token_that_may_not_is_named_and_never_shown(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    hub.token = "another"  # noqa: S105
    client = subject.Forge("owner/wheels", f"{hub.url}/api", hub.url, TOKEN, SETTINGS)
    plan = subject.plan_release(world.published, "v1", client, (), world.folder)
    with pytest.raises(UploadError) as raised:
        client.send("v1", "main", plan.assets)
    assert "may write contents" in raised.value.next_step
    assert TOKEN not in str(raised.value) + raised.value.because
    assert kinds(hub) == {"GET"}


@pytest.mark.parametrize("ended", ["\nx", "é"])
def test_a_token_that_no_header_can_have_is_not_shown(ended: str) -> None:
    environment = {"GITHUB_REPOSITORY": "owner/wheels", "PIP_CONFIG_FILE": "/dev/null"}
    made = subject.read_forge(
        {**environment, "GITHUB_TOKEN": f"{TOKEN}\n"}
    )  # as `echo` writes it into a file
    assert made.token == TOKEN
    assert TOKEN not in repr(made)
    environment["GITHUB_TOKEN"] = TOKEN + ended
    with pytest.raises(ConfigError, match="GITHUB_TOKEN") as raised:
        subject.read_forge(environment)
    assert TOKEN not in f"{raised.value} {raised.value.because}"


def test_the_draft_of_a_killed_run_is_published_without_what_that_one_sent(
    world: ChannelWorld, hub: Forge
) -> None:
    world.promote(V1, "stable")
    hub.faults = [None, "cut"]
    with pytest.raises(UploadError):
        send(world, hub, "v1")
    for wheel in world.published.glob("wheels/*/*/*.whl"):
        wheel.unlink()  # the tag was moved to a commit that makes another wheel
    world.promote(V2, "stable")
    for release in hub.releases.values():
        release["target_commitish"] = "of the killed run"
    plan = send(world, hub, "v1")
    assert set(hub.published()) == {one.name for one in plan.assets}
    assert [release["target_commitish"] for release in hub.releases.values()] == ["main"]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://h/x.whl",
        "https://[h/x.whl",
        "https://h/x.whl --index-url https://evil",
        "https://u:p@h/x",
        5,
    ],
)
def test_an_address_of_another_kind_is_refused(world: ChannelWorld, hub: Forge, url: object) -> None:
    world.promote_file(world.wheel(V1), "stable", requires="")
    send(world, hub)
    (record,) = world.published.glob("wheels/*/*/*.whl.json")
    record.write_text(json.dumps({"url": url}))
    with pytest.raises(SignatureError, match="was not found"):
        world.verify("stable", mirror=mirror_of(hub.pages), wheels="newest")
    with pytest.raises(TamperedError, match="names no asset"):
        send(world, hub)


def test_an_asset_of_other_bytes_is_found(world: ChannelWorld, hub: Forge) -> None:
    world.promote(V1, "stable")
    send(world, hub)
    asset = next(key for key, one in hub.releases[1]["files"].items() if one["name"].endswith(".whl"))
    path = hub.folder / asset
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TamperedError, match="was changed"):
        world.verify("stable", mirror=mirror_of(hub.pages), wheels="newest")


def test_the_dry_run_sends_and_changes_nothing(world: ChannelWorld, hub: Forge, monkeypatch) -> None:
    world.promote(V1, "stable")
    before = {path: path.stat().st_mtime_ns for path in world.published.rglob("*")}
    monkeypatch.setenv("XDG_DATA_HOME", str(world.folder))
    command = [
        Path(sys.executable).with_name("sparkwright"),
        "channel",
        "release",
        world.published,
        "--tag=v1",
        "--commit=main",
        "--json",
    ]
    environment = {**os.environ, **hub.environment}
    done = subprocess.run(
        [*command, "--dry-run"], env=environment, check=True, capture_output=True, text=True
    )
    listed = json.loads(done.stdout)["files"]
    wheel = next(world.published.rglob("*.whl"))
    to = f"{hub.url}/owner/wheels/releases/download/v1/{wheel.name.replace('+', '%2B')}"
    size, sha256 = wheel.stat().st_size, wheelkit.sha256(wheel)
    assert {"name": wheel.name, "size": size, "sha256": sha256, "to": to} in listed
    assert {one["name"] for one in listed if one["to"] == "pages"} >= {
        "simple/index.html",
        "simple/vllm/index.html",
    }
    assert {path: path.stat().st_mtime_ns for path in world.published.rglob("*")} == before
    assert hub.asked == []
    offline = subprocess.run([*command, "--offline"], env=environment, check=False, capture_output=True)
    assert offline.returncode
    for option in ("--commit=", "--tag=", world.folder, world.folder / "missing.json"):
        empty = subprocess.run([*command, option], env=environment, check=False, capture_output=True)
        assert empty.returncode == 2
    assert hub.asked == []
    # Its healthy twin sends what was listed.
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert set(hub.published()) == {one["name"] for one in listed if one["to"] != "pages"}
