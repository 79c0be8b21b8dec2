"""The shape of the code, held by tests; each rule is shown to fire on a planted fault."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "build" / "sparkwright"
MOST_LINES = 500


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def rooms_below_cli() -> list[Path]:
    outside = (PACKAGE / "cli", PACKAGE / "probe" / "child")  # the child is a program of its own
    return [
        path
        for path in sources("build")
        if path != PACKAGE / "__main__.py" and not any(path.is_relative_to(folder) for folder in outside)
    ]


# Layers ------------------------------------------------------------------------------------


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contract of pyproject.toml on the package in *folder*."""
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "build"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "build" / "sparkwright", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_rooms_import_downwards_only(copied: Path) -> None:
    done = lint(copied)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_upward_import_fires(copied: Path) -> None:
    with (copied / "build" / "sparkwright" / "git" / "refs.py").open("a") as stream:
        stream.write("\n\ndef late():\n    from sparkwright.merge import engine\n    return engine\n")
    done = lint(copied)
    assert done.returncode == 1
    assert "sparkwright.git.refs -> sparkwright.merge" in done.stdout


def test_a_room_without_a_place_fires(copied: Path) -> None:
    (copied / "build" / "sparkwright" / "attic.py").write_text('"""Belongs nowhere."""\n')
    done = lint(copied)
    assert done.returncode == 1
    assert "attic" in done.stdout


def test_the_architecture_page_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    rooms -= {"__init__", "__main__", "__pycache__"}
    assert {room for room in rooms if f"`{room}`" not in text} == set()


# Size --------------------------------------------------------------------------------------


def too_long(paths: list[Path]) -> list[str]:
    return [path.name for path in paths if len(path.read_text().splitlines()) > MOST_LINES]


def test_no_file_is_too_long(tmp_path: Path) -> None:
    found = sources("build", "tests", "scripts", "carries", "ci")
    assert len(found) > 50
    assert too_long(found) == []
    long, short = tmp_path / "long.py", tmp_path / "short.py"
    long.write_text("\n" * 501)
    short.write_text("\n" * 500)
    assert too_long([long, short]) == ["long.py"]


# What a room may do ------------------------------------------------------------------------


STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def prints(source: str) -> Iterator[int]:
    """Lines that print, or reach for a standard stream to do so."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id="print"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in STREAMS:
                yield node.lineno
            case ast.ImportFrom(module="sys" | "rich") if {a.name for a in node.names} & {*STREAMS, "print"}:
                yield node.lineno


def test_nothing_below_the_command_line_prints() -> None:
    paths = rooms_below_cli()
    assert PACKAGE / "merge" / "engine.py" in paths
    assert {
        path.name: list(prints(path.read_text())) for path in paths if list(prints(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    "planted",
    [
        "print('x')",
        "import sys\nsys.stdout.write('x')",
        "import sys\ndef f(to=sys.stderr): ...",
        "from sys import stdout",
        "from rich import print",
        "show = print",
    ],
)
def test_a_planted_print_fires(planted: str) -> None:
    assert list(prints(planted))


@pytest.mark.parametrize(
    "healthy", ["'print(1)'", "done.stdout", "import sys\nsys.argv", "def printed(): ..."]
)
def test_a_healthy_twin_does_not(healthy: str) -> None:
    assert not list(prints(healthy))


STARTERS = {"subprocess", "multiprocessing", "pty", "popen2"}
CALLS = re.compile(
    r"^(system|popen|exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|fork|forkpty|create_subprocess_\w+)$"
)


def starts_programs(source: str) -> Iterator[int]:
    """Lines that could start a program other than through `sparkwright.process`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import() if {a.name.partition(".")[0] for a in node.names} & STARTERS:
                yield node.lineno
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in STARTERS:
                yield node.lineno
            case ast.ImportFrom(module="os" | "asyncio") if any(CALLS.match(a.name) for a in node.names):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="os" | "asyncio"), attr=name) if CALLS.match(name):
                yield node.lineno
            case ast.keyword(arg="shell"):
                yield node.value.lineno


def test_programs_are_started_in_one_place() -> None:
    found = {path for path in sources("build") if list(starts_programs(path.read_text()))}
    programs_of_their_own = {PACKAGE / "guard.py", PACKAGE / "probe" / "child" / "buildkit.py"}
    assert found == {PACKAGE / "process.py", *programs_of_their_own}


@pytest.mark.parametrize(
    "planted",
    [
        "import subprocess",
        "def f():\n    from subprocess import run",
        "import os\nos.system('x')",
        "import os\nos.execv('x', [])",
        "from os import popen",
        "import multiprocessing.pool",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "run(['x'], shell=True)",
    ],
)
def test_a_planted_start_of_a_program_fires(planted: str) -> None:
    assert list(starts_programs(planted))


@pytest.mark.parametrize(
    "healthy",
    ["from sparkwright.process import run\nrun(['x'])", "import os\nos.path.join('a')", "'subprocess'"],
)
def test_a_healthy_use_of_the_process_room_does_not(healthy: str) -> None:
    assert not list(starts_programs(healthy))


GIT_LIBRARIES = {"git", "gitdb", "pygit2", "dulwich"}


def runs_git(source: str) -> Iterator[int]:
    """Lines with an argument list that begins with git, or that import a git library."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.List(elts=[ast.Constant(value="git"), *_])
                | ast.Tuple(elts=[ast.Constant(value="git"), _, *_], ctx=ast.Load())
            ):
                yield node.lineno
            case ast.Call(func=ast.Name(id="which"), args=[ast.Constant(value="git"), *_]):
                yield node.lineno
            case ast.Import() if {a.name.partition(".")[0] for a in node.names} & GIT_LIBRARIES:
                yield node.lineno
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in GIT_LIBRARIES:
                yield node.lineno


def test_git_is_run_in_its_room_only() -> None:
    found = {path for path in sources("build") if list(runs_git(path.read_text()))}
    assert PACKAGE / "git" / "repository.py" in found
    assert {path for path in found if not path.is_relative_to(PACKAGE / "git")} == set()


@pytest.mark.parametrize(
    "planted",
    [
        "run(['git', 'log'])",
        "import git",
        "from git import Repo",
        "which('git')",
        "command = ('git', x)",
        "import gitdb.db",
    ],
)
def test_a_planted_git_fires(planted: str) -> None:
    assert list(runs_git(planted))


@pytest.mark.parametrize(
    "healthy",
    [
        "from sparkwright.git import fetch",
        "x = 'git'",
        "run(['got', 'git'])",
        "store.git",
    ],
)
def test_a_healthy_mention_of_git_does_not(healthy: str) -> None:
    assert not list(runs_git(healthy))


# What the repository says ------------------------------------------------------------------


def registry_hosts() -> tuple[bytes, ...]:
    """Hosts of the package index, as the libraries that ask it know them: no file of ours may name one."""
    from pip._internal.models.index import PyPI, TestPyPI
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    found = {PyPI.netloc, PyPI.file_storage_domain, TestPyPI.netloc, urlsplit(PYPI_SIMPLE_ENDPOINT).netloc}
    return tuple(host.encode() for host in sorted(found))


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:  # an unpacked sdist
        return [path for path in ROOT.rglob("*") if path.is_file()]
    return [
        ROOT / name.decode()
        for name in listed.stdout.split(b"\0")
        if name and (ROOT / name.decode()).is_file()
    ]


def naming_a_host(paths: Iterable[Path]) -> list[Path]:
    hosts = registry_hosts()
    return [path for path in paths if any(host in path.read_bytes() for host in hosts)]


def test_no_file_names_a_registrys_host() -> None:
    paths = tracked()
    assert len(paths) > 50
    assert naming_a_host(paths) == []


def test_a_planted_host_fires(tmp_path: Path) -> None:
    planted, healthy = tmp_path / "planted", tmp_path / "healthy"
    healthy.write_bytes(b"the package index; https://host.example/simple; pypi_simple")
    for host in registry_hosts():
        planted.write_bytes(b"https://" + host + b"/simple")
        assert naming_a_host([planted, healthy]) == [planted]
