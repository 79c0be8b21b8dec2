"""A search is kept in a journal: killed at any step it goes on, and two of them do not collide."""

import errno
import os
import signal
from pathlib import Path

import pytest
from killed import at_call, die, in_child
from search_kit import Judge, problem

from sparkwright.base import journal as journals
from sparkwright.base.errors import ConfigError, StorageError
from sparkwright.search.engine import FILE, bisect, read_evaluations
from sparkwright.search.model import Evaluation

ASKED = problem(4)


class Clocked(Judge):
    """A judge whose evaluations take the same time in each run, and that needs a folder of its own."""

    def evaluate(self, applied, *, attempt, folder) -> Evaluation:
        if folder != Path():
            assert folder.is_dir()
            assert not list(folder.iterdir())
        found = super().evaluate(applied, attempt=attempt, folder=folder)
        return Evaluation(verdict=found.verdict, signature=found.signature, seconds=2.5, detail=found.detail)


def third(applied) -> bool:
    return "c3" in applied


def unasked(applied) -> bool:
    raise AssertionError(f"{applied} is judged again")


@pytest.mark.parametrize("phase", ["evaluating", "synced"])
def test_a_search_killed_at_every_step_goes_on_where_it_was(tmp_path: Path, phase) -> None:
    whole = bisect(ASKED, Clocked(third), tmp_path / "whole")
    folder, log = tmp_path / "killed", tmp_path / "asked"

    class Dying(Clocked):
        def evaluate(self, applied, *, attempt, folder):
            with log.open("a") as stream:
                stream.write(f"{sorted(applied)} {attempt}\n")
            found = super().evaluate(applied, attempt=attempt, folder=folder)
            (folder / "log").write_text("half a log")
            if phase == "evaluating" and len(self.asked) == 2:
                die()
            return found

    synced = at_call(["fsync"], 1, after=lambda _: True) if phase == "synced" else None
    kills = 0
    while (ended := in_child(lambda: bisect(ASKED, Dying(third), folder), synced)) == -signal.SIGKILL:
        kills += 1
        assert kills <= 2 * whole.evaluations
    assert ended == 0
    assert kills >= whole.evaluations - 1
    assert bisect(ASKED, Clocked(unasked), folder) == whole
    asked = log.read_text().splitlines()
    repeated = len(asked) - len(set(asked))
    assert len(set(asked)) == whole.evaluations
    assert repeated == (0 if phase == "synced" else kills)


def test_a_journal_cut_anywhere_leads_to_the_same_result(tmp_path: Path) -> None:
    whole = bisect(ASKED, Clocked(third), tmp_path / "whole")
    data = (tmp_path / "whole" / FILE).read_bytes()
    first = data.index(b"\n") + 1
    for length in (0, 1, first - 1, first, first + 1, (first + len(data)) // 2, len(data) - 1):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / FILE).write_bytes(data[:length])
        judge = Clocked(third)
        assert bisect(ASKED, judge, folder) == whole
        assert len(judge.asked) == whole.evaluations - max(0, data[:length].count(b"\n") - 1)
        assert (folder / FILE).read_bytes() == data


def test_another_problem_is_refused_and_the_journal_kept(tmp_path: Path) -> None:
    bisect(ASKED, Clocked(third), tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(ConfigError):
        bisect(problem(5), Clocked(third), tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path) -> None:
    bisect(ASKED, Clocked(third), tmp_path)
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    deep, odd = b'{"a":' + b"[" * 5000 + b"\n", b'{"a":"\xff"}\n'
    for damaged in (*([lines[0], one, *lines[1:]] for one in (b"{}\n", deep, odd)), lines[1:]):
        (tmp_path / FILE).write_bytes(b"".join(damaged))
        with pytest.raises(ConfigError):
            bisect(ASKED, Clocked(third), tmp_path)
        assert (tmp_path / FILE).read_bytes() == b"".join(damaged)


def test_a_full_disk_ends_the_search_with_the_journal_intact(tmp_path: Path, monkeypatch) -> None:
    whole = bisect(ASKED, Clocked(third), tmp_path / "whole")

    class FullDisk:
        left = 3

        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, file, data) -> int:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.write(file, data if self.left else data[: len(data) // 2])

    folder = tmp_path / "full"
    first = Clocked(third)
    monkeypatch.setattr(journals, "os", FullDisk())
    with pytest.raises(StorageError):
        bisect(ASKED, first, folder)
    assert len(first.asked) == 2
    assert len(read_evaluations(folder, ASKED)) == 1
    assert (folder / FILE).read_bytes().endswith(b"\n")
    monkeypatch.undo()
    second = Clocked(third)
    assert bisect(ASKED, second, folder) == whole
    assert len(second.asked) == whole.evaluations - 1
