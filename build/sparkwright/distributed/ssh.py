"""Start a worker on a machine over ssh, and tell why one cannot be used."""

from __future__ import annotations

import contextlib
import random
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright import __version__
from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import emit
from sparkwright.base.ports import free_port
from sparkwright.base.process import Dialogue
from sparkwright.cluster.messages import WorkerHello, WorkerSettings, own_code

if TYPE_CHECKING:
    from sparkwright.base.ssh import SshHost

_START = (
    'PATH="$PATH:$HOME/.local/bin"; command -v sparkwright >/dev/null || exit 127; '
    "exec sparkwright worker --settings"
)
_NOT_FOUND, _OF_SSH = 127, 255
HELLO_S = 90.0
"""Seconds in which a worker has to be ready."""
_ENDS_S = 15.0
_PORTS = (20_000, 32_000)
_TRIES = 4
_TAKEN = re.compile("forwarding failed|cannot listen|already in use", re.IGNORECASE)


def start_worker(
    stack: contextlib.ExitStack,
    host: SshHost,
    scheduler: str,
    security: Any,
    *,
    store_url: str,
    silent_s: float,
) -> ClusterError | ToolError | None:
    """Start a worker on *host* for the length of *stack*; return the error of one that cannot be used.

    Where another program has one of its ports, there or here, it is started again with others.
    """
    tls = security.get_tls_config_for_role("worker")
    settings = WorkerSettings(
        scheduler=scheduler,
        ca=tls["ca_file"],
        cert=tls["cert"],
        key=tls["key"],
        store_url=store_url,
        name=host.shown,
    )
    tried = 0
    while True:
        tried += 1
        with contextlib.ExitStack() as own:
            dialogue, refused = _start(own, host, settings, patience_s=min(_ENDS_S, silent_s))
            if refused is None:
                stack.enter_context(own.pop_all())
                return None
        if tried == _TRIES or not _TAKEN.search(dialogue.end().stderr):
            return refused


def _choose_ports() -> tuple[int, int, int]:
    """Return a port for the scheduler there, one for the worker there, and one for the worker here."""
    there, listen = random.sample(range(*_PORTS), 2)
    return there, listen, free_port()


def _start(
    stack: contextlib.ExitStack, host: SshHost, settings: WorkerSettings, *, patience_s: float
) -> tuple[Dialogue, ClusterError | ToolError | None]:
    """Start a worker for the length of *stack*; return what was said, and why it cannot be used."""
    there, listen, contact = _choose_ports()
    port = settings.scheduler.rpartition(":")[2]
    forwards = (
        "-oExitOnForwardFailure=yes",
        "-R", f"127.0.0.1:{there}:127.0.0.1:{port}",
        "-L", f"127.0.0.1:{contact}:127.0.0.1:{listen}",
    )  # fmt: skip
    told = msgspec.structs.replace(
        settings,
        scheduler=f"tls://127.0.0.1:{there}",
        listen=f"tls://127.0.0.1:{listen}",
        contact=f"tls://127.0.0.1:{contact}",
    )
    dialogue = stack.enter_context(Dialogue(host.argv(_START, forwards=forwards), patience_s=patience_s))
    dialogue.send(msgspec.json.encode(told) + b"\n")
    return dialogue, _greeted(host, dialogue)


def _greeted(host: SshHost, dialogue: Dialogue) -> ClusterError | ToolError | None:
    """Wait until a worker is ready; return why it cannot be used."""
    end = time.monotonic() + HELLO_S
    while (left := end - time.monotonic()) > 0:
        try:
            line = dialogue.line(left)
        except EOFError:
            return _of_ssh(host, dialogue)
        with contextlib.suppress(msgspec.MsgspecError):
            hello = decode_json(line or b"", WorkerHello)
            if hello.code != own_code():
                dialogue.end()
                return _other_version(host, hello)
            emit("cluster.worker", machine=hello.machine, slots=hello.slots, mib=hello.mib)
            return None
    dialogue.end()
    return ClusterError(
        f"{host.host} does not answer",
        because=f"its worker was not ready within {HELLO_S:g} s",
        next_step="check the machine, and what its shell does at a login",
    )


def _other_version(host: SshHost, hello: WorkerHello) -> ToolError:
    different = hello.version if hello.version != __version__ else "another state of the same version"
    return ToolError(
        f"{host.host} cannot work for this program",
        because=f"sparkwright is {different} there, and {__version__} here",
        next_step="install the same commit there",
    )


def _of_ssh(host: SshHost, dialogue: Dialogue) -> ClusterError | ToolError:
    done = dialogue.end()
    last = done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.status}"
    if done.status == _NOT_FOUND:
        return ToolError(
            f"{host.host} has no sparkwright",
            because="it is neither on PATH there nor in ~/.local/bin",
            next_step="install the same commit there, with the extra [cluster]",
        )
    if done.status == _OF_SSH:
        return ClusterError(
            f"{host.host} cannot be reached", because=last, next_step=f"try it by hand: ssh {host.host} true"
        )
    return ClusterError(
        f"the worker of {host.host} did not start", because=last, next_step="install the same commit there"
    )
