"""Events reach whoever subscribed; a warning reaches the user in any case."""

import subprocess
import sys

SCRIPT = "from sparkwright.base.events import emit, subscribe, warn\n"


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT + script], check=True, capture_output=True, text=True
    )


def test_a_script_without_a_subscriber_sees_warnings_and_nothing_else() -> None:
    done = run("emit('step.made', step='x')\nwarn('disk 100% full', path='/x')\nwarn('disk 100% full')")
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["disk 100% full"] * 2


def test_a_script_with_a_subscriber_decides_for_itself() -> None:
    done = run("with subscribe(lambda event: print(event.kind)):\n    warn('disk full')")
    assert (done.stdout, done.stderr) == ("warning\n", "")
