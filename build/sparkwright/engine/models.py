"""Models of the hub: where huggingface_hub keeps them, and fetching them before a server starts.

A start that fetches its model itself shows no progress, and its limit would count the download.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.base.errors import FetchError
from sparkwright.base.events import task, warn
from sparkwright.base.process.session import Running, start
from sparkwright.recipes.recipe import Recipe

_CHILD = Path(__file__).with_name("child") / "fetch_model.py"
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = {"1", "true", "yes", "on"}
_POLL_S = 0.25
_END_S = 5.0
# Of weights in whole files; others are made up, or read by parts.
_FORMATS = {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral"}
_BLOCK = 512  # the unit of st_blocks; a file's length may be set before its bytes arrive
_REMEDIES = {
    "GatedRepoError": "accept the licence on the model's page, then `hf auth login` or set HF_TOKEN",
    "RepositoryNotFoundError": "correct the model's name; a private one needs HF_TOKEN",
    "full": "free some room in {cache}, or set HF_HOME to a larger disk; it continues from there",
}
_REMEDY = "start again: it continues from what is in {cache}; or fetch it elsewhere and name the folder"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's cache, by its variables."""
    if hub := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(hub).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    root = environment.get("XDG_CACHE_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(root).expanduser() / "huggingface" / "hub"


def is_offline(environment: Mapping[str, str]) -> bool:
    """Tell if a server with these variables fetches nothing."""
    return any(environment.get(name, "").lower() in _TRUE for name in _OFFLINE)


def is_repository(name: str) -> bool:
    """Tell if the model *name* is a repository of the hub, not a folder."""
    return not name.startswith(("/", ".", "~")) and name.count("/") <= 1


async def fetch_models(recipe: Recipe, python: Path, environment: Mapping[str, str], folder: Path) -> int:
    """Fetch what a server of *recipe* loads from the hub, if it is not here.

    What arrived whole before an interruption is not fetched twice.

    Returns:
        The bytes of the models on the disk.

    Raises:
        FetchError: the hub does not hand a model out that is not here, or a download broke off.
    """
    load_format = str(recipe.flags.get("load-format", "auto"))
    if load_format not in _FORMATS:
        return 0
    named = recipe.flags.get("download-dir")
    cache = Path(named) if isinstance(named, str) else cache_folder(environment)
    models = {recipe.model: recipe.flags.get("revision"), recipe.drafter: recipe.speculative.get("revision")}
    total = 0
    for name, revision in models.items():
        stored = cache / f"models--{name.replace('/', '--')}"
        place = Path(name).expanduser()  # noqa: ASYNC240 - one look
        if name and place.is_dir():
            total += _size(place)
        elif "/" in name and is_repository(name):
            request = {
                "name": name,
                "revision": revision or "main",
                "cache": str(cache),
                "format": load_format,
            }
            if not is_offline(environment):
                await _fetch(request, python, environment, folder, stored)
            total += _size(stored)
    return total


async def _fetch(
    request: dict[str, str], python: Path, environment: Mapping[str, str], folder: Path, stored: Path
) -> None:
    name = request["name"]
    log = folder / f"fetch-{stored.name}.log"
    child = start([python, _CHILD, json.dumps(request)], cwd=folder, env=environment, log=log)
    try:
        await _report(child, log, name, stored)
    finally:
        try:
            child.terminate()  # it deletes the parts that nothing could continue
            await asyncio.to_thread(_wait, child)
        finally:
            ended = child.kill()
    if ended.status == 0:
        return
    problem = _line(log, "error") or {"error": "", "text": f"it ended with status {ended.status}"}
    if not _line(log, "bytes") and problem.get("cached"):
        warn(f"the hub was not asked for {name}, which is in the cache: {problem['text']}")
        return
    raise FetchError(
        f"the model {name} cannot be fetched",
        because=problem["text"] or problem["error"],
        next_step=f"{_REMEDIES.get(problem['error'], _REMEDY).format(cache=request['cache'])}; see {log}",
    )


def _wait(child: Running) -> None:
    end = time.monotonic() + _END_S
    while child.poll() is None and time.monotonic() < end:
        time.sleep(_POLL_S)


async def _report(child: Running, log: Path, name: str, stored: Path) -> None:
    """Report the bytes that arrive until *child* ends."""
    with contextlib.ExitStack() as reporting:
        progress, before, total = None, 0, 0
        while True:
            ended = child.poll() is not None  # what it wrote before is reported all the same
            if progress is None and (total := int(_line(log, "bytes").get("bytes", 0))):
                before = _size(stored)
                progress = reporting.enter_context(task(f"fetch {name}", total=total, unit="B"))
            if progress is not None:
                arrived = min(total, _size(stored) - before)
                progress.advance(max(0, arrived - progress.done))
            if ended:
                return
            await asyncio.sleep(_POLL_S)


def _line(log: Path, key: str) -> dict[str, Any]:
    """Return the last line of the child's that has *key*; empty without one."""
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and key in found:
                return found
    return {}


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed when it was complete
                total += os.lstat(os.path.join(parent, name)).st_blocks * _BLOCK  # noqa: PTH118
    return total
