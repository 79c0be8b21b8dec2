"""Start workers on machines over ssh, and tell why one cannot be used."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.ports import free_port
from sparkwright.base.process import UnguardedProcess, start_unguarded
from sparkwright.base.ssh import SshHost
from sparkwright.distributed.tasks import WorkerSettings, own_code

_START = (
    'PATH="$PATH:$HOME/.local/bin"; command -v sparkwright >/dev/null || exit 127; exec sparkwright worker'
)
_NOT_FOUND, _OF_SSH = 127, 255
_READY_S = 90.0  # in which a worker has to be ready
_POLL_S = 0.1
_PORTS = (20_000, 32_000)
_TRIES = 4
_TAKEN = re.compile("forwarding failed|cannot listen|already in use", re.IGNORECASE)
_SHOWN = 500


@dataclass
class _Connection:
    """One connection of ssh, whose worker ends with its input."""

    host: SshHost
    process: UnguardedProcess
    errors: IO[bytes]
    tried: int = 1

    def end(self, patience_s: float) -> None:
        """End the worker; kill the connection where that takes too long."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        with contextlib.suppress(Exception):  # it is killed then
            self.process.wait(patience_s)
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def said(self) -> str:
        """Return what ssh and the worker said."""
        self.errors.seek(0)
        return " ".join(self.errors.read().decode(errors="replace").split())


def start_workers(
    stack: contextlib.ExitStack,
    hosts: Sequence[SshHost],
    scheduler: str,
    security: Any,
    connected: Callable[[], Collection[str]],
    *,
    store_url: str,
    patience_s: float,
) -> list[ClusterError | ToolError]:
    """Start a worker on each of *hosts* for the length of *stack*; return why some cannot be used.

    Each connection of ssh starts a worker and carries both directions. Where another program has one of its
    ports, there or here, it is started again with others.

    Args:
        stack: ends the workers.
        hosts: the machines.
        scheduler: address of the scheduler here.
        security: certificates.
        connected: returns the names of machines whose worker is ready.
        store_url: the store that machines share, without credentials.
        patience_s: how long to wait for the end of a worker.
    """
    port = scheduler.rpartition(":")[2]
    tls = security.get_tls_config_for_role("worker")

    def start(host: SshHost) -> _Connection:
        there, listen, contact = _choose_ports()
        settings = WorkerSettings(
            code=own_code(),
            scheduler=f"tls://127.0.0.1:{there}",
            listen=f"tls://127.0.0.1:{listen}",
            contact=f"tls://127.0.0.1:{contact}",
            ca=tls["ca_file"],
            cert=tls["cert"],
            key=tls["key"],
            store_url=store_url,
            name=host.shown,
        )
        forwards = (
            "-oExitOnForwardFailure=yes",
            "-R", f"127.0.0.1:{there}:127.0.0.1:{port}",
            "-L", f"127.0.0.1:{contact}:127.0.0.1:{listen}",
        )  # fmt: skip
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        process = start_unguarded(host.argv(_START, forwards=forwards), errors=errors)
        made = _Connection(host, process, errors)
        stack.callback(made.end, patience_s)
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.write(msgspec.json.encode(settings) + b"\n")
                process.stdin.flush()
        return made

    waiting = [start(host) for host in hosts]
    refused: dict[SshHost, ClusterError | ToolError] = {}
    end = time.monotonic() + _READY_S
    while waiting and time.monotonic() < end:
        time.sleep(_POLL_S)
        ready = connected()
        waiting = [one for one in waiting if one.host.shown not in ready]
        for one in [one for one in waiting if one.process.poll() is not None]:
            waiting.remove(one)
            if one.tried < _TRIES and _TAKEN.search(one.said()):
                again = start(one.host)
                again.tried = one.tried + 1
                waiting.append(again)
                end = time.monotonic() + _READY_S
            else:
                refused[one.host] = _refusal(one)
    for one in waiting:
        refused[one.host] = ClusterError(
            f"{one.host.host} does not answer",
            because=f"its worker was not ready within {_READY_S:g} s",
            next_step="check the machine, and what its shell does at a login",
        )
    return [refused[host] for host in hosts if host in refused]


def _choose_ports() -> tuple[int, int, int]:
    """Return a port for the scheduler there, one for the worker there, and one for the worker here."""
    there, listen = random.sample(range(*_PORTS), 2)
    return there, listen, free_port()


def _refusal(one: _Connection) -> ClusterError | ToolError:
    """Return why a connection that has ended gave no worker."""
    name, status = one.host.host, one.process.returncode
    because = one.said()[-_SHOWN:] or f"it ended with status {status}"
    if status == _NOT_FOUND:
        return ToolError(
            f"{name} has no sparkwright",
            because="it is neither on PATH there nor in ~/.local/bin",
            next_step="install the same commit there, with the extra [cluster]",
        )
    if status == _OF_SSH:
        return ClusterError(
            f"{name} cannot be reached", because=because, next_step=f"try it by hand: ssh {name} true"
        )
    kind = ToolError if status == ToolError.exit_code else ClusterError
    return kind(f"{name} cannot be used", because=because, next_step="install the same commit there")
