"""Output in an encoding that lacks signs which reports have."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from rich.console import Console
from sparkwright.cli.main import main
main(["--version"])
Console().print("\\N{CHECK MARK} passed")
"""


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"\u2713"), ("latin-1", r"\u2713"), ("utf-8", "\N{CHECK MARK}")]
)
def test_a_sign_that_the_encoding_lacks_is_escaped(encoding: str, shown: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, encoding=encoding, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{shown} passed"), done.stderr
