"""The locked runtime beside each wheel of an index: one file by which pip and uv install both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sparkwright.lock.runtime import (
    SUFFIX,
    LockedPackage,
    LockedRuntime,
    format_runtime,
    read_runtime,
    runtime_name,
)
from sparkwright.publish.pages import PublishedFile
from sparkwright.publish.series import series_of
from sparkwright.wheel.names import parse_name


def runtimes_in(patchsets: Path) -> dict[str, LockedRuntime]:
    """Return the locked runtimes in a folder of patchsets, by file name.

    Raises:
        ConfigError: one does not follow its format.
    """
    return {path.name: read_runtime(path) for path in sorted(patchsets.glob(f"*{SUFFIX}"))}


def runtime_page(file: PublishedFile, runtimes: Mapping[str, LockedRuntime]) -> tuple[str, bytes] | None:
    """Return name and content of the requirements beside the wheel *file*; `None` without a runtime.

    They hold the wheel itself by its digest, and everything that its series runs with on its machine.
    """
    machine = parse_name(file.filename).machine
    runtime = runtimes.get(runtime_name(series_of(file.version), machine))
    if runtime is None or file.project != "vllm":
        return None
    own = LockedPackage(file.project, file.version, "", (file.sha256,))
    whole = replace(runtime, packages=(own, *runtime.packages))
    text = format_runtime(whole, release=file.version, machine=machine)
    return f"{file.filename.removesuffix('.whl')}{SUFFIX}", text.encode()
