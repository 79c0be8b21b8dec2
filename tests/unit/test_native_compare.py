"""The comparison of natively compiled kernels with upstream's: what counts as the same, and as a fault."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
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
        Start("stock", "cold", 30.0, 150.0, 250.0, 3, upstream, ("_Z5splitv",), (2,)),
        Start("native", "cold", 30.0, 35.0, 36.0, 0, native, ("_Z3oddv",) if native else (), (2,)),
        Start("native", "warm", 30.0, 35.0, 36.0, 9, 999, (), (2,)),
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
    asked, caches = [], []

    def run(command: list[str], env: dict[str, str]) -> int:
        asked.append(command)
        caches.append(env["CUDA_CACHE_PATH"])
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
        caches=tmp_path / "caches",
    )
    assert not native_compare.rates(args).ok  # type: ignore[arg-type]
    assert caches == [str(tmp_path / "caches" / "driver-a")]
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
        return Start(name, "cold", 1.0, 2.0, 3.0, 1, 1, (), (2,)), ANSWERS

    monkeypatch.setattr(native_compare, "start", begin)
    command = ["native_compare.py", "--tree", "stock=/a", "--tree", "native=/b", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--only", "start", "outputs"])
    assert native_compare.main() == 1
    report = json.loads((tmp_path / "report.json").read_text())
    wrong = [check["name"] for check in report["checks"] if not check["ok"]]
    assert wrong == ["native, cold", "start", "outputs"]


def test_kernels_are_named_that_the_driver_compiled(tmp_path: Path) -> None:
    assert native_compare.kernels(tmp_path) == ()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"\x7fELF\0.text._Z5splitv\0.nv.info._Z5splitv\0.text._Z3oddv\0")
    (tmp_path / "index").write_bytes(b"\0\1")
    assert native_compare.kernels(tmp_path) == ("_Z3oddv", "_Z5splitv")
    (fault,) = [one for one in native_compare.start_checks("stock", "native", starts(5, 1)) if not one.ok]
    assert fault.detail == "0 files, 1 bytes _Z3oddv"


def test_layers_tell_which_flash_attention_they_have() -> None:
    def layer(version: int | None) -> Any:
        return SimpleNamespace(impl=SimpleNamespace(vllm_flash_attn_version=version))

    layers = {"a": layer(2), "b": layer(None), "c": SimpleNamespace()}
    assert native_compare.attention_versions(layers) == [2]
    assert native_compare.attention_versions({**layers, "d": layer(3)}) == [2, 3]


def test_another_flash_attention_than_was_asked_for_is_a_fault() -> None:
    healthy = starts(5, 0)
    assert native_compare.attention_check(2, healthy).ok
    assert not native_compare.attention_check(3, healthy).ok
    assert not native_compare.attention_check(2, [*healthy, replace(healthy[0], attention=())]).ok
    assert not native_compare.attention_check(2, []).ok


ENGINE = """
import json, os, pathlib, sys
spec = json.loads(sys.argv[2])
cache = pathlib.Path(os.environ["CUDA_CACHE_PATH"])
assert os.environ["PYTHONPATH"].split(os.pathsep)[0] in ("/stock", "/native")
assert os.environ["CUDA_CACHE_MAXSIZE"] == str(4 << 30)
known = (cache / "kernel").exists()
if "/stock" in os.environ["PYTHONPATH"]:
    (cache / "kernel").write_bytes(b".text._Z5splitv")
answers = [{"tokens": [1], "best": [{"1": -2.0}]}]
times = {"boot_s": 1.0, "first_s": 2.0 if known else 90.0, "all_s": 3.0 if known else 200.0}
if "{silent}" not in os.environ["PYTHONPATH"]:
    pathlib.Path(spec["result"]).write_text(json.dumps({**times, "attention": [2], "answers": answers}))
"""


@pytest.mark.parametrize("together", [[], ["--together"]])
def test_starts_run_with_a_cache_of_their_own_that_the_second_round_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, together: list[str]
) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    caches = tmp_path / "caches"
    (caches / "driver-stock").mkdir(parents=True)
    (caches / "driver-stock" / "kernel").write_bytes(b"of an earlier session")
    monkeypatch.setattr(native_compare, "__file__", str(script))
    command = ["native_compare.py", "--tree", "stock=/stock", "--tree", "native=/native"]
    command += [
        "--out",
        str(tmp_path / "out"),
        "--caches",
        str(caches),
        "--only",
        "start",
        "outputs",
        *together,
    ]
    monkeypatch.setattr(sys, "argv", command)
    assert native_compare.main() == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    seen = [(one["tree"], one["round"], one["all_s"], one["bytes"]) for one in report["starts"]]
    assert seen == [
        ("stock", "cold", 200.0, 15),
        ("native", "cold", 200.0, 0),
        ("stock", "warm", 3.0, 15),
        ("native", "warm", 200.0, 0),
    ]
    assert report["starts"][0]["kernels"] == ["_Z5splitv"]


def test_an_engine_that_writes_no_result_is_told_with_what_the_driver_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.replace("{silent}", "/stock"))
    monkeypatch.setattr(native_compare, "__file__", str(script))
    command = ["native_compare.py", "--tree", "stock=/stock", "--tree", "native=/native"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "out"), "--only", "start"])
    assert native_compare.main() == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    fault = next(one for one in report["checks"] if one["name"] == "stock, cold")
    assert "no result within 420 s, 15 bytes compiled by the driver" in fault["detail"]
    assert [one["tree"] for one in report["starts"]] == ["native", "native"]
