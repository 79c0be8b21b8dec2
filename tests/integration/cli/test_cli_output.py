"""What people and machines see: help, JSON, errors, colours, progress, the event log."""

import itertools
import json
import os
import pty
import subprocess
import sys

import pytest
from tiny_release import CLAMP
from world import CLAMP_PROBE, World, clean_environment, files_below

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.machine import free_port
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli import main as entry
from sparkwright.cli.main import COMMANDS, main

HEAVY = [
    "git",
    "gitdb",
    "requests",
    "rich",
    "msgspec",
    "unidiff",
    "tomlkit",
    "psutil",
    "pypi_simple",
    "hashlib",
    "difflib",
]


class TestHelp:
    def test_it_lists_every_command_and_imports_next_to_nothing(self, world: World) -> None:
        script = (
            "import sys\nfrom sparkwright.cli.main import main\nstatus = main(['--help'])\n"
            f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)\nsys.exit(status)"
        )
        ran = world.run(script=script)
        assert ran.status == 0, ran.said
        assert set(ran.err.split()) <= {"hashlib"}, "click itself may want that one"
        for name, text in COMMANDS.items():
            assert f"{name} " in ran.out
            assert " ".join(text.split()[:4]) in ran.out

    def test_a_command_that_does_not_exist(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["weel"]) == 2
        assert "Did you mean 'wheel'?" in capsys.readouterr().err
        assert main(["xyz"]) == 2
        assert "There is no command 'xyz'." in capsys.readouterr().err


class TestJson:
    """One document on standard output, whatever happens."""

    @pytest.mark.parametrize(
        ("words", "kind", "code"),
        [
            (["wheel", "--platform", "vax"], "UnknownNameError", 10),
            (["wheel", "--plan", "--patchset", "spork"], "UnknownNameError", 10),
            (["merge", "--onto", "7.7.7"], "FetchError", 20),
            (["publish"], "PublishError", 50),
            (["carry", "show", "no-such"], "UnknownNameError", 10),
            (["wheel", "--frobnicate"], "UsageError", 2),
            (["carry", "new"], "UsageError", 2),
            (["frobnicate"], "UsageError", 2),
            (["wheel", "--offline"], "NotInStoreError", 20),
        ],
    )
    def test_of_errors(self, world: World, words: list[str], kind: str, code: int) -> None:
        ran = world.call(*words, "--json")
        assert ran.status == code, ran.said
        error = ran.json["error"]
        assert (error["kind"], error["exit-code"]) == (kind, code)
        assert error["what"]
        assert set(error) == {"kind", "what", "because", "next-step", "exit-code"}
        assert ran.err == ""

    def test_of_a_result_that_is_an_error_too(self, world: World) -> None:
        """The result stays the only document, and the error goes where people look for it."""
        world.carry("rival", {"vllm/clamp.py": CLAMP.replace("return value", "return 0")}, probe=CLAMP_PROBE)
        for words in (["merge"], ["carry", "prove"]):
            ran = world.call(*words, "--json")
            assert ran.status == 30
            assert "error" not in ran.json
            assert ran.err.startswith("error: ")

    def test_a_later_command_owes_one_again(self, world: World) -> None:
        world.good("wheel", "--plan", "--json")
        assert "error: " in world.call("publish").err
        assert world.call("publish", "--json").json["error"]


class TestUnforeseen:
    @pytest.fixture
    def broken(self, world: World, monkeypatch: pytest.MonkeyPatch) -> World:
        def explode(*_: object) -> None:
            raise ZeroDivisionError("division\nby zero")

        monkeypatch.setattr("sparkwright.cli.build.plan", explode)
        return world

    def test_one_clear_line_and_a_traceback_in_a_file(self, broken: World) -> None:
        ran = broken.call("wheel", "--plan")
        assert ran.status == 1
        assert "because  ZeroDivisionError: division by zero" in ran.err
        assert "Traceback" not in ran.err
        (file,) = (broken.root / ".sparkwright").glob("crash-*.txt")
        assert f"the traceback in {file}" in ran.err
        assert "raise ZeroDivisionError" in file.read_text()

    def test_before_there_is_a_checkout(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def explode(**_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(entry.group, "main", explode)
        ran = world.call("wheel", "--plan")
        assert ran.status == 1
        assert "raise ZeroDivisionError" in ran.err


def test_what_another_program_said_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    from sparkwright.cli.output import expect_json, report

    expect_json(expected=False)
    report(SparkwrightError("it failed", because="fatal: one\n\nfatal: two\n"))
    assert capsys.readouterr().err == "error: it failed\n  because  fatal: one\n           fatal: two\n"


def test_the_event_log_is_json_lines(world: World) -> None:
    world.good("wheel")
    world.call("wheel", "--platform", "vax")
    world.call("merge", "--onto", "7.7.7")
    logs = sorted((world.root / ".sparkwright" / "events").iterdir())
    assert len(logs) == 3, "one a run"
    events = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    for run in events:
        assert run[0]["kind"] == "session.started"
        assert all({"at", "kind"} <= event.keys() for event in run)
        # Two probes tell of themselves from threads of their own, and may overtake each other by a moment.
        assert all(later["at"] - one["at"] > -0.1 for one, later in itertools.pairwise(run))
    kinds = {event["kind"] for event in events[0]}
    assert {"step.made", "merge.outcome", "probe.judged", "process.ended", "wheel.assembled"} <= kinds


@pytest.mark.usefixtures("proved")
def test_quiet_leaves_the_result_and_warnings(world: World) -> None:
    ran = world.good("wheel", "--quiet", "--store", f"http://127.0.0.1:{free_port()}")
    assert "cannot be reached" in ran.err
    assert ran.err.startswith("warning: ")
    ran = world.good("wheel", "--quiet")
    assert (ran.err, "sha256" in ran.out) == ("", True)


def on_a_terminal(world: World, *words: str, **environment: str) -> tuple[int, str]:
    """Run the command with a terminal for all three streams; status and what it showed."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sparkwright", *words],
        cwd=world.root,
        env={**clean_environment(), **world.environment, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(ours)
    return child.returncode, shown.decode()


@pytest.mark.usefixtures("proved")
class TestTerminal:
    COLOUR = "\x1b[3"

    def test_colours_and_a_live_display(self, world: World) -> None:
        status, shown = on_a_terminal(world, "wheel")
        assert status == 0, shown
        assert self.COLOUR in shown
        assert "✓ assemble" in shown
        status, shown = on_a_terminal(world, "wheel", "--plan", "--patchset", "spork")
        assert (status, self.COLOUR in shown) == (10, True)

    def test_no_colours_when_nobody_wants_them(self, world: World) -> None:
        for words, expected in (
            (["wheel"], 0),
            (["carry", "show", "clamp"], 0),
            (["wheel", "--plan", "--patchset", "x"], 10),
        ):
            status, shown = on_a_terminal(world, *words, NO_COLOR="1")
            assert status == expected, shown
            assert self.COLOUR not in shown

    def test_plain_lines_elsewhere(self, world: World) -> None:
        ran = world.run("wheel")
        assert "\x1b" not in ran.said
        assert "\r" not in ran.said
        lines = ran.err.splitlines()
        assert "… download vllm-1.2.0.tar.gz" in lines
        assert any(line.startswith("✓ assemble (") for line in lines)


def test_sizes_and_times_read_well() -> None:
    assert [human_size(n) for n in (0, 1023, 1024, 1 << 20, 271_361_241, 5 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "258.8 MiB", "5.00 GiB",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0.04, 9.94, 59.4, 60, 3599.7)] == [
        "0.0 s", "9.9 s", "59 s", "1 min 00 s", "60 min 00 s",
    ]  # fmt: skip


def test_a_reader_that_went_away(world: World) -> None:
    child = world.start("wheel", "--plan")
    child.stdout.close()
    child.wait(timeout=30)
    err = child.stderr.read()
    child.stderr.close()
    assert child.returncode == 141, err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_checkout_is_found_from_within(world: World) -> None:
    ran = world.run("status", "--root", str(world.root / "carries" / "clamp"))
    assert ran.status == 0, ran.said
    assert "1.2.0+spark" in ran.out
    assert any(path.startswith("events/") for path in files_below(world.root / ".sparkwright"))


PROGRAM = """
from rich.console import Console
from sparkwright.cli.main import main
main(["--version"])
Console().print("\\N{CHECK MARK} passed")
"""


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"\u2713"), ("latin-1", r"\u2713"), ("utf-8", "\N{CHECK MARK}")]
)
def test_a_sign_that_the_encoding_lacks_is_escaped(encoding: str, shown: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, encoding=encoding, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{shown} passed"), done.stderr
