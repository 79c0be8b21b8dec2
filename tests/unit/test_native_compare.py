"""The comparison of natively compiled kernels with upstream's: what counts as the same, and as a fault."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import native_compare
from native_compare import Start


def answer(*tokens: int) -> dict[str, Any]:
    """Tokens, each with a rival (100 more) that is 0.01 nats less likely, and one that is 3 nats less."""
    best = [{str(one): -2.0, str(one + 100): -2.01, str(one + 200): -5.0} for one in tokens]
    return {"tokens": list(tokens), "best": best}


ANSWERS = [answer(1, 2, 3), answer(4, 5, 6)]


def test_equal_answers_do_not_differ() -> None:
    assert native_compare.differences(ANSWERS, copy.deepcopy(ANSWERS)) == []
    assert native_compare.same(ANSWERS, copy.deepcopy(ANSWERS)) == 2


def test_a_near_tie_may_go_either_way_and_ends_the_comparison() -> None:
    other = copy.deepcopy(ANSWERS)
    other[0]["tokens"][1:] = [102, 999]
    assert native_compare.differences(ANSWERS, other) == []
    assert native_compare.same(ANSWERS, other) == 1


@pytest.mark.parametrize("token", [202, 777])
def test_another_token_that_is_no_near_tie_is_a_fault(token: int) -> None:
    other = copy.deepcopy(ANSWERS)
    other[0]["tokens"][1] = token
    (found,) = native_compare.differences(ANSWERS, other)
    assert found.startswith(f"request 0, token 1: 2 and {token}, ")


def test_log_probabilities_that_drift_are_a_fault_with_the_same_tokens() -> None:
    other = copy.deepcopy(ANSWERS)
    other[1]["best"][2]["6"] = -2.2
    assert native_compare.differences(ANSWERS, other) == ["request 1, token 2: 6 and 6, 0.200 nats apart"]
    other[1]["best"][2]["6"] = float("nan")
    assert native_compare.differences(ANSWERS, other) == ["request 1, token 2: 6 and 6, nan nats apart"]


def test_missing_answers_are_a_fault() -> None:
    assert native_compare.differences(ANSWERS, ANSWERS[:1]) == ["2 and 1 answers"]
    assert native_compare.differences([], []) == ["0 and 0 answers"]
    assert native_compare.differences(ANSWERS, [answer(1, 2), ANSWERS[1]]) == ["request 0: 3 and 2 tokens"]


def starts(upstream: int, native: int) -> list[Start]:
    return [
        Start("stock", "cold", 30.0, 250.0, 3, upstream),
        Start("native", "cold", 30.0, 35.0, 0, native),
        Start("native", "warm", 30.0, 35.0, 9, 999),
    ]


def failed(some: list[Start]) -> list[str]:
    return [check.name for check in native_compare.start_checks("stock", "native", some) if not check.ok]


def test_a_driver_that_compiles_for_upstream_alone_is_what_is_wanted() -> None:
    assert failed(starts(5_000_000, 0)) == []


def test_native_kernels_that_the_driver_compiles_are_a_fault() -> None:
    assert failed(starts(5_000_000, 1)) == ["the driver compiled none of native"]


def test_nothing_compiled_at_all_shows_nothing() -> None:
    assert failed(starts(0, 0)) == ["the driver compiled kernels of stock"]
    assert failed(starts(5, 0)[1:]) == ["start"]


def test_the_driver_s_cache_is_counted_with_its_folders(tmp_path: Path) -> None:
    assert native_compare.compiled(tmp_path) == (0, 0)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "kernel").write_bytes(b"12345")
    (tmp_path / "index").write_bytes(b"12")
    assert native_compare.compiled(tmp_path) == (2, 7)


def test_the_rates_are_compared_with_the_same_attention(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run(command: list[str]) -> int:
        asked.append(command)
        return 1

    monkeypatch.setattr(native_compare, "run", run)
    args = SimpleNamespace(
        tree=["a=/a", "b=/b"],
        out=tmp_path,
        runner="v2",
        levels=["8"],
        rounds="4",
        seconds=9,
        flash_attention=2,
    )
    assert not native_compare.rates(args).ok  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", asked[0][1:])
    parsed = native_compare_rates_arguments()
    assert parsed.tree == ["a=/a", "b=/b"]
    assert parsed.engine == native_compare.options(2)
    assert (parsed.runs, parsed.levels, parsed.rounds) == (["v2-graphs"], [8], 4)


def native_compare_rates_arguments() -> Any:
    """What `compare_rates.py` makes of the command line: the two scripts must agree."""
    import compare_rates

    return compare_rates.arguments()


def test_an_engine_that_fails_is_a_failed_check_and_the_others_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def begin(name: str, *_: Any) -> Any:
        if name == "native":
            raise ValueError("native: no result")
        return Start(name, "cold", 1.0, 2.0, 1, 1), ANSWERS

    monkeypatch.setattr(native_compare, "start", begin)
    command = ["native_compare.py", "--tree", "stock=/a", "--tree", "native=/b", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--only", "start", "outputs"])
    assert native_compare.main() == 1
    report = json.loads((tmp_path / "report.json").read_text())
    wrong = [check["name"] for check in report["checks"] if not check["ok"]]
    assert wrong == ["native, cold", "native, warm", "start", "outputs"]
