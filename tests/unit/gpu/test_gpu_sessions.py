"""A script of the experiments that SIGTERM ends leaves no engine on the card."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killed import stopped
from world import ended

GPU = Path(__file__).parents[2] / "gpu"
STARTED = re.compile(r"\n\n\d+\n$")  # below the command line
SCRIPT = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pair.sessions import run_engine
folder, how = Path(sys.argv[1]), sys.argv[2]
def run(name):
    run_engine("engine_of_the_test", {}, folder / (name + ".log"), dict(os.environ), 300)
    (folder / "after").touch()
if how == "alone":
    run("one")
else:
    with ThreadPoolExecutor(2) as pool:
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
    ran = stopped(
        script, signal.SIGTERM, lambda: all(log.is_file() and STARTED.search(log.read_text()) for log in logs)
    )
    assert ran.status == -signal.SIGTERM
    assert all(ended(int(log.read_text().split()[-1])) for log in logs)
    assert not (tmp_path / "after").exists(), "a killed engine is no outcome"
    assert not (tmp_path / "three.log").exists(), "no engine is begun"
