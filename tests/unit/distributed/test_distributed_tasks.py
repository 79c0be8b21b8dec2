"""Tasks of units and of runs: their batches, needs and packs, and folders that are none of a task."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.cli.main import main
from sparkwright.git.repository import Repository, open_repository
from sparkwright.git.trees import FileEntry, import_files, unpack_tree
from sparkwright.native.model import Cost, Unit
from sparkwright.pipeline.remote_units import _batches, packed
from sparkwright.store.paths import Store
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.runner import run_task


def test_units_are_sent_in_batches_of_similar_memory() -> None:
    units = [
        Unit(target="_C", source=f"source/{n}", output=str(n), language="CXX", argv=()) for n in range(9)
    ]
    expected = {one.name: Cost(seconds=40.0, mib=1000 * (number % 3)) for number, one in enumerate(units)}
    batches = list(_batches(units, expected))
    assert sorted(one.output for batch in batches for one in batch) == [str(n) for n in range(9)]
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert [{expected[one.name].mib for one in batch} for batch in batches] == [{2000}, {1000}, {0}]


def test_verify_needs_a_gb10_unless_it_is_smaller(store: Store) -> None:
    def needs(**options: Any) -> tuple[str, ...]:
        return run_task(store, VerifyOptions(**options), "run").needs

    assert needs(wheel="vllm.whl", recipe="qwen") == ("gpu", "gb10")
    assert needs(wheel="vllm.whl", recipe="smoke", profile="smoke") == ("gpu",)
    assert needs(simulator=True) == ()


def test_a_pack_holds_its_tree(store: Store, repository: Repository, tmp_path: Path) -> None:
    big = {f"file {number}": FileEntry("100644", bytes([number]) * 5000) for number in range(30)}
    tree = import_files(repository, big.items())
    pack = packed(store, repository, tree)
    assert pack == packed(store, repository, tree)
    assert pack.path == f"packs/{tree}"
    other = open_repository(tmp_path / "other")
    unpack_tree(other, store.file_path(pack.sha256), tree)
    assert other.files(tree).keys() == big.keys()
    other.close()


_TREE = "3" * 40
_RUN = b'{"options":{},"run":"one"}'


@pytest.mark.parametrize(
    ("kind", "request_json", "pack", "why"),
    [
        ("units", None, "", "No such file"),
        ("units", b"{", "", "truncated"),
        ("run", b'{"run":"\xff"}', "", "utf-8"),
        ("run", _RUN, "--help", "40 lower-case hex digits"),
        ("run", _RUN, _TREE, "early EOF"),
        ("run", _RUN, f"{_TREE}/folder", "Is a directory"),
    ],
)
def test_an_odd_folder_of_a_task_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    request_json: bytes | None,
    pack: str,
    why: str,
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "home"))
    if request_json is not None:
        (folder / "request.json").write_bytes(request_json)
    if pack:
        (folder / "packs" / pack).parent.mkdir(parents=True)
        (folder / "packs" / pack).write_bytes(b"junk")
    main(["task", kind])
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert why.lower() in error["because"].lower()
    assert error["kind"] in {"ConfigError", "ClusterError", "RefError"}
    assert "Traceback" not in err
