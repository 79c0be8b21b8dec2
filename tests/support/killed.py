"""Work in a process of its own that is killed at a chosen point, and commands on a disk that runs full."""

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

from world import Ran, World, clean_environment

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
    return in_child(lambda: world.call(*words).status, point)


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
