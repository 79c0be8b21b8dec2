"""FlashInfer's first compile in a real control group: no compiler is killed, unlike with ninja's own jobs.

All sizes are those of a group of 16 GiB and compilers of 7 GiB, made smaller by one factor;
``SPARKWRIGHT_COMPILE_GIB=16`` runs them as they are.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from preflight_kit import recipe

from sparkwright.base.machine import look
from sparkwright.engine import flashinfer
from sparkwright.engine.flashinfer import COMPILER_GIB, jobs_variable

GROUP_GIB = 16
SCALE = float(os.environ.get("SPARKWRIGHT_COMPILE_GIB", "1")) / GROUP_GIB
CORES = 20
UNITS = 5
NINJA = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
CGROUPS = Path("/sys/fs/cgroup")
NVCC = """\
#!{python} -IS
import sys, time
taken = bytearray({size})
taken[::4096] = bytes(len(taken[::4096]))
time.sleep({seconds})
open(sys.argv[1], "w").close()
"""


@dataclass
class Group:
    """A control group with a limit of memory.

    Attributes:
        procs: the file that takes a process into it.
        kills: the file that counts the processes that were killed for want of memory.
    """

    procs: Path
    kills: Path

    def run(self, argv: list[str | Path]) -> subprocess.CompletedProcess[str]:
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', self.procs, *argv]
        return subprocess.run(enter, check=False, capture_output=True, text=True)

    @property
    def killed(self) -> int:
        words = self.kills.read_text().split()
        return int(words[words.index("oom_kill") + 1])


@pytest.fixture
def group() -> Iterator[Group]:
    """One of the version that this kernel has for memory."""
    old = CGROUPS / "memory"
    parent, limit, kills = (
        (old, "memory.limit_in_bytes", "memory.oom_control")
        if old.is_dir()
        else (CGROUPS, "memory.max", "memory.events")
    )
    place = parent / f"sparkwright-test-{os.getpid()}"
    try:
        place.mkdir()
        (place / limit).write_text(str(int(GROUP_GIB * SCALE * (1 << 30))))
        made = Group(place / "cgroup.procs", place / kills)
        _ = made.killed
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield made
    place.rmdir()


def planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return MAX_JOBS on a machine of 20 cores that shares its memory with the card, in a group of 16 GiB."""
    files = {
        "proc/meminfo": f"MemTotal: {128 << 20} kB\nMemAvailable: {120 << 20} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": str(GROUP_GIB << 30),
        "sys/fs/cgroup/box/memory.current": "0",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(flashinfer, "look", lambda: look(folder, affinity=CORES))
    monkeypatch.setattr("sparkwright.base.machine.card_fields", lambda *_: ("[N/A]",))
    monkeypatch.setattr("sparkwright.base.machine.card_capability", lambda: "12.1")
    return jobs_variable(recipe(), {})["MAX_JOBS"]


def first_compile(folder: Path, group: Group, at_once: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Compile as FlashInfer does, in *group*; return what ninja said, and how many units there are then."""
    folder.mkdir()
    nvcc = folder / "nvcc"
    nvcc.write_text(
        NVCC.format(python=sys.executable, size=int(COMPILER_GIB * SCALE * (1 << 30)), seconds=0.5)
    )
    nvcc.chmod(0o755)
    units = "".join(f"build {number}.o: nvcc\n" for number in range(UNITS))
    (folder / "build.ninja").write_text(f"rule nvcc\n  command = {nvcc} $out\n{units}")
    done = group.run([str(NINJA), "-v", "-C", folder, "-f", "build.ninja", "-j", at_once])
    return done, len(list(folder.glob("*.o")))


@pytest.mark.skipif(NINJA is None, reason="ninja is not here")
def test_nothing_is_killed_with_the_planned_jobs_and_compilers_are_with_ninjas_own(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, made = first_compile(tmp_path / "planned", group, planned(tmp_path, monkeypatch))
    assert (done.returncode, made, group.killed) == (0, UNITS, 0), done.stdout
    # Without MAX_JOBS ninja starts two more than there are cores.
    done, made = first_compile(tmp_path / "own", group, str(CORES + 2))
    assert done.returncode != 0
    assert made < UNITS
    assert group.killed >= 1, done.stdout
