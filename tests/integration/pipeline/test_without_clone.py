"""The project's own wheel, installed and run in an empty folder, with the data that it contains."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_kit import ChannelWorld, small_wheel
from command import SEVERAL

from sparkwright import __version__
from sparkwright.pipeline.checkout import open_checkout

ROOT = Path(__file__).parents[3]
MOST_MB = 3.0
WRITERS = (
    ("carry", "edit", "tree"),
    ("carry", "new", "mine", "--pull", "1"),
    ("carry", "prove"),
    ("carry", "refresh", "uma-clamp"),
    ("carry", "prove", "--upstream-tests"),
    ("lock", "bump", "0.99.0"),
    ("lock", "runtime"),
    ("nightly",),
    ("patchset", "bump"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built by the back end that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("built")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return folder / f"sparkwright-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with that wheel by pip, which compiles probes too, and the libraries of this one."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    places = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # A folder on the path, not a site folder: the link to the clone in it is not followed.
    (places / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    words = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True)
    return folder / "bin" / "sparkwright"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def call(program: Path, folder: Path, *words: str | Path, told: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARKWRIGHT_HOME": str(folder.parent / "store")}
    return subprocess.run(
        [program, *words],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        input=told,
    )


def good(program: Path, folder: Path, *words: str | Path) -> str:
    done = call(program, folder, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def call_each(program: Path, folder: Path, *commands: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """Status, output and errors of each command, in one process of the environment: it imports all once."""
    lines = "".join(f"{json.dumps(words)}\n" for words in commands)
    done = call(program.with_name("python"), folder, "-c", SEVERAL, told=lines)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        status, out, err = json.loads(line)
        yield status, out, err


def test_the_wheel_is_small_and_its_data_is_that_of_the_clone(wheel: Path, program: Path) -> None:
    assert wheel.stat().st_size < MOST_MB * 1e6
    (project,) = program.parents[1].glob("lib/python*/site-packages/sparkwright/project")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "carries", "patchsets", "upstream.lock"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, tracked.stdout.split("\0")):
        assert (project / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert list(project.glob("carries/*/__pycache__")), "pip compiled the probes"
    for series in ("0.24", "0.33"):
        specs = [open_checkout(root, series).build_spec() for root in (ROOT, project)]
        assert specs[0].digest == specs[1].digest


def test_what_is_served_and_shown_in_an_empty_folder(program: Path, empty: Path) -> None:
    assert "rehearsal:smollm2" in good(program, empty, "serve", "rehearsal-smollm2", "--dry-run")
    recipes, companions, carry, doctor, start = call_each(
        program, empty, ("recipe", "list"), ("companion", "--dry-run", "--json", "--series", "0.24"),
        ("carry", "show", "uma-clamp"), ("doctor", "--json", "--offline"),
        ("doctor", "rehearsal-smollm2", "--json"),
    )  # fmt: skip
    assert (recipes[0], companions[0], carry[0]) == (0, 0, 0), (recipes, companions, carry)
    assert json.loads(companions[1])
    assert carry[1].startswith("uma-clamp: ")
    assert {one["what"] for one in json.loads(doctor[1])} >= {"git", "disk"}
    assert json.loads(start[1]), start
    assert sorted(path.name for path in empty.iterdir()) == [".sparkwright"], "the event log alone"


def test_a_wheel_here_is_served_with_the_runtime_of_its_series(program: Path, empty: Path) -> None:
    version, machine = "0.24.0+spark.5", platform.machine()
    small_wheel(empty / "dist", version, tag=f"cp38-abi3-manylinux_2_28_{machine}")
    words = ("serve", "qwen3.6-27b-dflash", "--series", "0.24", "--dry-run", "--json")
    plan = json.loads(good(program, empty, *words))
    assert plan["wheel"].startswith(f"vllm-{version}")
    for one in (empty / "dist").iterdir():
        one.unlink()
    assert "made first with upstream's kernels" in json.loads(good(program, empty, *words))["chosen"]


def test_a_channel_is_shown(program: Path, empty: Path, tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path / "channel")
    world.promote("0.24.0+spark.1")
    shown = good(program, empty, "channel", "show", "nightly", "--target", world.published.as_uri())
    assert "0.24.0+spark.1" in shown


def test_what_asks_releases_begins(program: Path, empty: Path) -> None:
    """Without network and store they get as far as the first file of upstream's."""
    commands = ("recipe", "check", "rehearsal-smollm2"), ("rehearse",), ("wheel", "--plan")
    *asking, (_, planned, wrong) = call_each(program, empty, *((*words, "--offline") for words in commands))
    locked = tomllib.loads((ROOT / "upstream.lock").read_text())
    assert f"vllm {locked['release']['version']}" in planned, wrong
    for _, _, errors in asking:
        assert "not in a checkout" not in errors
        assert "the network is off" in errors


def test_what_writes_to_a_clone_names_it(program: Path, empty: Path) -> None:
    ended = call_each(program, empty, *((*words, "--offline") for words in WRITERS))
    for words, (status, _, errors) in zip(WRITERS, ended, strict=True):
        assert status == 10, (words, errors)
        assert "is not in a checkout" in errors, words
        assert "the command writes to a clone" in " ".join(errors.split()), words
        assert "git clone https://github.com/sparkwright/sparkwright" in " ".join(errors.split()), words
    assert not list(empty.iterdir())
