"""``sparkwright bisect`` from two ends to the change that makes the difference."""

import json
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bisect_kit import DOUBLED, JUDGE, PROBE, commit, git, judge, patch_twice
from command import call
from edits import copy_checkout
from http_index import Fault
from killed import stopped
from kit import UpstreamRepository
from tiny_release import CLAMP, make_tiny
from wheelkit import spoil, unpack
from world import World, files_below, finish, wait_until

from sparkwright.base.errors import BisectionError, BusyError, ConfigError, FetchError, ProcessError
from sparkwright.cli.bisect import command

LIMIT_PROBE = """\
from probekit import expect


def probe():
    from vllm.clamp import LIMIT

    expect(LIMIT == 10, {10: "", 11: "one more", 12: "two more"}[LIMIT])
"""


@pytest.fixture
def patched(world: World) -> World:
    return patch_twice(world)


def culprits(ran) -> list[str]:
    return ran.json["changes"]


def built(world: World) -> Path:
    """Return the wheel of the present patchset."""
    unproved = [f"--allow-unproved={name}" for name in world.listed()]
    return Path(world.good("wheel", *unproved, "--json").json["path"])


def changed_record(world: World, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    """Return the present wheel with another list of carries in its record."""

    def spoil_record(files: dict[str, bytes]) -> None:
        (member,) = (path for path in files if path.endswith("point.json"))
        record = json.loads(files[member])
        change(record["point"]["carries"])
        files[member] = json.dumps(record).encode()

    return spoil(built(world), world.folder / "changed", spoil_record, record=False)


def test_a_carry_between_two_commits_is_named(patched: World) -> None:
    before = {path: time for path, time in files_below(patched.root).items() if not path.startswith(".")}
    ran = patched.good("bisect", "HEAD~1", "HEAD", "--judge", judge(patched), "--json")
    assert ran.json["kind"] == "culprit"
    assert culprits(ran) == ["doubled:added"]
    after = {path: time for path, time in files_below(patched.root).items() if not path.startswith(".")}
    assert after == before, "the work tree is as it was"
    assert (Path(ran.json["folder"]) / "journal.jsonl").is_file()


def test_the_same_command_again_judges_nothing(patched: World) -> None:
    words = ("bisect", "HEAD~1", ".", "--judge", judge(patched), "--deterministic", "--json")
    first = patched.good(*words)
    (patched.folder / "judge.py").write_text("raise SystemExit(99)\n")
    assert patched.good(*words).json["steps"] == first.json["steps"]


def test_a_search_is_repeated_with_all_options_that_it_was_given(patched: World) -> None:
    given = {"--timeout=50.0", "--any-failure", "--axis=carries"}
    words = ("bisect", "HEAD~1", "HEAD", "--judge", judge(patched), "--json")
    bad, good = patched.good(*words, *given).json["check"]
    assert given <= set(shlex.split(bad))
    assert [patched.call(*shlex.split(check)[1:]).status for check in (bad, good)] == [1, 0]
    (plain, _) = patched.good(*words, "--deterministic").json["check"]
    named = {word.partition("=")[0] for word in shlex.split(plain)}
    assert named == {"sparkwright", "bisect", "HEAD~1", "HEAD", "--judge", "--deterministic", "--try"}


def test_two_wheels_alone_name_the_carry_though_the_checkout_moved_on(patched: World) -> None:
    bad = built(patched)
    git(patched, "checkout", "--quiet", "HEAD~1")
    good = built(patched)
    for number in range(4):  # the contents that both wheels name are in the history only
        patched.carry(f"word-{number}", {f"vllm/word_{number}.py": "WORD = -1\n"}, listed=False)
    commit(patched, "aside")
    git(patched, "branch", "kept", "main")
    ran = patched.good("bisect", good, bad, "--judge", judge(patched), "--deterministic", "--json")
    assert culprits(ran) == ["doubled:added"]


def test_a_content_that_nothing_here_has_is_named(patched: World) -> None:
    bad = built(patched)
    git(patched, "update-ref", "-d", "refs/heads/main")
    shutil.rmtree(patched.root / ".git")
    patched.carry("doubled", {"vllm/clamp.py": CLAMP + "# other\n"}, listed=False)
    commit(patched, "without the content")
    ran = patched.call("bisect", "HEAD", bad, "--judge", "merge", "--json")
    assert ran.status == BisectionError.exit_code
    assert "doubled" in ran.json["error"]["what"]
    (record,) = (json.loads(data) for path, data in unpack(bad).items() if path.endswith("point.json"))
    content = next(one["content"] for one in record["point"]["carries"] if one["name"] == "doubled")
    assert content in ran.json["error"]["next-step"]


def test_a_wheel_whose_record_was_changed_is_refused(patched: World) -> None:
    changed = changed_record(patched, list.pop)
    ran = patched.call("bisect", "HEAD~1", changed, "--judge", "merge", "--json")
    assert ran.status == BisectionError.exit_code
    assert changed.name in ran.json["error"]["what"]


@pytest.mark.parametrize("name", ["../../../elsewhere", "{outside}/doubled", "-x"])
def test_a_wheel_cannot_name_a_carry_elsewhere(patched: World, name: str) -> None:
    outside = patched.folder / "outside/doubled"
    shutil.copytree(patched.root / "carries/doubled", outside)

    def rename(carries: list[dict[str, Any]]) -> None:
        carry = next(one for one in carries if one["name"] == "doubled")
        carry["name"] = name.format(outside=outside.parent)

    changed = changed_record(patched, rename)
    ran = patched.call("bisect", "HEAD~1", changed, "--judge", "merge", "--json")
    assert ran.status == BisectionError.exit_code
    assert "cannot be read" in ran.json["error"]["what"]
    assert "carries[" in ran.json["error"]["because"]


@pytest.mark.parametrize(
    "spec", ["nonsense", "1.2.0-x.whl", "https://127.0.0.1/x.whl", "spark@later", "--all", "0123456789"]
)
def test_what_names_no_build_spec_is_refused(patched: World, spec: str) -> None:
    ran = patched.call("bisect", "--judge", "merge", "--json", "--", spec, "HEAD")
    assert ran.status == BisectionError.exit_code
    assert spec in ran.json["error"]["what"]


def test_the_fix_is_found_with_the_bad_end_first(patched: World) -> None:
    patched.list_carries([name for name in patched.listed() if name not in {"doubled", "word-1"}])
    ran = patched.good(
        "bisect", ".", "HEAD", "--find-fix", "--judge", judge(patched), "--deterministic", "--json"
    )
    assert culprits(ran) == ["doubled:removed"]


def test_a_probe_judges_and_its_imports_are_suspected_first(patched: World) -> None:
    probe = patched.folder / "probe.py"
    probe.write_text(PROBE)
    ran = patched.good("bisect", "HEAD~1", "HEAD", "--judge", f"probe {probe}", "--json")
    assert culprits(ran) == ["doubled:added"]
    assert "clamp(4) is not 4" in ran.json["calibration"]["signature"].replace("#", "4")
    assert len(ran.json["steps"]) <= 6
    probe.write_text(PROBE + "# another text\n")
    again = patched.good("bisect", "HEAD~1", "HEAD", "--judge", f"probe {probe}", "--json")
    assert again.json["id"] != ran.json["id"], "another text of the probe is another search"


@pytest.mark.parametrize("end", ["good", "bad"])
def test_an_end_whose_probe_cannot_run_is_refused_with_the_reason(world: World, end: str) -> None:
    for number in range(3, 7):
        text = CLAMP.replace("LIMIT = 10", f"LIMIT = {11 if number > 4 else 10}")
        world.offer(make_tiny(f"1.{number}.0", changes=(("vllm/clamp.py", text),)))
    probe = world.folder / "probe.py"
    breaks = {"good": "LIMIT == 10", "bad": "LIMIT == 11"}[end]
    broken = f"    if {breaks}:\n        raise AttributeError('moved')\n"
    probe.write_text(LIMIT_PROBE.replace("    expect(", f"{broken}    expect("))
    ran = world.call("bisect", "spark@1.2.0", "spark@1.6.0", "--judge", f"probe {probe}", "--json")
    assert ran.status == BisectionError.exit_code
    assert f"cannot be used as the {end} end" in ran.json["error"]["what"]
    assert "AttributeError: moved" in ran.json["error"]["because"]
    (folder,) = (world.root / ".sparkwright" / "bisect").iterdir()
    judged = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()[1:]]
    assert {tuple(one["applied"]) for one in judged} <= {(), ("1.6.0",)}, (
        "nothing between the ends was judged"
    )


def test_one_candidate_is_judged_by_hand(patched: World) -> None:
    words = ("bisect", "HEAD~1", "HEAD", "--judge", judge(patched))
    assert patched.call(*words, "--try=").status == 0
    assert patched.call(*words, "--try=doubled:added").status == 1
    ran = patched.call(*words, "--try=word-5:added,doubled:added", "--json")
    assert (ran.status, ran.json["verdict"]) == (1, "bad")
    assert patched.call(*words, "--try=unknown:added").status == 10
    listed = patched.good(*words, "--list", "--json").json["changes"]
    assert {change["id"] for change in listed} == {f"word-{n}:added" for n in range(4, 10)} | {
        "doubled:added"
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_judge_dies_with_a_search_that_is_killed(patched: World, number: int) -> None:
    note = patched.folder / "judge.runs"
    sleeps = judge(patched, f"import time\nopen({str(note)!r}, 'w')\ntime.sleep(600)\n")
    search = patched.start("bisect", "HEAD~1", "HEAD", "--judge", sleeps)
    assert stopped(search, number, note.exists).status == -number


@pytest.mark.parametrize("status", [127, 200])
def test_a_command_that_breaks_gives_no_verdict(patched: World, status: int) -> None:
    words = ("bisect", "HEAD~1", "HEAD", "--judge")
    ran = patched.call(*words, judge(patched, f"raise SystemExit({status})\n"), "--try=", "--json")
    assert ran.status == ProcessError.exit_code
    assert str(status) in ran.json["error"]["because"]


def test_a_command_runs_without_a_shell_and_within_its_time(patched: World) -> None:
    marker = patched.folder / "marker"
    words = ("bisect", "HEAD~1", "HEAD", "--try=", "--json", "--judge")
    ran = patched.call(*words, f"run {sys.executable} -c 'raise SystemExit(3)' ; touch {marker}")
    assert ran.json["verdict"] == "bad"
    assert not marker.exists()
    waiting = f"run {sys.executable} -c 'import time; time.sleep(600)'"
    ran = patched.call(*words, waiting, "--timeout=1")
    assert (ran.json["verdict"], ran.json["signature"]) == ("bad", "timeout")


def test_a_wheel_is_built_only_where_a_command_mentions_it(patched: World) -> None:
    show = f'run {sys.executable} -c "import sys; print(*sys.argv[1:])"'
    words = ("bisect", "HEAD~1", "HEAD", "--json", "--try=doubled:added", "--judge")
    assert patched.good(*words, f"{show} none").json["detail"] == "none"
    assert not patched.wheels
    ran = patched.good(*words, f"{show} {{wheel}}")
    assert unpack(Path(ran.json["detail"]))["vllm/clamp.py"].decode() == DOUBLED


def test_a_pair_that_does_not_merge_is_untestable_and_the_conflict_is_told(patched: World) -> None:
    patched.carry("other", {"vllm/clamp.py": CLAMP.replace("return value", "return value - 1")})
    words = ("bisect", "HEAD~1", ".", "--judge", judge(patched), "--json")
    ran = patched.call(*words, "--try=doubled:added,other:added")
    assert (ran.status, ran.json["verdict"]) == (125, "untestable")
    assert "other" in ran.json["detail"]
    ran = patched.call(*words)
    assert ran.status == BisectionError.exit_code, "the bad end cannot be judged"


@pytest.mark.parametrize(
    "judge", ["", "probe", "probe nowhere.py", "verify nonsense", "metric x", "metric x --worse-by 5%", "'"]
)
def test_what_is_no_judge_is_refused(patched: World, judge: str) -> None:
    ran = patched.call("bisect", "HEAD~1", "HEAD", "--json", f"--judge={judge or 'no such'}")
    assert ran.status == ConfigError.exit_code


def test_a_range_is_no_culprit(patched: World) -> None:
    """Releases between which nothing can be judged are named as a range, and the exit status says so."""
    for number in range(3, 7):
        changes = (("vllm/clamp.py", CLAMP.replace("# Always.", f"# UNTESTABLE {number}")),)
        text = changes if number in {4, 5} else (("vllm/clamp.py", DOUBLED),) if number == 6 else ()
        patched.offer(make_tiny(f"1.{number}.0", changes=text))
    patched.list_carries([])
    ran = patched.call("bisect", "spark@1.2.0", "spark@1.6.0", "--judge", judge(patched), "--json")
    assert ran.status == BisectionError.exit_code
    assert (ran.json["kind"], ran.json["changes"]) == ("range", ["1.4.0", "1.5.0", "1.6.0"])


def test_the_commit_at_which_a_carry_stops_merging_is_named(world: World) -> None:
    upstream = UpstreamRepository(world.folder / "upstream")
    upstream.commit("begin", {path: data.decode() for path, data in world.release.tree.items()})
    ids = [upstream.git("rev-parse", "HEAD")]
    for number in range(20):
        files = {"vllm/more.py": f"NUMBER = {number}\n"}
        if number == 13:
            files["vllm/clamp.py"] = CLAMP.replace("return value", "return int(value)")
        ids.append(upstream.commit(f"change {number}", files))
    ran = world.good(
        "bisect", f"spark@{ids[0]}", f"spark@{ids[-1]}", "--judge=merge", "--json",
        f"--commits={upstream.folder}",
    )  # fmt: skip
    assert culprits(ran) == [ids[14][:12]]
    assert "clamp" in ran.json["calibration"]["signature"]
    assert len(ran.json["steps"]) <= 2 + 5


ENDS = ("bisect", "HEAD~1", "HEAD", "--json")


def journal(world: World) -> list[dict[str, Any]]:
    """Return every line of the journal; one that is cut does not parse."""
    (path,) = (world.root / ".sparkwright" / "bisect").glob("*/journal.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


WAITING = """\
import time
from pathlib import Path
folder = Path({folder!r})
(folder / "started").touch()
while not (folder / "gate").exists():
    time.sleep(0.02)
"""


def test_a_second_search_of_the_same_pair_says_busy_and_leaves_the_journal_alone(patched: World) -> None:
    words = (*ENDS, "--judge", judge(patched, WAITING.format(folder=str(patched.folder)) + JUDGE))
    first = patched.start(*words)
    wait_until((patched.folder / "started").exists, patience_s=120)
    before = journal(patched)
    second = patched.call(*words)
    assert second.status == BusyError.exit_code
    assert journal(patched) == before
    (patched.folder / "gate").touch()
    ran = finish(first)
    assert (ran.status, ran.json["changes"]) == (0, ["doubled:added"])
    after = journal(patched)
    assert patched.good(*words).json["steps"] == ran.json["steps"]
    assert journal(patched) == after


def offer_later_releases(world: World) -> None:
    for number in range(3, 9):
        text = DOUBLED if number >= 6 else CLAMP
        world.offer(make_tiny(f"1.{number}.0", changes=(("vllm/clamp.py", text),)))
    world.list_carries([])


def test_a_network_that_fails_in_the_middle_gives_no_verdict(world, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between one try and the next
    offer_later_releases(world)
    words = ("bisect", "spark@1.2.0", "spark@1.8.0", "--judge", judge(world), "--json")
    words = (*words, "--deterministic")
    world.index.faults += [Fault(), Fault(), *[Fault(status=503)] * 200]
    ran = world.call(*words)
    assert ran.status == FetchError.exit_code
    before = journal(world)
    assert [one["kind"] for one in before] == ["bisection", "evaluation", "evaluation"], "both ends"
    world.index.faults.clear()
    ran = world.good(*words)
    assert ran.json["changes"] == ["1.6.0"]
    assert journal(world)[: len(before)] == before


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/bisect.md"
EXAMPLES = [
    shlex.split(found.replace("\\\n", " "))[2:]
    for found in re.findall(r"^\$ (sparkwright bisect (?:.*\\\n)*.*)$", PAGE.read_text(), re.MULTILINE)
]


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_is_taken(words: list[str]) -> None:
    context = command.make_context("bisect", [*words])
    assert context.params["judge"]


def test_the_first_example_runs_as_it_is_written(patched: World) -> None:
    for name, ref in (("good", "HEAD~1"), ("bad", "main")):
        git(patched, "checkout", "--quiet", ref)
        before = set(patched.wheels)
        patched.good("wheel", *(f"--allow-unproved={carry}" for carry in patched.listed()))
        (wheel,) = set(patched.wheels) - before
        shutil.copy(wheel, patched.root / f"{name}.whl")
    (patched.root / "regression.py").write_text(PROBE)
    assert culprits(patched.good("bisect", *EXAMPLES[0], "--json")) == ["doubled:added"]


@pytest.mark.upstream
@pytest.mark.walk
@pytest.mark.parametrize(
    ("ends", "named"), [(("0.19.1", "0.20.0"), "broke"), (("0.26.0", "0.25.1", "--find-fix"), "fixed")]
)
def test_the_public_example_names_the_releases(tmp_path: Path, ends: tuple[str, ...], named: str) -> None:
    copy_checkout(ROOT, tmp_path)
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "patchsets" / "stock.toml").write_text(text)
    specs = [f"stock@{one}" if one[0].isdigit() else one for one in ends]
    judge = f"probe {PAGE.parent / 'hybrid.py'}"
    done = call("bisect", "--root", str(tmp_path), *specs, "--judge", judge, cwd=tmp_path)
    assert f"release {max(ends[:2])} {named} it" in done.stdout, done.stderr
