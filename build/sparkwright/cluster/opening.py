"""Connect to workers: start them over ssh, or take those of a running scheduler.

For machines named by ssh, the scheduler runs in this process and listens on the loopback interface alone.
Each connection of ssh starts a worker and carries both directions; certificates are made for one build and
go through ssh, so that no other user of these machines can speak with either side.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import task, warn
from sparkwright.cluster.pool import Pool
from sparkwright.cluster.starting import HELLO_S, start_worker
from sparkwright.cluster.worker import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress


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
        stack.enter_context(dask.config.set(limits | QUIET))
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
                    why := start_worker(
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
        client.wait_for_workers(len(address.hosts) - len(refused), timeout=HELLO_S)
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
