"""Findings about models that a start has to fetch: what that takes, and what forbids it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkwright.serve.preflight.budget import GIB
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.completeness import missing_shards
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.host import HostFacts
from sparkwright.serve.preflight.hub import RemoteModel

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = {"1", "true", "yes", "on"}
_ROOMY = 50 * GIB  # what published guides ask for before a model is fetched
_SPARE = 2 * GIB


def is_offline(environment: Mapping[str, str]) -> bool:
    """Tell if a server with these variables fetches nothing."""
    return any(environment.get(name, "").lower() in _TRUE for name in _OFFLINE)


def is_repository(name: str) -> bool:
    """Tell if the model *name* is a repository of the hub, not a folder."""
    return not name.startswith(("/", ".", "~")) and name.count("/") <= 1


def check_offline(
    environment: Mapping[str, str],
    models: Mapping[str, Checkpoint | None],
    remote: Mapping[str, RemoteModel],
) -> Iterator[Finding]:
    """Yield findings about models that a start would have to fetch or look up.

    Args:
        environment: variables of the server.
        models: the models by name.
        remote: what the hub says of those that are not on this machine.
    """
    offline = is_offline(environment)
    for name, checkpoint in models.items():
        path = not is_repository(name)
        if name in remote and (offline or path):
            yield Finding(
                "model-missing",
                "refuse",
                f"{name} is not on this machine",
                "there is no such folder"
                if path
                else "it is not in the cache, and the network is off (HF_HUB_OFFLINE)",
                "correct the path" if path else f"fetch it first: hf download {name}",
            )
        elif name in remote and remote[name].refused:
            yield Finding(
                "model-refused",
                "refuse",
                f"{name} cannot be fetched",
                remote[name].refused,
                f"accept its terms at https://huggingface.co/{name} and set HF_TOKEN, or correct the name",
            )
        elif name in remote:
            told = remote[name]
            size = f"{told.download / GIB:.1f} GiB in {told.files} files, as the hub lists them"
            yield Finding(
                "model-fetched",
                "note",
                f"{name} is fetched when the server starts",
                "; ".join(filter(None, (size if told.files else "", told.unread)))
                or "it is not in the cache, so that its files cannot be checked and its memory is not known",
                f"to fetch it before: hf download {name}",
            )
        elif checkpoint is not None and not offline and str(checkpoint.folder) != os.path.expanduser(name):  # noqa: PTH111 - a name
            yield Finding(
                "offline",
                "note",
                f"the start asks the hub about {name}, though it is here",
                "HF_HUB_OFFLINE is not set: without DNS, vLLM waits or ends",
                'set HF_HUB_OFFLINE = "1" in the recipe\'s [environment]',
            )


def check_disk(
    host: HostFacts,
    folder: Path,
    checkpoints: Mapping[str, Checkpoint | None],
    remote: Mapping[str, RemoteModel],
) -> Iterator[Finding]:
    """Yield findings about room for weights that have to be fetched.

    Args:
        host: has the free bytes.
        folder: where they would be fetched to.
        checkpoints: the models by name.
        remote: what the hub says of those that are not here.
    """
    if host.disk_free < 0:
        return
    for name, checkpoint in checkpoints.items():
        missing = remote[name].download if name in remote else _missing_bytes(checkpoint)
        if missing > 0 and host.disk_free < missing + _SPARE:
            yield Finding(
                "disk",
                "refuse",
                f"there is no room for {name}"
                if name in remote
                else f"there is no room for the rest of {name}",
                f"{missing / GIB:.1f} GiB are missing, and {host.disk_free / GIB:.1f} free in {folder}",
                "free some, or set HF_HOME to a larger disk",
                liftable=True,
            )
        elif missing < 0 and host.disk_free < _ROOMY:
            yield Finding(
                "disk",
                "warn",
                f"there may be no room for {name}",
                f"{host.disk_free / GIB:.1f} GiB are free in {folder}; its size is not known yet",
                "free some, or set HF_HOME to a larger disk",
            )


def _missing_bytes(checkpoint: Checkpoint | None) -> int:
    if checkpoint is None or checkpoint.index_bytes < 0 or not missing_shards(checkpoint):
        return 0
    return max(0, checkpoint.index_bytes - checkpoint.bytes)
