"""A script of the experiments that SIGTERM ends leaves no engine on the card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from world import ended, wait_until

GPU = Path(__file__).parents[1] / "gpu"
SCRIPT = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pair.sessions import engines_end_on_sigterm
from serve_pair import run_engine
folder, how = Path(sys.argv[1]), sys.argv[2]
def run(name):
    run_engine("engine_of_the_test", folder / name, folder / (name + ".log"), dict(os.environ), 300)
    (folder / "after").touch()
if how == "alone":
    run("one")
else:
    with engines_end_on_sigterm(), ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ["one", "two", "three"]))
(folder / "after").touch()
"""


@pytest.mark.parametrize(("how", "engines"), [("alone", ["one"]), ("pool", ["one", "two"])])
def test_sigterm_ends_a_script_with_its_engines(tmp_path: Path, how: str, engines: list[str]) -> None:
    (tmp_path / "engine_of_the_test.py").write_text(
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '300']).pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(GPU), str(tmp_path)])
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": path},
    )
    logs = [tmp_path / f"{name}.log" for name in engines]
    try:
        assert wait_until(lambda: all(log.is_file() and log.read_text().endswith("\n") for log in logs))
    finally:
        script.terminate()
    assert script.wait(60) == 143
    assert all(wait_until(lambda log=log: ended(int(log.read_text()))) for log in logs)
    assert not (tmp_path / "after").exists(), "a killed engine is no outcome"
    assert not (tmp_path / "three.log").exists(), "no engine is begun"


FAKE_MODELS = """
import sys, types
def fake_models():
    made = types.ModuleType("pair.models")
    made.write_models = lambda folder: (folder, folder)
    sys.modules["pair.models"] = made
"""
PARTS = """
import os, sys
from pathlib import Path
from world_of_models import fake_models
fake_models()
from nvfp4.serve import processes
folder, names = Path(sys.argv[1]), sys.argv[2:]
if names == ["outer"]:
    words = [sys.executable, __file__, str(folder), "one", "two", "three"]
else:
    words = [sys.executable, "-m", "engine_of_the_test"]
processes({name: (words, dict(os.environ)) for name in names}, folder, 2, 300)
(folder / "after").touch()
"""
ENGINE = """
import os, subprocess, sys, time
print(subprocess.Popen(["sleep", "300"]).pid, flush=True)
time.sleep(300)
"""


def end_by_sigterm(folder: Path, script: str, logs: list[Path], *words: str) -> list[int]:
    """Run *script* until each of *logs* names a process, end it by SIGTERM, and return these processes."""
    (folder / "script.py").write_text(script)
    (folder / "world_of_models.py").write_text(FAKE_MODELS)
    path = os.pathsep.join([str(GPU), str(folder)])
    child = subprocess.Popen(
        [sys.executable, str(folder / "script.py"), str(folder), *words],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert wait_until(lambda: all(log.is_file() and log.read_text().endswith("\n") for log in logs))
    finally:
        child.terminate()
    assert child.wait(60) == 143
    return [int(log.read_text().split()[0]) for log in logs]


@pytest.mark.parametrize("names", [["one", "two", "three"], ["outer"]], ids=["engines", "a part's engines"])
def test_sigterm_ends_the_engines_of_nvfp4(tmp_path: Path, names: list[str]) -> None:
    """Parts of `nvfp4_kv.py` are processes that start engines themselves, each in its own session."""
    (tmp_path / "engine_of_the_test.py").write_text(ENGINE)
    engines = end_by_sigterm(tmp_path, PARTS, [tmp_path / "one.log", tmp_path / "two.log"], *names)
    assert all(wait_until(lambda one=one: ended(one)) for one in engines)
    assert not (tmp_path / "after").exists(), "a killed engine is no outcome"
    assert not (tmp_path / "three.log").exists(), "no engine is begun"
