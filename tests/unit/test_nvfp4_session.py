"""A session on a GPU for an NVFP4 cache: which commands it runs together, and how it judges their ends."""

import argparse
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import nvfp4_session as session


def asked(tmp_path: Path, stage: str, **more: object) -> argparse.Namespace:
    given = {"tree": Path("now"), "before": None, "fa2": None, "version": "0.33.0", "budget": 560}
    return argparse.Namespace(out=tmp_path, stage=stage, **(given | more))


def test_what_is_timed_has_the_card_alone(tmp_path: Path) -> None:
    groups = session.commands(asked(tmp_path, "speed", before=Path("old"), fa2=Path("lib.so")))
    assert [list(group) for group in groups] == [["speed-now"], ["speed-gaps"], ["speed-before"]]
    for group in groups:
        (command,) = group.values()
        assert ("--fa2" in command) == ("--only" not in command)


def test_kernels_are_compiled_while_they_are_checked(tmp_path: Path) -> None:
    (group,) = session.commands(asked(tmp_path, "kernels", before=Path("old"), fa2=Path("lib.so")))
    checks = {"check", "memcheck-7", "memcheck-64", "memcheck-planted"}
    assert checks < set(group)
    assert all("--report-api-errors" in group[name] for name in checks - {"check"})
    assert len(group) == len(checks) + 4 * session.SHARES


def test_engines_are_asked_for_nvfp4_on_v2(tmp_path: Path) -> None:
    ((command,),) = [list(group.values()) for group in session.commands(asked(tmp_path, "serve"))]
    assert command[command.index("--only") + 1 :][:2] == ["nvfp4", "v2"]
    assert "mla" in command[command.index("--skip") :]


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
