r"""Fetch what vLLM loads of a model on the hub into huggingface_hub's cache.

    python fetch_model.py REQUEST    # JSON: name, revision, cache, format

Runs in the environment of a server, whose huggingface_hub it uses; sparkwright itself is not there. Lines of
its output are JSON: the files and bytes that are missing, and the reason for which they cannot be had.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

_INDEX = "model.safetensors.index.json"
_SMALL = ("*.json", "*.txt", "*.jinja", "*.model", "*.py", "*.tiktoken")


def files_of(names: list[str], load_format: str, weight_map: dict[str, str]) -> list[str]:
    """Return the files of *names* that vLLM loads: those of its own choice of weights, and all small ones."""
    small = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in _SMALL)]
    mistral = fnmatch.filter(names, "consolidated*.safetensors") if load_format in {"auto", "mistral"} else []
    at_root = [name for name in names if "/" not in name]
    weights = (
        mistral
        or sorted(set(weight_map.values()) & set(names))
        or fnmatch.filter(at_root, "*.safetensors")
        or fnmatch.filter(at_root, "*.bin")
        or fnmatch.filter(at_root, "*.pt")
    )
    return [*weights, *(name for name in small if name not in weights)]


def lacking_of(names: list[str], load_format: str, weight_map: dict[str, str]) -> list[str]:
    """Return the files of the index that *names* lack; of Mistral's own weights, which have none, nothing."""
    if fnmatch.filter(files_of(names, load_format, weight_map), "consolidated*.safetensors"):
        return []
    return sorted(set(weight_map.values()) - set(names))


# Of newer releases, whose parts are of one process and of no use to another.
_PART = re.compile(r"\.[0-9a-f]{8}\.incomplete")
_DEAD_S = 600.0


def discard_parts(*_: object) -> None:
    """End this process, and delete the files that it was fetching."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            path = link.readlink()
            if _PART.search(path.name):
                path.unlink()
    os._exit(128 + signal.SIGTERM)


def discard_dead_parts(folder: Path) -> None:
    """Delete what processes left that were killed."""
    for path in folder.glob("blobs/*.incomplete"):
        with contextlib.suppress(OSError):
            if _PART.search(path.name) and time.time() - path.stat().st_mtime > _DEAD_S:
                path.unlink()


def is_cached(request: dict[str, Any]) -> bool:
    """Tell if the cache has a snapshot of the revision with all weights that its index names."""
    stored = Path(request["cache"], "models--" + request["name"].replace("/", "--"))
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        reference = stored / "refs" / request["revision"]
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else request["revision"]
        snapshot = stored / "snapshots" / commit
        names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
        index = snapshot / _INDEX
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else {}
        weights = any(name.endswith((".safetensors", ".bin", ".pt")) for name in names)
        return weights and not lacking_of(names, request["format"], listed)
    return False


def fetch(request: dict[str, Any]) -> None:
    """Fetch the model, and print what is missing before."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    discard_dead_parts(Path(request["cache"], "models--" + request["name"].replace("/", "--")))
    signal.signal(signal.SIGTERM, discard_parts)
    found = HfApi().model_info(request["name"], revision=request["revision"])
    names = [one.rfilename for one in found.siblings or []]
    place = {"repo_id": request["name"], "revision": request["revision"], "cache_dir": request["cache"]}
    weight_map: dict[str, str] = {}
    if _INDEX in names:
        index = Path(hf_hub_download(filename=_INDEX, **place))
        weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
    if lacking := lacking_of(names, request["format"], weight_map):
        raise FileNotFoundError(f"its index names {lacking[0]}, which the repository does not have")
    # Names are patterns for huggingface_hub; a bracket of a name must not be one.
    patterns = [name.replace("[", "[[]") for name in files_of(names, request["format"], weight_map)]
    planned = snapshot_download(**place, allow_patterns=patterns, dry_run=True)
    missing = [one.file_size for one in planned if one.will_download]
    say(files=len(missing), bytes=sum(missing))
    if missing:
        snapshot_download(**place, allow_patterns=patterns)


def say(**facts: int | str) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Fetch the model that the first argument describes."""
    try:
        fetch(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - each is the reason for which the model cannot be had
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        problem = "full" if no_room(error) else type(error).__name__
        say(error=problem, text=text.strip(), cached=is_cached(json.loads(sys.argv[1])))
        return 1
    return 0


def no_room(error: BaseException | None) -> bool:
    """Tell if *error*, or what caused it, is a full disk or a quota that is used up."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    sys.exit(main())
