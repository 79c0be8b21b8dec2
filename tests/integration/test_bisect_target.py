"""A target of bisections over a real sshd: what is sent, who waits, and what a failure there means."""

from __future__ import annotations

import platform
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

import pytest
from http_index import RunningIndex
from ssh_kit import Sshd, fault_file, running_sshd, served_release, torch_wheel, write_recipe
from wheelkit import sha256
from world import wait_until

from sparkwright import __version__
from sparkwright.base.errors import (
    BusyError,
    DigestError,
    SparkwrightError,
    StorageError,
    TargetError,
    ToolError,
)
from sparkwright.search.messages import Hello, Judged, Request, line_of
from sparkwright.search.metric import UntestableError
from sparkwright.search.target import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit import Recorder


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as running, RunningIndex() as index:
        index.json = True
        index.add(*torch_wheel())
        running.install(index.url)
        monkeypatch.setenv("PATH", running.path)
        yield running


@pytest.fixture
def target(sshd: Sshd) -> Target:
    return quick(parse_target(sshd.address, home=sshd.folder))


def quick(target: Target) -> Target:
    return Target(target.name, target.argv, target.stop, pause_s=0.05)


def wheel(folder: Path, fault: str = "") -> Path:
    """A wheel whose server has *fault*."""
    files = served_release(changes=fault_file(fault)).files
    (name,) = (name for name in files if name.endswith(f"{platform.machine()}.whl"))
    path = folder / (fault or "healthy") / name
    path.parent.mkdir()
    path.write_bytes(files[name])
    return path


def request(wheel: Path, *checks: str, **changes) -> Request:
    recipe = write_recipe(wheel.with_name("recipe.toml"))
    fields = {
        "wheel": wheel.name, "sha256": sha256(wheel), "size": wheel.stat().st_size,
        "run": secrets.token_hex(8), "who": "tester@here", "checks": checks or ("coherence",),
        "recipe": "recipe.toml", "recipe_text": recipe.read_text(), "profile": "smoke",
    }  # fmt: skip
    return Request(**{**fields, **changes})


def verdicts(judged: Judged) -> dict[str, str]:
    return {one.name: one.verdict for one in judged.outcomes}


def sent(heard: Recorder) -> int:
    return sum(
        event.kind == "task.started" and event.data["name"].startswith("send ") for event in heard.events
    )


def servers(sshd: Sshd) -> list[int]:
    return sshd.serving()


@pytest.mark.slow
def test_a_wheel_is_judged_there_and_sent_once(
    sshd: Sshd, target: Target, tmp_path: Path, heard: Recorder
) -> None:
    built = wheel(tmp_path)
    found = target.judge(built, request(built))
    assert (found.started, verdicts(found)) == (True, {"coherence": "passed"})
    assert sent(heard) == 1
    (kept,) = sshd.place.glob("wheels/*/*.whl")
    assert sha256(kept) == sha256(built) == kept.parent.name
    kept.chmod(0o644)
    kept.write_bytes(bytes(built.stat().st_size))
    spoiled = wheel(tmp_path, "repeated-token")
    found = target.judge(spoiled, request(spoiled))
    assert verdicts(found) == {"coherence": "failed"}
    assert found.outcomes[0].signature.startswith("coherence: ")
    assert sent(heard) == 2
    target.judge(spoiled, request(spoiled, "boot"))
    assert sent(heard) == 2, "and it is not sent again"
    target.judge(built, request(built, "boot"))
    assert sent(heard) == 3, "but one that was damaged there is"
    wait_until(lambda: not sshd.processes())


def test_other_bytes_than_announced_are_refused(sshd: Sshd, target: Target, tmp_path: Path) -> None:
    built = wheel(tmp_path)
    with pytest.raises(DigestError, match=built.name):
        target.judge(built, request(built, sha256="0" * 64))
    assert not list(sshd.place.glob("wheels/*/*"))


def test_a_server_that_does_not_start_is_told(target: Target, tmp_path: Path) -> None:
    built = wheel(tmp_path, "does-not-start")
    found = target.judge(built, request(built, "boot"))
    assert not found.started
    assert verdicts(found) == {"boot": "failed"}
    assert "gone_N" in found.outcomes[0].signature


def test_a_cut_connection_is_taken_up_again_and_leaves_nothing_behind(
    sshd: Sshd, target: Target, tmp_path: Path, heard: Recorder
) -> None:
    built = wheel(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        judging = pool.submit(copy_context().run, target.judge, built, request(built))
        (first,) = wait_until(lambda: servers(sshd), patience_s=60)
        sshd.cut()
        assert verdicts(judging.result(timeout=120)) == {"coherence": "passed"}
    assert [event.kind for event in heard.events].count("bisect.retry") == 1
    assert first not in servers(sshd)
    wait_until(lambda: not sshd.processes())


def test_an_agent_that_dies_each_time_makes_the_wheel_untestable(
    sshd: Sshd, target: Target, tmp_path: Path
) -> None:
    hello = line_of(Hello(version=__version__)).decode()
    sshd.replace(f"cat <<'END'\n{hello}END\nread order\necho out of memory >&2\nkill -9 $$\n")
    built = wheel(tmp_path)
    with pytest.raises(UntestableError, match="out of memory"):
        target.judge(built, request(built))


@pytest.mark.parametrize(
    "script",
    ["", "cat <<'END'\n" + line_of(Hello(version="0.0.1")).decode() + "END\n", "echo no agent >&2\nexit 2\n"],
    ids=["missing", "another version", "another program"],
)
def test_a_target_without_this_program_is_refused(sshd: Sshd, target: Target, script: str) -> None:
    sshd.replace(script)
    if not script:
        sshd.program.unlink()
    with pytest.raises(ToolError) as caught:
        target.require()
    assert __version__ in caught.value.next_step


def test_a_machine_that_is_not_there_is_no_verdict(sshd: Sshd, target: Target, tmp_path: Path) -> None:
    sshd.process.kill()
    sshd.process.wait()
    built = wheel(tmp_path)
    with pytest.raises(TargetError):
        target.judge(built, request(built))


def test_a_key_that_is_not_taken_asks_nobody(sshd: Sshd, target: Target) -> None:
    (sshd.folder / "client.pub").write_text("")
    with pytest.raises(TargetError):
        target.require()


def test_a_full_disk_there_is_no_verdict(sshd: Sshd, target: Target, tmp_path: Path) -> None:
    built = wheel(tmp_path)
    part = sshd.place / "wheels" / sha256(built) / f"{built.name}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1"):
        target.judge(built, request(built))
    part.unlink()
    assert target.judge(built, request(built, "boot")).started


def test_the_second_waits_for_the_card_and_is_told_for_whom(
    sshd: Sshd, target: Target, tmp_path: Path, heard: Recorder
) -> None:
    built = wheel(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(copy_context().run, target.judge, built, request(built))
        wait_until(lambda: servers(sshd), patience_s=60)
        with pytest.raises(BusyError, match="tester@here"):
            target.judge(built, request(built, patience_s=0, who="other@there"))
        second = pool.submit(copy_context().run, target.judge, built, request(built, "boot"))
        assert verdicts(first.result(timeout=120)) == {"coherence": "passed"}
        assert second.result(timeout=120).started
    waited = [event.data["what"] for event in heard.events if event.kind == "lock.waiting"]
    assert waited
    assert all("tester@here" in what for what in waited)


def test_an_interrupt_ends_what_runs_there(sshd: Sshd, target: Target, tmp_path: Path) -> None:
    built = wheel(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        judging = pool.submit(target.judge, built, request(built))
        wait_until(lambda: servers(sshd), patience_s=60)
        target.stop.set()
        with pytest.raises(KeyboardInterrupt):
            judging.result(timeout=60)
    assert not sshd.processes()


def test_this_machine_can_be_the_target(tmp_path: Path) -> None:
    built = wheel(tmp_path)
    with RunningIndex() as index:
        index.json = True
        index.add(*torch_wheel())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UV_DEFAULT_INDEX", index.url)
            found = parse_target("local", home=tmp_path / "home").judge(built, request(built, "boot"))
    assert found.started


# Addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "spark", "-oProxyCommand=x", "http://spark", "ssh://", "ssh:///folder", "ssh://-oProxyCommand=x",
        "ssh://-l@spark", "ssh://a;b@spark", "ssh://sp$(id)ark", "ssh://user:secret@spark", "ssh://spark:0x16",
        "ssh://spark:99999", "ssh://spark/a%0ab", "ssh://spark?x=1", "ssh://%2doption@spark",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SparkwrightError) as caught:
        parse_target(text, home=tmp_path)
    assert caught.value.exit_code == 10
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "host", "folder"),
    [
        ("ssh://spark", [], "spark", "'~/.cache/sparkwright/target'"),
        ("ssh://me@spark.local:2222/srv/x", ["-p", "2222", "-l", "me"], "spark.local", "/srv/x"),
        ("ssh://[::1]/~/x%20y", [], "::1", "'~/x y'"),
        ("ssh://spark/$(touch%20x)';id", [], "spark", "'/$(touch x)'\"'\"';id'"),
    ],
)
def test_an_address_becomes_arguments(text, options, host, folder, tmp_path: Path) -> None:
    argv = list(parse_target(text, home=tmp_path).argv)
    end = argv.index("--")
    assert argv[end + 1] == host
    assert argv[end + 2].endswith(f" sparkwright {folder}")
    assert argv[end - len(options) : end] == options
    assert len(argv) == end + 3


def test_the_folder_is_found_by_the_shell_there(tmp_path: Path) -> None:
    """The command is what a shell on the other side gets; here it is given to one."""
    place = tmp_path / "a 'place' $(touch x)"
    (place / "bin").mkdir(parents=True)
    program = place / "bin" / "sparkwright"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    for shell in filter(shutil.which, ("sh", "bash", "dash")):
        command = parse_target(f"ssh://spark{place}".replace(" ", "%20"), home=tmp_path).argv[-1]
        done = subprocess.run(
            [shell, "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert done.stdout == f"agent {place}\n"
    assert not (tmp_path / "x").exists()
