r"""Work of a machine that serves together with another one, by its one connection of ssh.

    python3 -c PEER facts REQUEST    # prints what two machines are compared by
    python3 -c PEER receive          # reads a list of files as JSON, and their bytes
    python3 -c PEER run              # reads a program as JSON; a byte now and then keeps it running

The text of this program is sent as an argument, so that the machine needs nothing but Python 3.10. Each line
of its output that begins with a brace is JSON; what a shell prints at a login is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

_MARK = "SPARKWRIGHT_PEER"
_SILENT_S = 60.0  # without a byte, after which the other machine is gone
_ENDS_S = 20.0
_POLL_S = 0.25
_PIECE = 1 << 20
_LARGE = 64 << 20
_PART = ".sparkwright-part"
_DEVICES = (
    "class/net/*/speed", "class/net/*/operstate", "class/net/*/device", "class/net/*/device/infiniband/*",
    "class/infiniband/*/ports/*/state",
)  # fmt: skip
_CARD = "--query-gpu=compute_cap,driver_version,memory.total"
_PYTHON = "import sys, sysconfig as s; print(*sys.version_info[:2], sep='.'); print(s.get_path('include'))"


def say(**told: Any) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


# Facts ------------------------------------------------------------------------------------------------------


def facts(request: dict[str, str]) -> None:
    """Print the facts of this machine; *request* names the interpreter of the server's environment."""
    version, _, headers = output(request["python"], "-I", "-c", _PYTHON).partition("\n")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = os.environ.get("HF_HOME") or cache / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    memory = dict(line.split(":", 1) for line in text(Path("/proc/meminfo")).splitlines())
    card = output("nvidia-smi", _CARD, "--format=csv,noheader,nounits").partition("\n")[0]
    capability, driver, own, *_ = [*(cell.strip() for cell in card.split(",")), "", ""]
    say(
        machine=platform.machine(),
        libc=platform.libc_ver()[1],
        python=version,
        compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        headers=bool(headers) and Path(headers, "Python.h").exists(),
        capability=capability,
        driver=driver,
        shared=bool(capability) and not own[:1].isdigit(),
        total_kib=int(memory["MemTotal"].split()[0]),
        available_kib=int(memory["MemAvailable"].split()[0]),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        home=str(cache / "sparkwright-peer"),
        hub=str(hub.expanduser()),
        addresses=[
            [one["ifname"], f"{address['local']}/{address['prefixlen']}"]
            for one in json.loads(output("ip", "-json", "address", "show") or "[]")
            for address in one.get("addr_info", [])
            if address.get("scope") in {"global", "link"} and "local" in address
        ],
        devices=list_devices(),
    )


def list_devices(root: Path = Path("/sys")) -> dict[str, str]:
    """Return the kernel's files about networks and RDMA by their paths, with their texts."""
    return {
        str(path.relative_to(root)): "" if path.is_dir() else text(path).strip()
        for pattern in _DEVICES
        for path in root.glob(pattern)
    }


def output(*argv: str) -> str:
    """Return what a program prints; empty where it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode().strip()
    return ""


def text(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read, as the speed of an interface that is down."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


# Files ------------------------------------------------------------------------------------------------------


def receive(source: BinaryIO) -> None:
    """Receive the files that the first line of *source* lists, but those that are here.

    A file has its name once it is whole.
    """
    listed = json.loads(source.readline())
    folder = Path(listed["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    missing = [at for at, one in enumerate(listed["files"]) if not is_here(folder / one["path"], one)]
    for at in missing:
        part_of(folder / listed["files"][at]["path"]).unlink(missing_ok=True)  # of an interrupted copy
    say(missing=missing, free=shutil.disk_usage(folder).free)
    for at in missing:
        one = listed["files"][at]
        receive_file(source, folder / one["path"], one)
    for path, target in listed["links"]:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink() or str(place.readlink()) != target:
            place.unlink(missing_ok=True)
            place.symlink_to(target)
    say(done=True)


def is_here(place: Path, one: dict[str, Any]) -> bool:
    """Tell if a file is here."""
    if not place.is_file():
        return False
    found = place.stat()
    return found.st_size == one["size"] and bool(one["named"] or found.st_mtime_ns == one["mtime"])


def part_of(place: Path) -> Path:
    """Return the place of a file that is not whole."""
    return place.with_name(place.name + _PART)


def receive_file(source: BinaryIO, place: Path, one: dict[str, Any]) -> None:
    """Receive a file."""
    part, left = part_of(place), one["size"]
    place.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as stream:
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise EOFError
            stream.write(piece)
            left -= len(piece)
        if one["size"] >= _LARGE:  # what the page cache holds of weights, a Spark's card lacks
            stream.flush()
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    part.chmod(one["mode"])
    os.utime(part, ns=(one["mtime"], one["mtime"]))
    part.replace(place)


# A program --------------------------------------------------------------------------------------------------


def run(source: BinaryIO) -> int:
    """Run the program that the first line of *source* describes; return its status.

    It is ended with all that it started when *source* ends, or is silent for a minute.
    """
    order = json.loads(source.readline())
    argv, mark = order["argv"], order["mark"]
    for folder in order["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(argv[0]).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, **order["environment"], _MARK: mark}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(
        argv, env=environment, cwd=order["folders"][0], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no threads
    )  # fmt: skip
    try:
        heard = time.monotonic()
        while child.poll() is None and time.monotonic() - heard < _SILENT_S:
            if select.select([source], [], [], _POLL_S)[0]:
                if not os.read(source.fileno(), _PIECE):
                    break
                heard = time.monotonic()
    finally:
        status = end(child, f"{_MARK}={mark}".encode())
    return status


def die_with_parent() -> None:
    """Have the kernel kill this process with its parent (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end(child: subprocess.Popen[bytes], mark: bytes) -> int:
    """End *child* and all whose environment has *mark*; return its status as a shell does."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_ENDS_S)
    for _ in range(2):  # one may have started another meanwhile
        for place in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in place.read_bytes().split(b"\0"):
                    os.kill(int(place.parent.name), signal.SIGKILL)
    status = child.wait()
    return status if status >= 0 else 128 - status


def main() -> int:
    """Do what the first argument names."""
    try:
        if sys.argv[1] == "facts":
            facts(json.loads(sys.argv[2]))
        elif sys.argv[1] == "receive":
            receive(sys.stdin.buffer)
        else:
            return run(sys.stdin.buffer.raw)
    except EOFError:
        return 1
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
        say(error=str(error), full=full)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
