"""The safety net names what is planted, is silent on what is the same, and accepts what is listed."""

import copy
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from safety_net import __main__ as net
from safety_net import items
from safety_net.differences import _NAMES, Accepted, Difference, differences

SCRIPTS = net.ROOT / "scripts"


def recorded(name: str) -> Any:
    return json.loads(lzma.decompress((net.NET / f"{name}.json.xz").read_bytes()))


def plant(value: Any) -> str:
    """Change the first value in *value* that is no container and names no entry; return its name."""
    keys = sorted({*value} - {*_NAMES}) if isinstance(value, dict) else range(len(value))
    for key in keys:
        below = value[key]
        if isinstance(below, (dict, list)):
            if below and (name := plant(below)):
                return f"{key}/{name}" if isinstance(value, dict) else name
        elif below not in {None, ""} and isinstance(value, dict):
            value[key] = below + 1 if isinstance(below, (int, float)) else f"{below} planted"
            return str(key)
        elif isinstance(value, list) and below:
            value[key] = f"{below} planted"
            return f"{key:03}"
    return ""


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in net.NET.glob("*.json.xz")))
def test_what_is_planted_into_a_record_is_named_and_nothing_else(name: str) -> None:
    before = dict([*recorded(name).items()][:2])
    after = copy.deepcopy(before)
    assert [*differences(name, before, after)] == []
    place = plant(after)
    (found,) = differences(name, before, after)
    first, last = f"{name}/{place}".split("/", 2)[1], place.rpartition("/")[2]
    assert found.name.startswith(f"{name}/{first}")
    assert last in found.name
    assert "planted" in str(found) or isinstance(found.after, (int, float))


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({"a": 0.1 + 0.2}, {"a": 0.3}, []),
        ({"a": 1.0}, {"a": 1.0 + 1e-8}, ["x/a"]),
        ({"a": True}, {"a": 1}, ["x/a"]),
        ({"a": 1}, {}, ["x/a"]),
        ({}, {"a": None}, ["x/a"]),
        ({"a": {}}, {"a": []}, ["x/a"]),
        ([{"name": "b", "v": 1}, {"name": "c", "v": 2}], [{"name": "c", "v": 3}],
         ["x/(order)", "x/b", "x/c/v"]),
        ([1, 2], [2], ["x/000", "x/001"]),
    ],
)  # fmt: skip
def test_each_value_that_differs_has_a_name(before: Any, after: Any, names: list[str]) -> None:
    assert [one.name for one in differences("x", before, after)] == names


def test_what_is_listed_is_accepted_and_an_entry_for_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(
        '[[accepted]]\nnames = ["codes/Old*"]\nreason = "gone"\n'
        '[[accepted]]\nnames = ["index/x"]\nreason = "none"\n'
    )
    accepted = Accepted.read(path)
    found = [Difference("codes/OldError", 1, 2), Difference("codes/NewError", 1, 2)]
    assert [one.name for one in accepted.take(found)] == ["codes/NewError"]
    assert accepted.used["codes/Old*"] == 1
    assert accepted.unused(["codes"]) == []
    assert accepted.unused(["codes", "index"]) == ["index/x"]
    path.write_text('[[accepted]]\nnames = ["x/*"]\nwords = ["go on", "begin"]\nreason = "renamed"\n')
    found = [Difference("x/a", "then go on", "then begin"), Difference("x/b", "then go on", "begin")]
    assert [one.name for one in Accepted.read(path).take(found)] == ["x/b"]
    path.write_text('[[accepted]]\nnames = ["codes/Old*"]\nreason = " "\n')
    with pytest.raises(SystemExit, match="reason is missing"):
        Accepted.read(path)


def compared(folder: Path, value: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = net._compare([("codes", value)], folder, most=5)
    return status, capsys.readouterr().out


def test_a_comparison_ends_by_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"AError": 10, "BError": 11}
    assert net._record([("codes", before)], tmp_path) == 0
    assert compared(tmp_path, before, capsys) == (
        0,
        "codes: 25 bytes, 84 compressed\n== codes: 0 differences, 0 accepted\n",
    )
    status, said = compared(tmp_path, {"AError": 10, "BError": 12}, capsys)
    assert (status, said.splitlines()[0]) == (1, "codes/BError: 11 -> 12")
    (tmp_path / "accepted.toml").write_text('[[accepted]]\nnames = ["codes/B*"]\nreason = "twelve codes"\n')
    status, said = compared(tmp_path, {"AError": 10, "BError": 12}, capsys)
    assert (status, "accepted 1 of codes/B*: twelve codes" in said) == (0, True)
    status, said = compared(tmp_path, before, capsys)
    assert (status, "nothing matches codes/B*" in said) == (1, True)


def test_an_item_that_breaks_is_one_difference(tmp_path, capsys, monkeypatch):
    def broken(_: Path) -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'moved'")

    monkeypatch.setitem(net.ITEMS, "codes", broken)
    net._item("codes", tmp_path)
    found = json.loads((tmp_path / "item.json").read_text())
    assert net._record([("codes", found)], tmp_path) == 1
    assert not (tmp_path / "codes.json.xz").exists(), "a failure is never the record"
    net._record([("codes", {"AError": 10})], tmp_path)
    capsys.readouterr()
    status, said = compared(tmp_path, found, capsys)
    assert status == 1
    assert said.count("codes/(failed)") == 1
    assert "No module named 'moved'" in said


def test_a_code_that_is_planted_in_the_product_is_found(monkeypatch, tmp_path):
    from sparkwright.base.errors import FetchError

    monkeypatch.setattr(FetchError, "exit_code", 99)
    found = [one.name for one in differences("codes", recorded("codes"), items.codes(tmp_path))]
    assert "codes/FetchError" in found


def test_an_item_of_its_own_process_agrees_with_its_record(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "safety_net"), "compare", "--only", "bisection"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("== bisection: 0 differences, "), done.stdout
