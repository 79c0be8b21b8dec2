"""Connect to workers: start them over ssh, or take those of a running scheduler.

For machines named by ssh, the scheduler runs in this process and listens on the loopback interface alone.
Each connection of ssh starts a worker and carries both directions; certificates are made for one build and
go through ssh, so that no other user of these machines can speak with either side.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright import __version__
from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import emit, task, warn
from sparkwright.base.process import Dialogue
from sparkwright.cluster.messages import WorkerHello, WorkerSettings, own_code
from sparkwright.cluster.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.base.ssh import SshHost
    from sparkwright.cluster.address import ClusterAddress

_START = (
    'PATH="$PATH:$HOME/.local/bin"; command -v sparkwright >/dev/null || exit 127; '
    "exec sparkwright worker --settings"
)
_NOT_FOUND, _OF_SSH = 127, 255
_HELLO_S = 90.0
_ENDS_S = 15.0
_PORTS = (20_000, 32_000)


@contextlib.contextmanager
def open_pool(
    address: ClusterAddress,
    folder: Path,
    *,
    store_url: str = "",
    patience_s: float = 60.0,
    silent_s: float = 60.0,
) -> Iterator[Pool]:
    """Yield the workers at *address*, started where they are named by ssh, and ended with the block.

    Args:
        address: the machines, or a scheduler.
        folder: for files of Dask's own scheduler.
        store_url: the store that machines share, for workers that are started; without credentials.
        patience_s: how long to wait for a worker when none is left.
        silent_s: how long a worker that is started may send no sign of life, at least 5, before its tasks
            go to others.

    Raises:
        ClusterError: no worker can be had.
        ToolError: the libraries are not installed.
    """
    dask, distributed = _require_library()
    with contextlib.ExitStack() as stack:
        if address.scheduler:
            client = stack.enter_context(_connected(distributed, address))
            with contextlib.suppress(TimeoutError):  # the first task says that there is none
                client.wait_for_workers(1, timeout=patience_s)
            yield Pool(address.name, client, patience_s)
            return
        limits = {"temporary-directory": str(folder), "distributed.scheduler.worker-ttl": f"{silent_s} s"}
        stack.enter_context(dask.config.set(limits))
        security = distributed.Security.temporary()
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=0, host="127.0.0.1", protocol="tls://", security=security, silence_logs=50,
                # Its web server is started in any case: on no port of others, and for this machine alone.
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )
        )  # fmt: skip
        client = stack.enter_context(distributed.Client(cluster, security=security))
        pool = Pool(address.name, client, patience_s)
        with task(f"start workers on {len(address.hosts)} machines"):
            refused = [
                why
                for host in address.hosts
                if (
                    why := _start(
                        stack,
                        host,
                        cluster.scheduler_address,
                        security,
                        store_url=store_url,
                        silent_s=silent_s,
                    )
                )
            ]
        for why in refused:
            warn(f"{why.what}: {why.because}; {why.next_step}")
        if len(refused) == len(address.hosts):
            raise refused[0]
        client.wait_for_workers(len(address.hosts) - len(refused), timeout=_HELLO_S)
        yield pool


def _require_library() -> tuple[Any, Any]:
    try:
        import dask

        dask.config.set({"distributed.logging.distributed": "critical"})
        import distributed
    except ImportError as error:
        raise ToolError(
            "other machines cannot be used",
            because=f"the package {error.name} is not installed",
            next_step="pip install 'sparkwright[cluster]'",
        ) from error
    return dask, distributed


@contextlib.contextmanager
def _connected(distributed: Any, address: ClusterAddress) -> Iterator[Any]:
    try:
        client = distributed.Client(address.scheduler, timeout=15)
    except (OSError, TimeoutError, RuntimeError) as error:
        raise ClusterError(
            f"{address.name} cannot be reached",
            because=str(error) or type(error).__name__,
            next_step="start 'dask scheduler' there, or correct the address",
        ) from error
    with client:
        yield client


def _start(
    stack: contextlib.ExitStack,
    host: SshHost,
    scheduler: str,
    security: Any,
    *,
    store_url: str,
    silent_s: float,
) -> ClusterError | ToolError | None:
    """Start a worker on *host* for the length of *stack*; return the error of one that cannot be used."""
    there, listen, contact = random.sample(range(*_PORTS), 3)
    port = scheduler.rpartition(":")[2]
    forwards = (
        "-oExitOnForwardFailure=yes",
        "-R", f"127.0.0.1:{there}:127.0.0.1:{port}",
        "-L", f"127.0.0.1:{contact}:127.0.0.1:{listen}",
    )  # fmt: skip
    tls = security.get_tls_config_for_role("worker")
    settings = WorkerSettings(
        scheduler=f"tls://127.0.0.1:{there}",
        listen=f"tls://127.0.0.1:{listen}",
        contact=f"tls://127.0.0.1:{contact}",
        ca=tls["ca_file"],
        cert=tls["cert"],
        key=tls["key"],
        store_url=store_url,
        name=host.shown,
    )
    dialogue = stack.enter_context(
        Dialogue(host.argv(_START, forwards=forwards), patience_s=min(_ENDS_S, silent_s))
    )
    dialogue.send(msgspec.json.encode(settings) + b"\n")
    end = time.monotonic() + _HELLO_S
    while (left := end - time.monotonic()) > 0:
        try:
            line = dialogue.line(left)
        except EOFError:
            return _of_ssh(host, dialogue)
        with contextlib.suppress(msgspec.MsgspecError):
            hello = msgspec.json.decode(line or b"", type=WorkerHello)
            if hello.code != own_code():
                dialogue.end()
                return _other_version(host, hello)
            emit("cluster.worker", machine=hello.machine, slots=hello.slots, mib=hello.mib)
            return None
    dialogue.end()
    return ClusterError(
        f"{host.host} does not answer",
        because=f"its worker was not ready within {_HELLO_S:g} s",
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
