"""The contracts of pyproject.toml hold, and each fires on a planted fault."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "build" / "sparkwright"


# Layers ------------------------------------------------------------------------------------


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
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


PLANTED = {
    "git.remotes": "merge",
    "verify.measure": "wheel.names",
    "rehearsal.run": "verify.suite",
    "serve.run": "verify.measure",
    "pipeline.state": "pipeline.build",
}


def test_packages_import_downwards_only(copied: Path) -> None:
    done = lint_imports(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    for module, imported in PLANTED.items():
        with (copied / "build" / "sparkwright" / f"{module.replace('.', '/')}.py").open("a") as stream:
            stream.write(f"\n\ndef late():\n    import sparkwright.{imported} as late\n    return late\n")
    done = lint_imports(copied)
    assert done.returncode == 1
    for module, imported in PLANTED.items():
        assert f"sparkwright.{module} -> sparkwright.{imported}" in done.stdout


@pytest.mark.parametrize("place", ["attic.py", "pipeline/attic.py"])
def test_a_package_or_pipeline_module_without_a_layer_fires(copied: Path, place: str) -> None:
    (copied / "build" / "sparkwright" / place).write_text('"""Belongs to no layer."""\n')
    done = lint_imports(copied)
    assert done.returncode == 1
    assert "attic" in done.stdout


# Banned names ------------------------------------------------------------------------------


BANNED = (
    "import subprocess",
    "from subprocess import run",
    "import os; os.system('x')",
    "import os; os.execv('x', [])",
    "import asyncio; asyncio.create_subprocess_exec('x')",
    "import git",
    "from gitdb.base import OStream",
    "print('x')",
    "import sys; sys.stdout.write('x')",
)
HEALTHY = (
    "import os, sys",
    "from sparkwright.git.remotes import fetch",
    "from sparkwright.base.process.run import run",
    "os.path.join('a')",
    "sys.argv",
    "x = 'subprocess'",
    "def printed(): ...",
)


def test_banned_names_fire_and_their_healthy_twins_do_not() -> None:
    """Ruff refuses each of the first lines, as if they stood in the package, and none of the others."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "TID251,T20", "--output-format", "concise",
         "--stdin-filename", str(PACKAGE / "merge/planted.py"), "-"],
        input="\n".join((*BANNED, *HEALTHY)), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if re.search("TID251| T20", line)}
    assert refused == set(range(1, len(BANNED) + 1))
