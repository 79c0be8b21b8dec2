"""A journal survives whatever ends the run that writes it, and never mixes two runs."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from killed import die, in_child
from msgspec.structs import replace

from sparkwright.base.errors import BusyError, ConfigError, NewerFormatError, StorageError
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import (
    BootFacts,
    Chunk,
    FailureKind,
    MetricsSnapshot,
    Observation,
    RequestFailure,
    Sample,
    TokenLogprobs,
)
from sparkwright.verify.journal import (
    BootRecord,
    Concluded,
    Journal,
    Manifest,
    Measured,
    Noted,
    cell_id,
    read_journal,
)


def manifest(**changes: object) -> Manifest:
    fields = {"run": "r", "created": "2026-01-01T00:00:00Z", "server": "simulator"}
    return Manifest(**{**fields, "identity": {"wheel": "1" * 64}, "options": {"profile": "demo"}, **changes})


def cell(name: str = "code c=8", **changes: object) -> Cell:
    fields = {"check": "sweep", "name": name, "load": Load(concurrency=8)}
    return Cell(**{**fields, "prompts": (Prompt(name="p", category="code", text="é\n"),), **changes})


def observation(name: str = "code c=8") -> Observation:
    lost = RequestFailure(kind=FailureKind.RESET, detail="x")
    bad = Sample(prompt="p", category="code", started=10**18 + 1, ended=10**18 + 9, failure=lost)
    good = replace(
        bad,
        failure=None,
        chunks=(Chunk(10**18 + 2, 3), Chunk(10**18 + 5, 0, "reasoning")),
        logprobs=(TokenLogprobs("token_id:7", -0.125, {"token_id:7": -0.125, "token_id:9": -3.5}),),
        text="\u2028 \U0001f600",
    )
    before = MetricsSnapshot(at=5, drafts=3, accepted_per_position=(2.0, 1.0), cache={"block_size": "16"})
    return Observation(cell=cell(name), samples=(good, bad), before=before, lag_ms=(1.5, 0.5), died=-9)


FINDING = Finding(
    "sweep", "n", definition="d", verdict=Verdict.FAIL, cause="c", measured={"x": 1.5, "y": "-"}
)


def test_all_comes_back_as_it_went_in(tmp_path: Path) -> None:
    facts = BootFacts(version="0.24.0", graph_gib=-7.5, capture_sizes=(1, 2))
    with Journal(tmp_path / "run", manifest()) as journal:
        journal.write(BootRecord(arm="main", boot=0, facts=facts))
        journal.write(Measured(id="a", observation=observation()))
        journal.write(Noted(name="floor", data={"ms": [1, 2]}))
        journal.write(Concluded(findings=()))
        journal.write(BootRecord(arm="main", boot=0, facts=facts, restart=1))
        journal.write(Concluded(findings=(FINDING,)))
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()
    kinds = [msgspec.json.decode(line)["kind"] for line in lines]
    assert kinds == ["run", "boot", "cell", "note", "findings", "boot", "findings"]
    contents = read_journal(tmp_path / "run")
    assert contents.manifest == manifest()
    assert contents.boots["main", 0].facts == facts
    assert contents.boots["main", 0].restart == contents.restarts == 1
    assert contents.measured == {"a": observation()}
    assert contents.findings == (FINDING,)


def test_a_line_cut_anywhere_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    with Journal(tmp_path, manifest()) as journal:
        journal.write(Measured(id="a", observation=observation()))
        whole = journal.path.stat().st_size
        journal.write(Measured(id="b", observation=observation()))
    data = (tmp_path / "journal.jsonl").read_bytes()
    for length in (whole + 1, (whole + len(data)) // 2, len(data) - 1):
        (tmp_path / "journal.jsonl").write_bytes(data[:length])
        assert set(read_journal(tmp_path).measured) == {"a"}
        with Journal(tmp_path, manifest()) as journal:
            journal.write(Measured(id="c", observation=observation()))
        assert set(read_journal(tmp_path).measured) == {"a", "c"}


def test_a_run_that_was_killed_before_its_first_line_was_whole_begins_again(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b'{"kind":"run","ru')
    with Journal(tmp_path, manifest()):
        pass
    assert read_journal(tmp_path).manifest == manifest()


def test_what_was_written_before_a_kill_is_there(tmp_path: Path) -> None:
    def write() -> None:
        journal = Journal(tmp_path, manifest())
        for number in range(3):
            journal.write(Measured(id=str(number), observation=observation()))
        die()

    assert in_child(write) == -signal.SIGKILL
    assert set(read_journal(tmp_path).measured) == {"0", "1", "2"}
    with Journal(tmp_path, manifest()) as journal:  # the dead one's lock is gone with it
        journal.write(Measured(id="3", observation=observation()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"identity": {"wheel": "2" * 64}}, "identity wheel"),
        ({"identity": {}}, "identity wheel"),
        ({"options": {"profile": "full"}}, "options profile is demo, not full"),
        ({"server": "elsewhere"}, "server is simulator"),
    ],
)
def test_another_runs_folder_is_refused_and_left_as_it_is(tmp_path, changes, said):
    with Journal(tmp_path, manifest()) as journal:
        journal.write(Measured(id="a", observation=observation()))
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError) as caught:
        Journal(tmp_path, manifest(**changes))
    assert said in caught.value.because
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, manifest()), pytest.raises(BusyError, match="another run"):
        Journal(tmp_path, manifest())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json\n",
        b'{"kind":"note","name":"x","data":{}}\n',
        b'{"kind":"run"}\n',
        b'{"kind":"run","server":"\xff"}\n',
        b'{"kind":"run","more":' + b"[" * 5000 + b"\n",
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(text)
    with pytest.raises(ConfigError, match=r"journal\.jsonl cannot be read"):
        read_journal(tmp_path)


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path, manifest()) as journal:
        journal.write(Noted(name="x", data={}))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"note"', b'"nose"') + b"{}\n")
    with pytest.raises(ConfigError) as caught:
        read_journal(tmp_path)
    assert caught.value.because.startswith("line 2: ")


def test_a_file_that_may_not_grow_leaves_whole_lines_only(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Journal(tmp_path, manifest()) as journal:
            size = journal.path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
            with pytest.raises(StorageError, match="could not be written"):
                journal.write(Measured(id="a", observation=observation()))
            assert journal.path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, kept)
    assert read_journal(tmp_path).measured == {}


def test_keys_tell_cells_and_servers_apart() -> None:
    one = manifest().identity
    keys = {
        cell_id(cell(), one),
        cell_id(cell(), {"wheel": "2" * 64}),
        cell_id(cell("other"), one),
        cell_id(cell(arm="baseline"), one),
        cell_id(cell(boot=1), one),
        cell_id(cell(tags={"cache": "cold"}), one),
        cell_id(cell(load=Load(concurrency=9)), one),
    }
    assert len(keys) == 7
    assert cell_id(cell(), one) == cell_id(cell(), dict(one))


@pytest.mark.parametrize(("number", "error"), [(99, NewerFormatError), (0, ConfigError)])
def test_a_journal_of_another_format_is_refused(tmp_path: Path, number: int, error: type[Exception]) -> None:
    Journal(tmp_path, manifest()).close()
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"format":1', f'"format":{number}'))
    with pytest.raises(error, match=r"journal\.jsonl"):
        read_journal(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_no_journal(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "journal.jsonl")
    with pytest.raises(ConfigError, match=r"journal\.jsonl"):
        read_journal(tmp_path)
    with pytest.raises(ConfigError, match=r"journal\.jsonl"):
        Journal(tmp_path, manifest())
