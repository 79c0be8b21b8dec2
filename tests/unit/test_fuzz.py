"""`make fuzz`: each parser takes its whole inputs, and a parser that fails in a way of its own is a find."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"


@pytest.mark.parametrize(("more", "status", "said"), [((), 0, ", 0 finds"), (("--plant",), 1, "KeyError")])
def test_a_planted_fault_is_found_and_a_healthy_parser_is_not(
    more: tuple[str, ...], status: int, said: str
) -> None:
    words = [sys.executable, SCRIPT, "--only", "patch", "--cases", "200", *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout) == (status, True), done.stderr
