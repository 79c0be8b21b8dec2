"""The builder works without the libraries of ``verify`` and ``remote``, which say what they lack."""

import subprocess
import sys

from sparkwright.base.errors import ToolError

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
"""
IMPORT_BUILDER = """
import importlib, pkgutil, sparkwright
skipped = ("sparkwright.verify", "sparkwright.probe.child", "sparkwright.__main__")
names = [m.name for m in pkgutil.walk_packages(sparkwright.__path__, "sparkwright.", lambda name: None)]
names = [name for name in names if not name.startswith(skipped)]
assert "sparkwright.merge.engine" in names and len(names) > 100
for name in names:
    importlib.import_module(name)
"""
RUN = "from sparkwright.cli.main import main; sys.exit(main(sys.argv[1:]))"
HEAVY = ("aiohttp", "numpy", "scipy", "cryptography", "obstore")


def python(script, *arguments, missing=HEAVY):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing) + script, *arguments],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_every_module_of_the_builder_is_imported_without_them():
    done = python(IMPORT_BUILDER)
    assert done.returncode == 0, done.stderr[-2000:]


def test_verify_names_what_is_missing(tmp_path):
    done = python(RUN, "verify", "--demo", "--out", str(tmp_path / "run"), missing=("scipy",))
    assert done.returncode == ToolError.exit_code, done.stderr
    assert "scipy" in done.stderr
    assert "numpy" not in done.stderr
    assert "sparkwright[verify]" in done.stderr
    assert not (tmp_path / "run").exists()


def test_serving_needs_a_client_alone(world):
    words = ("serve", "rehearsal-smollm2", "--dry-run")
    done = python(RUN, *words, missing=("numpy", "scipy"))
    assert done.returncode == 0, done.stderr
    done = python(RUN, *words, missing=("aiohttp",))
    assert done.returncode == ToolError.exit_code, done.stderr
    assert "sparkwright[serve]" in done.stderr


def test_a_night_with_a_rehearsal_names_what_is_missing_before_it_begins(world):
    words = ("nightly", "--root", str(world.root), "--history", "none", "--offline")
    done = python(RUN, *words, missing=("aiohttp",))
    assert done.returncode == ToolError.exit_code, done.stderr
    assert "sparkwright[verify]" in done.stderr
    done = python(RUN, *words, "--no-build", missing=("aiohttp",))
    assert "sparkwright[verify]" not in done.stderr


def test_a_shared_store_names_what_is_missing(world):
    words = ("wheel", "--root", str(world.root), "--store", "http://127.0.0.1:9")
    done = python(RUN, *words, missing=("cryptography",))
    assert done.returncode == ToolError.exit_code, done.stderr
    assert "cryptography" in done.stderr
    assert "sparkwright[remote]" in done.stderr
