"""Environments by uv and by pip hold the same packages, and take those that lie below from there."""

import json
import os
import shutil
from pathlib import Path

import pytest
import wheelkit

from sparkwright.base.process import installer, run
from sparkwright.rehearsal import environment
from sparkwright.rehearsal.environment import Requirements, prepare_environment
from sparkwright.store import Store

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


BY_BOTH = pytest.mark.parametrize("installing", ["uv", "pip"], indirect=True)
# That pip installs is shown by the first test; the choice of what to install is not the installer's.
BY_UV = pytest.mark.parametrize(
    "installing", ["uv", pytest.param("pip", marks=pytest.mark.walk)], indirect=True
)


@pytest.fixture
def installing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installer with an index of four packages."""
    folder = tmp_path / "offered"
    pack(folder, "alpha", "1.5", "beta<3", "gamma")
    for version in ("2.0", "2.5", "3.0"):
        pack(folder, "beta", version)
    for version in ("1.0", "2.0"):
        pack(folder, "gamma", version)
    pack(folder, "torch", "9.9")
    for tool in ("UV", "PIP"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # the user's own may pin packages
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    if request.param == "pip":
        for module in (installer, environment):
            monkeypatch.setattr(module, "uv_program", lambda: "")
    elif shutil.which("uv") is None:
        pytest.skip("uv is not here")
    return str(request.param)


@BY_BOTH
@pytest.mark.usefixtures("installing")
def test_a_whole_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "probes_requirements", lambda: "")
    python = prepare_environment(store, Requirements(("alpha", "torch==9.9"), "9.9"))
    found = versions(python)
    assert {name: found[name] for name in ("alpha", "beta", "gamma", "torch")} == {
        "alpha": "1.5", "beta": "2.5", "gamma": "2.0", "torch": "9.9"
    }  # fmt: skip
    assert run([python, "-I", "-c", "import alpha, beta; print(beta.VERSION)"]).text.strip() == "2.5"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for an environment of probes by each installer, which no test changes."""
    return tmp_path_factory.mktemp("below")


@pytest.fixture
def below(installing: str, environments: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of probes, with a version of beta and one of torch."""
    folder = environments / installing
    if not folder.exists():
        installer.make_venv(folder, pip=True)
        installer.install_packages(folder / "bin" / "python", ["beta==2.0", "torch==9.9"])
    monkeypatch.setattr(environment, "probes_requirements", lambda: BELOW)
    monkeypatch.setattr(environment, "prepare_probes", lambda *_, **__: folder / "bin" / "python")
    return folder


@BY_UV
@pytest.mark.usefixtures("below")
def test_what_lies_below_is_not_installed_again(store: Store) -> None:
    python = prepare_environment(store, Requirements(("alpha", "gamma<2", "torch==9.9"), "9.9"))
    own = {path.stem for path in environment.site_packages(python).glob("*.py")}
    assert {"alpha", "gamma"} <= own
    assert not {"beta", "torch"} & own
    found = versions(python)
    assert (found["beta"], found["gamma"], found["torch"]) == ("2.0", "1.0", "9.9")


@BY_UV
@pytest.mark.usefixtures("below")
def test_another_version_than_below_comes_before_it(store: Store) -> None:
    python = prepare_environment(store, Requirements(("beta>=3", "torch==9.9"), "9.9"))
    assert versions(python)["beta"] == "3.0"
    assert run([python, "-I", "-c", "import beta; print(beta.VERSION)"]).text.strip() == "3.0"
