"""``sparkwright`` on machines of a cluster: forks of one process that has imported what it needs.

An interpreter that imports all of sparkwright takes more than a second of a core, and a test starts
several. Each is still a process of its own, in a session of its own: `PROGRAM` stands for it, ends as it
does, and takes it along when it is killed.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

PROGRAM = """\
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    asked = [{script!r}, sys.argv, os.getcwd(), dict(os.environ)]
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    status = int(server.recv(64) or 1)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""A program that has the server at *address* run the Python file *script*."""

_LARGEST = 1 << 18
_IMPORTED = (
    "numpy",
    "scipy.stats",
    "sparkwright.distributed.worker",
    "sparkwright.pipeline.remote_units",
    "sparkwright.verify.runner",
    "sparkwright.verify.runner",
    "unit_kit",
)


@contextlib.contextmanager
def warm_server(folder: Path) -> Iterator[Path]:
    """Run the server, and yield its address."""
    address = folder / "warm"
    words = [sys.executable, __file__, address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield address
        server.communicate()


def main(address: str) -> None:
    """Fork for each connection until standard input ends."""
    import sparkwright.cli

    commands = [f"sparkwright.cli.{one.name}" for one in pkgutil.iter_modules(sparkwright.cli.__path__)]
    for name in (*_IMPORTED, *commands):
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b"ready\n")
        while sys.stdin not in (ready := select.select([listening, sys.stdin], [], [], 1.0)[0]):
            if ready:
                connection, _ = listening.accept()
                if not os.fork():
                    listening.close()
                    _attend(connection)
                connection.close()
            with contextlib.suppress(ChildProcessError):  # reaped, so that their time is counted
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass


def _attend(connection: socket.socket) -> None:
    """Run what is asked for in a child; send its status, or kill it when the connection ends."""
    data, numbers, _, _ = socket.recv_fds(connection, _LARGEST, 3)
    if child := os.fork():
        for number in numbers:
            os.close(number)
        watched = os.pidfd_open(child)
        if watched not in select.select([watched, connection], [], [])[0]:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):
            connection.send(str(status).encode())
        os._exit(0)
    status = 1
    try:
        _become(numbers, *json.loads(data))
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - as an interpreter ends by it
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


def _become(
    numbers: list[int], script: str, words: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Run *script* as an interpreter does that was started so."""
    os.setsid()
    os.chdir(folder)
    for number, other in enumerate(numbers):
        os.dup2(other, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open to the end
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main(sys.argv[1])
