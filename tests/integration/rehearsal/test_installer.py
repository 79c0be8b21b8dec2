"""Environments take packages that lie below from there; without uv none is made."""

import json
import sys
from pathlib import Path

import pytest
import wheelkit

from sparkwright.base.errors import ToolError
from sparkwright.base.process import run as installer
from sparkwright.base.process.run import run
from sparkwright.rehearsal import tree
from sparkwright.rehearsal.tree import Requirements, prepare_environment
from sparkwright.store.paths import Store

BELOW = "beta==2.0\ntorch==9.9\n"
_VERSIONS = (
    "import json; from importlib.metadata import distributions; "
    # Those in front count: packages of the environment below come after its own.
    "found = [(one.metadata['Name'], one.version) for one in distributions()]; "
    "print(json.dumps(dict(reversed(found))))"
)


def versions(python: Path) -> dict[str, str]:
    """The version of every package in the environment of *python*."""
    found: dict[str, str] = json.loads(run([python, "-I", "-c", _VERSIONS]).text)
    return found


def pack(folder: Path, name: str, version: str, *requires: str) -> Path:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    return wheelkit.pack(folder / f"{name}-{version}-py3-none-any.whl", wheelkit.with_record(files, info))


@pytest.fixture
def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installer with an index of four packages."""
    folder = tmp_path / "offered"
    pack(folder, "alpha", "1.5", "beta<3", "gamma")
    for version in ("2.0", "2.5", "3.0"):
        pack(folder, "beta", version)
    for version in ("1.0", "2.0"):
        pack(folder, "gamma", version)
    pack(folder, "torch", "9.9")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))


@pytest.mark.usefixtures("installing")
def test_a_whole_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "probes_requirements", lambda: "")
    python = prepare_environment(store, Requirements(("alpha", "torch==9.9"), "9.9"))
    found = versions(python)
    assert {name: found[name] for name in ("alpha", "beta", "gamma", "torch")} == {
        "alpha": "1.5", "beta": "2.5", "gamma": "2.0", "torch": "9.9"
    }  # fmt: skip
    assert run([python, "-I", "-c", "import alpha, beta; print(beta.VERSION)"]).text.strip() == "2.5"


@pytest.fixture
def below(installing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of probes, with a version of beta and one of torch."""
    folder = tmp_path / "below"
    installer.make_venv(folder)
    installer.install_packages(folder / "bin" / "python", ["beta==2.0", "torch==9.9"])
    monkeypatch.setattr(tree, "probes_requirements", lambda: BELOW)
    monkeypatch.setattr(tree, "prepare_probes", lambda *_, **__: folder / "bin" / "python")
    return folder


@pytest.mark.usefixtures("below")
def test_what_lies_below_is_not_installed_again(store: Store) -> None:
    python = prepare_environment(store, Requirements(("alpha", "gamma<2", "torch==9.9"), "9.9"))
    own = {path.stem for path in tree.site_packages(python).glob("*.py")}
    assert {"alpha", "gamma"} <= own
    assert not {"beta", "torch"} & own
    found = versions(python)
    assert (found["beta"], found["gamma"], found["torch"]) == ("2.0", "1.0", "9.9")


@pytest.mark.usefixtures("below")
def test_another_version_than_below_comes_before_it(store: Store) -> None:
    python = prepare_environment(store, Requirements(("beta>=3", "torch==9.9"), "9.9"))
    assert versions(python)["beta"] == "3.0"
    assert run([python, "-I", "-c", "import beta; print(beta.VERSION)"]).text.strip() == "3.0"


def test_without_uv_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="uv was not found") as caught:
        installer.make_venv(tmp_path / "made")
    assert caught.value.next_step == "pip install uv"
