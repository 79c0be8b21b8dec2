"""The plan and the judge of the experiment on two cards: planted faults are found, healthy twins pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import two_cards
from two_cards import Case

GPU = Path(__file__).parents[1] / "gpu"
VERSION = "0.33.0+spark.4.0123abcd"
CASE = Case("v2", "nvfp4", windows=True, eager=False)


def args(folder: Path, *words: str, version: str = VERSION) -> Any:
    return two_cards.arguments(["--out", str(folder), "--version", version, *words])


def view(card: str, **changes: Any) -> dict[str, Any]:
    return {**dict.fromkeys(two_cards.ALIKE, "same"), "card": card, **changes}


def test_every_runner_cache_drafter_and_mode_is_a_case() -> None:
    names = [case.name for case in two_cards.cases(VERSION)]
    assert len(names) == len(set(names)) == 16
    assert CASE.name in names
    of_024 = {case.name for case in two_cards.cases("0.24.0+spark.1")}
    assert set(names) - of_024 == {name for name in names if name.startswith("v2-") and "windows" in name}
    assert {case.runner for case in two_cards.cases(VERSION, only=["v2", "nvfp4"], skip=["eager"])} == {"v2"}


def test_an_engine_is_told_of_two_cards_cache_and_windows(tmp_path: Path) -> None:
    spec = two_cards.specification(CASE, args(tmp_path), tmp_path, {"carried": [], "native": []})
    assert (spec["engine"]["tensor_parallel_size"], spec["engine"]["kv_cache_dtype"]) == (2, "nvfp4")
    assert Path(spec["drafter"]).name == "windows"
    plain = two_cards.specification(
        Case("v1", "bf16", windows=False, eager=True), args(tmp_path), tmp_path, {"carried": [], "native": []}
    )
    assert (plain["engine"]["kv_cache_dtype"], Path(plain["drafter"]).name) == ("auto", "drafter")
    json.dumps(spec)


@pytest.mark.parametrize(
    ("others", "wrong"),
    [
        ([view("b")], []),
        ([], ["cards"]),
        ([view("a")], ["cards"]),
        ([view("b", captured=0)], ["alike"]),
        ([view("b"), view("c")], ["cards"]),
    ],
)
def test_two_cards_have_to_boot_alike(others: list[dict[str, Any]], wrong: list[str]) -> None:
    found = two_cards.card_checks({"view": view("a"), "others": others})
    assert [check.name for check in found if not check.ok] == wrong


def test_a_case_that_never_booted_fails(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").touch()
    (tmp_path / f"{CASE.name}.log").write_text("fine")
    failed = [check.name for check in two_cards.judge(CASE, 0, args(tmp_path), None) if not check.ok]
    assert "booted" in failed
    assert {f"c={level}" for level in two_cards.LEVELS} <= set(failed)


def test_what_passed_is_not_run_again_and_all_else_is(tmp_path: Path) -> None:
    asked = args(tmp_path)
    path = tmp_path / "cases" / f"{CASE.name}.json"
    path.parent.mkdir()

    def write(*, ok: bool, digest: str = "d") -> None:
        checks = [{"name": "c=1", "ok": ok, "detail": ""}]
        record = {"key": two_cards.key(CASE, asked, digest), "wheel": digest, "checks": checks}
        path.write_text(json.dumps(record))

    def done(given: Any = asked, digest: str = "d") -> set[str]:
        return {case.name for case, finished in two_cards.plan(given, digest) if finished}

    assert done() == set()
    write(ok=True)
    assert done() == done(digest="") == {CASE.name}
    assert done(digest="other wheel") == set()
    assert done(args(tmp_path, "--levels", "1")) == set()
    write(ok=False)
    assert done() == set()
    path.write_text("{")
    assert done() == done(digest="") == set()


def test_lines_of_an_earlier_attempt_are_dropped(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"run": run, "kind": "level"}) + "\n" for run in ("a", "b", "a")))
    two_cards.drop_lines(lines, "a")
    assert [json.loads(line)["run"] for line in lines.read_text().splitlines()] == ["b"]


def test_the_plan_needs_no_gpu(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--version", VERSION, "--plan", "--only", "v2", "graphs"]
    done = subprocess.run(
        [sys.executable, str(GPU / "two_cards.py"), *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"to do  {case.name}" for case in two_cards.cases(VERSION, only=["v2", "graphs"])
    ]
