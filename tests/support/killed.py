"""Commands that are killed, interrupted or starved of disk, and what all of them have to leave behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from wheelkit import unpack
from world import Ran, World, clean_environment, ended, finish, wait_until

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import Event, subscribe


def in_child(
    work: Callable[[], object], point: contextlib.AbstractContextManager[object] | None = None
) -> int:
    """Run *work* in a fork of this process, with *point* in effect.

    Returns:
        its exit status, which *work* may return, or minus the signal that killed it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test runner has threads
        child = os.fork()
    if not child:
        status = 1
        try:
            with point or contextlib.nullcontext():
                found = work()
            status = found if isinstance(found, int) else 0
        except SparkwrightError as error:
            status = error.exit_code
        except BaseException:  # noqa: BLE001
            traceback.print_exc(file=sys.__stderr__)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(world: World, point: contextlib.AbstractContextManager[object], *words: str) -> int:
    """Run a command of *world* in a child with *point* in effect; return as `in_child` does."""
    status = in_child(lambda: world.call(*words).status, point)
    nothing_is_half_done(world)
    return status


def stopped(
    child: subprocess.Popen[str],
    number: int,
    when: Callable[[], object] = lambda: True,
    *,
    group: bool = False,
) -> Ran:
    """Send *child* a signal once *when* is true, until which it has to run; return how it ended.

    All that it started has to end with it. With *group*, its process group gets the signal, as by Ctrl-C.
    """
    wait_until(lambda: child.poll() is not None or when())
    assert child.poll() is None, child.communicate()
    family = [process.pid for process in psutil.Process(child.pid).children(recursive=True)]
    (os.killpg if group else os.kill)(child.pid, number)
    ran = finish(child, patience_s=60)
    wait_until(lambda: all(map(ended, family)), patience_s=60)
    return ran


def nothing_is_half_done(world: World) -> None:
    """Look at what anybody may find in dist at any time, which has to be whole."""
    for wheel in world.wheels:
        assert unpack(wheel), wheel
    for page in world.dist.glob("simple/**/index.html"):
        assert page.read_text().endswith("</html>\n")


def goes_on(world: World, *words: str) -> Ran:
    """Run a command that was stopped before: no lock is held, and nothing of that run is left over."""
    ran = world.good(*words)
    nothing_is_half_done(world)
    assert [path.name for path in world.dist.rglob(".*") if path.name != ".publish.lock"] == []
    assert [*world.store.scratch_root.iterdir(), *world.store.partial.iterdir()] == []
    assert [path for path in world.store.home.rglob("*.lock") if path.stat().st_size] == []
    return ran


def die() -> None:
    """Kill this process as the kernel does."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def at_event(kind: str, text: str = "") -> Iterator[None]:
    """Kill the process when an event of *kind* has *text* in its data."""

    def hear(event: Event) -> None:
        if event.kind == kind and text in str(event.data):
            die()

    with subscribe(hear):
        yield


@contextlib.contextmanager
def at_call(
    names: Collection[str], count: int, *, after: Callable[[Any], bool] | None = None
) -> Iterator[None]:
    """Kill the process at call number *count* of one of the functions *names* of `os`: right before it.

    Args:
        names: of the functions; each is given what it writes to as its last argument.
        count: from one.
        after: kill right after the call instead, and count only calls whose last argument satisfies this.
    """
    left = count

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if after is None or after(arguments[-1]):
                left -= 1
                if not left:
                    if after is not None:
                        real(*arguments, **named)
                    die()
            return real(*arguments, **named)

        return wrapper

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(os, name, deadly(getattr(os, name))))
        yield


# Runs where a small disk is mounted at argv[1], which it fills but for some bytes.
_STARVED = """
import json, pathlib, shutil, subprocess, sys
disk, sizes, command = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
ballast, found = disk / "ballast", []
for free in sizes:
    ballast.unlink(missing_ok=True)
    if free is not None:
        with ballast.open("wb") as file:
            file.write(bytes(max(0, shutil.disk_usage(disk).free - free)))
    done = subprocess.run(command, capture_output=True, text=True)
    found.append([done.returncode, done.stdout, done.stderr])
print(json.dumps(found))
"""


def starve(
    world: World, prefix: tuple[str, ...], disk: Path, free: Sequence[int | None], *words: str
) -> list[Ran]:
    """Run a command of *world* once for each number of bytes that are *free* on *disk*; None: all.

    *prefix* are the words by which the disk is mounted, see `kit.small_disk`.
    """
    command = [sys.executable, "-m", "sparkwright", *words]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", _STARVED, str(disk), json.dumps(free), *command],
        cwd=world.root,
        env={**clean_environment(), **world.environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return [Ran(*one) for one in json.loads(done.stdout)]
