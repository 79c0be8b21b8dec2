"""Folders of dead owners are swept from a folder that others use too, and no living one's."""

import contextlib
import os
import signal
from pathlib import Path

from kit import python

from sparkwright.store.owned import owned_folder, sweep_abandoned

_OWNER = """
import sys
from pathlib import Path
from sparkwright.store.owned import owned_folder
with owned_folder(Path(sys.argv[1]), "worker-") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_process_goes_and_others_stay(tmp_path: Path) -> None:
    owners = [python(_OWNER, tmp_path, stdin=True) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner)
            stack.callback(owner.kill)
        dead, alive = (owner.stdout.readline().strip() for owner in owners)
        (tmp_path / "worker-of-another-program").mkdir()
        (tmp_path / "other").mkdir()
        os.kill(owners[0].pid, signal.SIGKILL)
        owners[0].wait()
        before = {path.name for path in tmp_path.iterdir()}
        with owned_folder(tmp_path, "worker-") as mine:
            sweep_abandoned(tmp_path, "worker-")
            left = {path.name for path in tmp_path.iterdir()}
            assert before - left == {Path(dead).name}
            assert {Path(alive).name, mine.name} <= left
        owners[1].stdin.close()
        owners[1].wait()
    assert {path.name for path in tmp_path.iterdir()} == {"worker-of-another-program", "other"}


def test_a_link_to_a_folder_is_left_alone(tmp_path: Path) -> None:
    """Somebody else may have made it, where everybody may write."""
    target = tmp_path / "precious"
    target.mkdir()
    (target / ".lock").touch()
    (tmp_path / "worker-link").symlink_to(target)
    sweep_abandoned(tmp_path, "worker-")
    assert (target / ".lock").exists()
