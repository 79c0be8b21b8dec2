"""The machines of a cluster: those of a command without a checkout, and what they did in its result."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from sparkwright.base.events import Event, subscribe
from sparkwright.distributed.cluster import Cluster

_KINDS = {
    "compile.finished": "units",
    "step.finished": "steps",
    "verify.finished": "runs",
}


@contextlib.contextmanager
def counting_machines() -> Iterator[dict[str, Counter[str]]]:
    """Yield what other machines finish in the block: numbers of ``units``, ``runs`` … by machine."""
    done: dict[str, Counter[str]] = {}

    def count(event: Event) -> None:
        machine = event.data.get("machine")
        if machine is not None and event.kind in _KINDS:
            done.setdefault(machine, Counter())[_KINDS[event.kind]] += 1

    with subscribe(count):
        yield done


@contextlib.contextmanager
def opened_cluster(address: str) -> Iterator[Cluster]:
    """Yield the machines at *address*, with the user's store."""
    from sparkwright.distributed import parse_cluster
    from sparkwright.distributed.cluster import Cluster
    from sparkwright.store import open_store
    from sparkwright.store.remote import RemoteTier, read_remote_settings

    machines, settings = parse_cluster(address), read_remote_settings("")
    store = open_store(remote=None if settings is None else RemoteTier(settings))
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.running())
        yield Cluster(address=machines, store=store)


def machines_summary(done: dict[str, Counter[str]]) -> dict[str, object]:
    """Return the part of a command's JSON about other machines; empty without any."""
    return {"machines": {name: dict(did) for name, did in sorted(done.items())}} if done else {}


def machines_rows(done: dict[str, Counter[str]]) -> Iterator[tuple[str, str]]:
    """Yield what each machine did, behind a heading."""
    for place, (name, did) in enumerate(sorted(done.items())):
        told = ", ".join(f"{count} {kind if count > 1 else kind[:-1]}" for kind, count in sorted(did.items()))
        yield "" if place else "machines", f"{name}: {told}"
