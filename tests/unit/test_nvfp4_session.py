"""A session on a GPU for an NVFP4 cache: which commands it runs together, and how it judges their ends."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import nvfp4_session as session


@pytest.mark.parametrize(
    ("name", "said", "status", "wrong"),
    [
        ("check", "161 passed", 0, 0),
        ("check", "1 failed", 1, 1),
        ("memcheck-7", "ERROR SUMMARY: 0 errors", 0, 0),
        ("memcheck-7", "ERROR SUMMARY: 3 errors", 0, 1),
        ("memcheck-7", "no summary", 0, 1),
        ("memcheck-planted", "ERROR SUMMARY: 3 errors", 0, 0),
        ("memcheck-planted", "ERROR SUMMARY: 0 errors", 0, 1),
    ],
)
def test_a_command_is_judged_by_its_end_and_memcheck_by_its_tally(name, said, status, wrong, tmp_path):
    command = [sys.executable, "-c", f"print({said!r}); raise SystemExit({status})"]
    assert session.run({name: command}, tmp_path, time.monotonic()) == wrong
