"""``sparkwright carry`` with carries of our own: new, edit, show, refresh."""

import re
import shlex
from pathlib import Path

import pytest
import tomlkit
from tiny_release import CLAMP, CLAMPED, make_tiny
from world import World, files_below

from sparkwright.base.errors import ProofError, UnknownNameError, UnprovedError
from sparkwright.cli import session

WORDS_PROBE = """\
from probekit import expect
from vllm.words import WORDS


def probe():
    expect(len(WORDS) == 2, "there are not two words")
"""
NEW = ("--title", "Count to two", "--why", "One is not enough.")


@pytest.fixture
def tree(world: World) -> Path:
    """The pinned tree, written out to be edited."""
    folder = world.folder / "tree"
    world.good("carry", "edit", folder)
    return folder


def carries(world: World) -> dict[str, int]:
    return files_below(world.root / "carries")


class TestNew:
    def test_of_an_edited_tree(self, world: World, tree: Path) -> None:
        (tree / "vllm" / "words.py").write_text("WORDS = ('one', 'two')\n")
        (tree / "vllm" / "fresh.py").write_text("FRESH = True\n")
        (tree / "vllm" / "old.py").unlink()
        (tree / "vllm" / "__pycache__").mkdir()
        (tree / "vllm" / "__pycache__" / "x.pyc").write_bytes(b"\0")
        ran = world.good("carry", "new", "count", "--from", tree, *NEW)
        assert "patchsets/spark.toml" in ran.out
        assert "vllm/fresh.py  +1 -0" in ran.out
        patch = (world.root / "carries" / "count" / "1.2.0.patch").read_text()
        assert patch.count("diff --git") == 3
        assert "\n " not in patch, "there are no context lines"
        world.list_carries(["clamp", "align", "count"])
        report = world.good("merge", "--json").json
        assert report["outcomes"][2]["paths"] == ["vllm/fresh.py", "vllm/old.py", "vllm/words.py"]
        assert world.good("carry", "show", "count", "--json").json["why"] == "One is not enough.\n"

    def test_a_name_that_is_taken(self, world: World, tree: Path) -> None:
        (tree / "vllm" / "old.py").unlink()
        before = carries(world)
        ran = world.call("carry", "new", "clamp", "--from", tree, *NEW)
        assert ran.status == 10
        assert "carry refresh clamp" in ran.err
        assert carries(world) == before

    def test_the_guide_is_followed(self, world: World) -> None:
        """Each command of the page is run as it stands; what a person does between them is done here."""
        page = (Path(__file__).parents[3] / "docs" / "adding-a-carry.md").read_text()
        block = page.partition("## This project's own change")[2].split("```")[1]
        tree, probe = world.folder / "vllm", world.root / "carries" / "my-fix" / "probe.py"
        world.offer(make_tiny("1.3.0"))
        done = []
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            program, *words = shlex.split(line, comments=True)
            words = [word.replace("/tmp/vllm", str(tree)).replace("0.26.0", "1.3.0") for word in words]
            if program == "sparkwright":
                ran = world.good(*words)
                done.append(" ".join(words[:2]))
            elif words[0].startswith(str(tree)):
                (tree / "vllm" / "words.py").write_text("WORDS = ('one', 'two')\n")
            else:
                assert world.root / words[0] == probe
                unwritten = world.call("carry", "prove", "my-fix")
                assert (unwritten.status, "skeleton" in unwritten.err) == (ProofError.exit_code, True)
                assert "import vllm.words" in probe.read_text()
                probe.write_text(WORDS_PROBE)
        assert done == ["carry edit", "carry new", "carry prove", "carry prove", "merge", "patchset bump"]
        assert world.listed() == ["clamp", "align", "my-fix"]
        assert "revision 1" in ran.out

    def test_of_a_carry_that_is_in_no_patchset(self, world: World, tree: Path) -> None:
        (tree / "vllm" / "old.py").unlink()
        world.good("carry", "new", "count", "--from", tree, *NEW)
        (world.root / "patchsets" / "channels.toml").write_text("format = 1\n")
        ran = world.call("carry", "prove", "count")
        assert ran.status == UnknownNameError.exit_code
        assert f"carry count is not in {world.root / 'patchsets' / 'spark.toml'}" in ran.err


class TestEdit:
    def test_with_a_carry_in_it(self, world: World) -> None:
        folder = world.folder / "clamped"
        told = world.good("carry", "edit", folder, "--carry", "clamp", "--json").json
        assert told["folder"] == str(folder)
        assert (folder / "vllm" / "clamp.py").read_text() == CLAMPED
        (folder / "vllm" / "clamp.py").write_text(CLAMPED.replace("LIMIT = 10", "LIMIT = 9"))
        world.good("carry", "refresh", "clamp", "--from", folder)
        patch = (world.root / "carries" / "clamp" / "1.2.0.patch").read_text()
        assert "+LIMIT = 9" in patch
        assert "+    return min(value, LIMIT)" in patch

    def test_a_folder_with_something_in_it_stays_as_it_is(self, world: World, tree: Path) -> None:
        (tree / "mine").touch()
        ran = world.call("carry", "edit", tree)
        assert (ran.status, (tree / "mine").exists()) == (10, True)
        ran = world.call("carry", "edit", tree / "mine")
        assert (ran.status, "it is not a folder" in ran.err) == (10, True)


class TestShow:
    def test_with_context(self, world: World) -> None:
        out = world.good("carry", "show", "clamp").out
        assert "-    return value\n+    return min(value, LIMIT)\n" in out
        assert " def clamp(value):\n" in out
        told = world.good("carry", "show", "clamp", "--json").json
        assert told["title"] == "Change clamp"
        assert "+    return min(value, LIMIT)" in told["diff"]

    def test_what_steers_a_terminal_is_shown_as_text(self, world: World) -> None:
        """Titles come from pull requests, and changes from anybody."""
        world.carry(
            "red", {"vllm/red.py": "RED = '\x1b[31m'\n"}, title="\x1b]0;title\x07red", why="\u202e why\r"
        )
        for words in (["carry", "show", "red"], ["status"], ["merge"]):
            ran = world.good(*words)
            assert not {"\x1b", "\x07", "\u202e", "\r"} & set(ran.said), words
        out = world.good("carry", "show", "red").out
        assert "\\x1b]0;title\\x07red" in out
        assert "+RED = '\\x1b[31m'\n" in out
        assert world.good("carry", "show", "red", "--json").json["title"] == "\x1b]0;title\x07red"

    def test_one_that_does_not_fit(self, world: World) -> None:
        patch = world.root / "carries" / "clamp" / "1.2.0.patch"
        patch.write_bytes(patch.read_bytes().replace(b"index ", b"index 0", 1))
        ran = world.call("carry", "show", "clamp")
        assert (ran.status, ran.out) == (30, "")


class TestRefresh:
    """The lock moved to a release in which upstream changed other or the same lines."""

    def bump(self, world: World, **changes: str) -> None:
        paths = {f"vllm/{name}.py": text for name, text in changes.items()}
        world.pin(make_tiny("1.3.0", changes=tuple(paths.items())))
        world.offer(make_tiny())

    def comment(self, world: World) -> Path:
        """Somebody's comment in the carry's TOML."""
        path = world.root / "carries" / "clamp" / "carry.toml"
        path.write_text("# Ask Ada before touching this.\n" + path.read_text())
        return path

    def test_clean(self, world: World) -> None:
        toml = self.comment(world)
        self.bump(world, clamp=CLAMP.replace("return 2", "return 3"))
        told = world.good("carry", "refresh", "clamp", "--json").json
        assert told["release"] == "1.3.0"
        assert toml.read_text().startswith("# Ask Ada before touching this.\n")
        revisions = tomlkit.parse(toml.read_text())["revision"]
        assert [entry["release"] for entry in revisions] == ["1.2.0", "1.3.0"]
        assert revisions[1]["sdist-sha256"] == world.release.lock.sdist.sha256
        downloads = len(world.index.downloads)
        world.list_carries(["clamp"])
        assert world.good("merge", "--json").json["outcomes"][0]["kind"] == "applied"
        assert len(world.index.downloads) == downloads
        before = carries(world)
        world.good("carry", "refresh", "clamp")
        assert carries(world).keys() == before.keys(), "refreshing again replaces that revision"
        assert tomlkit.parse(toml.read_text())["revision"] == revisions

    def test_a_conflict_is_left_to_a_person(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bump(world, clamp=CLAMP.replace("return value", "return max(value, 0)"))
        before = carries(world)
        with monkeypatch.context() as patched:
            patched.setattr(session, "unsoundness", lambda _: pytest.fail("a conflict is no damage"))
            assert world.call("merge").status == 30
            ran = world.call("carry", "refresh", "clamp")
        assert ran.status == 30, ran.said
        work = world.root / ".sparkwright" / "refresh" / "clamp"
        assert f"--from {work}" in ran.err
        assert carries(world) == before
        conflicted = work / "vllm" / "clamp.py"
        assert "<<<<<<< " in conflicted.read_text()
        ran = world.call("carry", "refresh", "clamp", "--from", work)
        assert (ran.status, "still has conflict markers" in ran.err) == (30, True)
        conflicted.write_text(CLAMP.replace("return value", "return max(min(value, LIMIT), 0)"))
        ran = world.call("carry", "refresh", "clamp")
        assert (ran.status, "perhaps your work" in ran.err) == (10, True)
        assert "max(min(" in conflicted.read_text()
        world.good("carry", "refresh", "clamp", "--from", work)
        assert not work.exists()
        world.list_carries(["clamp"])
        assert world.good("wheel", "--json").json["carries"][0]["outcome"] == "applied"

    def test_a_damaged_patch_can_be_replaced_from_a_folder(self, world: World, tree: Path) -> None:
        patch = world.root / "carries" / "clamp" / "1.2.0.patch"
        patch.write_text("rubbish")
        assert world.call("carry", "refresh", "clamp").status == 30
        (tree / "vllm" / "clamp.py").write_text(CLAMPED)
        world.good("carry", "refresh", "clamp", "--from", tree)
        world.good("wheel")


def test_a_probe_that_cannot_run_is_listed_with_its_error(world: World) -> None:
    world.list_carries([])
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe="def probe():\n    raise KeyError('moved')\n")
    ran = world.call("carry", "prove")
    assert ran.status == UnprovedError.exit_code
    assert "KeyError: 'moved'" in ran.out
    assert "Traceback" not in ran.out
