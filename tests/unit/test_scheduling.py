"""Test runs in which a worker of pytest crashes."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SHARED = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("shared", {str(TESTS / "conftest.py")!r})
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
pytest_xdist_make_scheduler = shared.pytest_xdist_make_scheduler
"""
TEST = """
import os, pathlib, time, pytest
crashed = pathlib.Path(__file__).parents[1] / "crashed"

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    time.sleep(0.02)
    if {crashes} and number == 4 and not crashed.exists():
        crashed.touch()
        os._exit(1)
"""


def test_a_run_ends_though_a_worker_crashed_that_had_finished_files(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SHARED)
    (tmp_path / "unit").mkdir()
    for number in range(12):
        (tmp_path / f"unit/test_{number:02}.py").write_text(TEST.format(crashes=number == 8))
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "support")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert re.search(r"1 failed, 96 passed", ran.stdout), ran.stdout + ran.stderr
